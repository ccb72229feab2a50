// Requests from the GPU through host memory that both can reach.
//
// The other side writes the request's fields and its numbers, then a value other than zero into `request`. The pool takes
// it by writing zero there, computes, writes the result and `status`, then the same value into `done`. So a value may be
// a count, or a constant of a recorded graph as long as two requests in turn have different ones.
#pragma once

#include "experts.h"
#include "futex.h"

namespace strata {

struct MailboxHeader {
  alignas(64) std::atomic<uint32_t> request;
  int32_t layer, tokens;
  alignas(64) std::atomic<uint32_t> done;
  std::atomic<int32_t> status;  // a Fault
};
static_assert(sizeof(MailboxHeader) == 128, "two cache lines, one for each side to write");

// What was done for the other side, in nanoseconds.
struct MailboxWork {
  int64_t jobs, busy, idle;
};

class Mailbox : public Source, public Work {
 public:
  Mailbox(Experts& experts, MailboxHeader* header, const Request& places)
      : experts_(experts), header_(header), request_(places) {}

  Taken take(Work*& work, NodePhases& phases) override {
    const uint32_t value = header_->request.load(std::memory_order_acquire);
    if (value == 0) return Taken::NOTHING;
    const int64_t seen = now();
    idle_.fetch_add(seen - idle_since_.exchange(seen, std::memory_order_relaxed), std::memory_order_relaxed);
    seen_.store(seen, std::memory_order_relaxed);
    header_->request.store(0, std::memory_order_relaxed);
    value_ = value;
    request_.layer = size_t(header_->layer);
    request_.tokens = size_t(header_->tokens);
    const Fault fault = experts_.prepare(request_, phases);
    if (fault != Fault::NONE) {
      answer(fault);
      return Taken::REFUSED;
    }
    work = this;
    return Taken::JOB;
  }

  bool refuse() override {
    const uint32_t value = header_->request.exchange(0, std::memory_order_acq_rel);
    if (value == 0) return false;
    value_ = value;
    answer(Fault::FAILED);
    return true;
  }

  void run(size_t node, uint32_t first, uint32_t count) override { experts_.run(node, first, count); }
  void finish(bool failed) override {
    const int64_t end = now();
    busy_.fetch_add(end - seen_.load(std::memory_order_relaxed), std::memory_order_relaxed);
    jobs_.fetch_add(1, std::memory_order_relaxed);
    idle_since_.store(end, std::memory_order_relaxed);
    answer(failed ? Fault::FAILED : Fault::NONE);  // only now: who has it finds this job counted
  }

  // The pool is told to expect requests, and has expected none.
  void begin_to_wait() { idle_since_.store(now(), std::memory_order_relaxed); }

  // Jobs so far, the time from each one's request to its answer, and that in which a request was expected and no job ran.
  MailboxWork work() const {
    return {jobs_.load(std::memory_order_relaxed), busy_.load(std::memory_order_relaxed), idle_.load(std::memory_order_relaxed)};
  }

 private:
  // A fault stays until the engine has seen it: later requests do not wipe it out.
  void answer(Fault fault) {
    if (fault != Fault::NONE) header_->status.store(int32_t(fault), std::memory_order_relaxed);
    header_->done.store(value_, std::memory_order_release);
  }

  Experts& experts_;
  MailboxHeader* const header_;
  Request request_;
  uint32_t value_ = 0;
  std::atomic<int64_t> seen_{0}, idle_since_{0};  // the last request; the last answer, or the begin of the wait since
  std::atomic<int64_t> jobs_{0}, busy_{0}, idle_{0};
};

}  // namespace strata
