// Requests from the GPU through host memory that both can reach: a ring of slots.
//
// The other side numbers its requests; number n lies in slot n mod depth. It writes the request's fields and arrays,
// then n into the slot's `request`. The pool takes requests in the order of their numbers, computes, writes the result,
// then n into `done`. So several may be under way, and no answer is ever taken for another one's, however late it comes:
// two that share a slot differ in their numbers. Who goes on by a whole ring without an answer writes over the oldest
// request: that one is stale, and is dropped.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "experts.h"
#include "futex.h"

namespace strata {

// That a thread chooses experts for, at least: handing a job to others takes about a microsecond, and a choice of 8 of 128
// experts 0.18 (AVX-512, Zen 4, 2026-11-30).
constexpr size_t TOKENS_A_THREAD = 4;

// What a request asks for: bits.
enum Kind : int32_t { COMPUTE = 1, ROUTE = 2 };

struct SlotHeader {
  alignas(64) std::atomic<uint32_t> request;
  int32_t layer, tokens, kind, skipped;
  alignas(64) std::atomic<uint32_t> done;
};
static_assert(sizeof(SlotHeader) == 128, "two cache lines, one for each side to write");

// Places in bytes: of a slot from the ring's start, and of its arrays from its own.
struct RingLayout {
  int64_t depth, stride, x, ids, weights, scores, y;
};

struct RoutingConfig {
  RouteConfig route;
  size_t threads;   // that share a request's tokens, at most
  size_t resident;  // experts with a lower number are not computed here where the pool routes
};

// What was done for the other side: jobs, and nanoseconds busy and idle; tokens for which experts were chosen; requests
// that were dropped, or whose answer came too late.
struct MailboxWork {
  int64_t jobs, busy, idle, routed, stale;
};

class Mailbox : public Source, public Work {
 public:
  // `first`: number of the first request.
  Mailbox(Experts& experts, const Kernels& kernels, uint8_t* ring, const RingLayout& layout, const RoutingConfig& routing,
          uint32_t first)
      : experts_(experts), kernels_(kernels), ring_(ring), layout_(layout), routing_(routing), next_(first),
        workspace_(routing.threads * routing.route.workspace()) {
    for (int64_t i = 0; i < layout.depth; ++i) {
      auto& header = *reinterpret_cast<SlotHeader*>(ring + i * layout.stride);
      header.request.store(first - 1, std::memory_order_relaxed);
      header.done.store(first - 1, std::memory_order_release);
    }
    ids_.resize(experts.max_pairs());
    weights_.resize(experts.max_pairs());
  }

  Taken take(Work*& work, NodePhases& phases, int32_t& requests) override {
    work = this;
    requests = requests_;
    if (routed_.exchange(false, std::memory_order_acquire)) return compute_or_answer(phases);
    uint32_t number = next_.load(std::memory_order_relaxed);
    const uint32_t seen = header(number).request.load(std::memory_order_acquire);
    const int32_t ahead = int32_t(seen - number);
    if (ahead < 0) return Taken::NOTHING;
    if (!next_.compare_exchange_strong(number, number + 1)) return Taken::NOTHING;
    const int64_t arrival = now();
    idle_.fetch_add(arrival - idle_since_.exchange(arrival, std::memory_order_relaxed), std::memory_order_relaxed);
    seen_ = arrival;
    requests = 1;
    if (ahead > 0) {  // written over
      stale_.fetch_add(1, std::memory_order_relaxed);
      return Taken::OVER;
    }
    number_ = number;
    requests = requests_ = 1 + header(number).skipped;
    return read(phases);
  }

  int64_t untaken() const override {
    const uint32_t number = next_.load(std::memory_order_relaxed);
    if (routed_.load(std::memory_order_relaxed)) return number - 1;
    return int32_t(header(number).request.load(std::memory_order_relaxed) - number) >= 0 ? int64_t(number) : -1;
  }

  bool refuse() override {
    bool any = false;
    if (routed_.exchange(false, std::memory_order_acquire)) {
      answer(Fault::FAILED, number_);
      any = true;
    }
    for (uint32_t number = next_.load(); int32_t(header(number).request.load(std::memory_order_acquire) - number) >= 0;) {
      if (!next_.compare_exchange_strong(number, number + 1)) continue;
      answer(Fault::FAILED, number++);
      any = true;
    }
    return any;
  }

  void run(size_t node, uint32_t first, uint32_t count) override {
    if (routing_now_) {
      for (uint32_t part = first; part < first + count; ++part) route_part(part);
    } else {
      experts_.run(node, first, count);
    }
  }

  void finish(bool failed) override {
    const bool chosen = routing_now_ && !failed;
    routing_now_ = false;
    if (chosen) return routed_.store(true, std::memory_order_release);  // the next `take` goes on with it
    jobs_.fetch_add(1, std::memory_order_relaxed);
    spent();
    answer(failed ? Fault::FAILED : Fault::NONE, number_);  // only now: who has it finds this job counted
  }

  // The pool is told to expect requests, and has expected none.
  void begin_to_wait() { idle_since_.store(now(), std::memory_order_relaxed); }

  // Why a request could not be answered, once; later requests do not wipe it out.
  Fault take_fault() { return Fault(fault_.exchange(0, std::memory_order_acq_rel)); }

  // So far. Busy: from each request to its answer; idle: while one was expected and none in work.
  MailboxWork work() const { return {jobs_, busy_, idle_, tokens_routed_, stale_}; }

 private:
  SlotHeader& header(uint32_t number) const {
    return *reinterpret_cast<SlotHeader*>(ring_ + number % uint32_t(layout_.depth) * layout_.stride);
  }
  // An array of the slot that is in work.
  template <class T>
  T* array(int64_t place) const {
    return reinterpret_cast<T*>(reinterpret_cast<uint8_t*>(&header(number_)) + place);
  }
  // Whether the slot has another request by now.
  bool overwritten(uint32_t number) const {
    std::atomic_thread_fence(std::memory_order_acquire);
    return header(number).request.load(std::memory_order_relaxed) != number;
  }
  size_t pairs() const { return size_t(tokens_) * routing_.route.top_k; }
  uint32_t parts() const {
    return uint32_t(std::max<size_t>(1, std::min(size_t(tokens_) / TOKENS_A_THREAD, routing_.threads)));
  }

  Taken read(NodePhases& phases) {
    const SlotHeader& fields = header(number_);
    layer_ = fields.layer;
    tokens_ = fields.tokens;
    kind_ = fields.kind;
    if (tokens_ < 1 || pairs() > ids_.size()) return over(Fault::TOKENS);
    const bool routes = kind_ & ROUTE;
    if (!(kind_ & (COMPUTE | ROUTE)) || (routes && routing_.route.experts == 0)) return over(Fault::KIND);
    if (routes) {
      if (parts() > 1) {
        routing_now_ = true;
        phases = {};
        phases[0] = {{parts(), parts(), parts()}};
        return Taken::PART;
      }
      route_part(0);
    } else {
      // Copies: they are looked at more than once, and must not change between.
      memcpy(ids_.data(), array<int32_t>(layout_.ids), pairs() * sizeof(int32_t));
      memcpy(weights_.data(), array<float>(layout_.weights), pairs() * sizeof(float));
    }
    return compute_or_answer(phases);
  }

  // Each part chooses for its tokens, in a workspace of its own.
  void route_part(uint32_t part) {
    const RouteConfig& config = routing_.route;
    for (size_t token = part; token < size_t(tokens_); token += parts()) {
      kernels_.route(array<float>(layout_.scores) + token * config.experts, config,
                     workspace_.data() + part * config.workspace(), ids_.data() + token * config.top_k,
                     weights_.data() + token * config.top_k);
    }
  }

  Taken compute_or_answer(NodePhases& phases) {
    if (kind_ & ROUTE) tokens_routed_.fetch_add(tokens_, std::memory_order_relaxed);
    if (!(kind_ & COMPUTE)) {
      // Where results go, and nothing that is asked: who has given this request up may have written the next one here.
      memcpy(array<int32_t>(layout_.y), ids_.data(), pairs() * sizeof(int32_t));
      memcpy(array<float>(layout_.y) + pairs(), weights_.data(), pairs() * sizeof(float));
      spent();
      return over(Fault::NONE);
    }
    if (kind_ & ROUTE) {
      for (size_t i = 0; i < pairs(); ++i) ids_[i] = size_t(ids_[i]) < routing_.resident ? -1 : ids_[i];
    }
    const Fault fault = experts_.prepare({size_t(layer_), size_t(tokens_), array<void>(layout_.x), ids_.data(),
                                          weights_.data(), array<float>(layout_.y)},
                                         phases);
    if (fault != Fault::NONE || overwritten(number_)) return over(fault);
    return Taken::JOB;
  }

  Taken over(Fault fault) {
    answer(fault, number_);
    return Taken::OVER;
  }

  void spent() {
    const int64_t end = now();
    busy_.fetch_add(end - seen_, std::memory_order_relaxed);
    idle_since_.store(end, std::memory_order_relaxed);
  }

  void answer(Fault fault, uint32_t number) {
    if (overwritten(number)) {  // nobody waits for it; its numbers may have been half another one's
      stale_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    if (fault != Fault::NONE) fault_.store(int32_t(fault), std::memory_order_relaxed);
    header(number).done.store(number, std::memory_order_release);
  }

  Experts& experts_;
  const Kernels& kernels_;
  uint8_t* const ring_;
  const RingLayout layout_;
  const RoutingConfig routing_;
  std::atomic<uint32_t> next_;          // number that is taken next
  std::atomic<bool> routed_{false};     // whether threads have chosen for the request in work, which goes on
  bool routing_now_ = false;            // whether the job is one of choosing
  std::atomic<int32_t> fault_{0};
  std::atomic<int64_t> idle_since_{0};  // the last answer, or the begin of the wait since
  std::atomic<int64_t> jobs_{0}, busy_{0}, idle_{0}, tokens_routed_{0}, stale_{0};
  // Of the request in work.
  int64_t seen_ = 0;  // when
  uint32_t number_ = 0;
  int32_t layer_ = 0, tokens_ = 0, kind_ = 0;
  int32_t requests_ = 0;  // of the expected ones, with those that were skipped before it
  std::vector<int32_t> ids_, workspace_;
  std::vector<float> weights_;
};

}  // namespace strata
