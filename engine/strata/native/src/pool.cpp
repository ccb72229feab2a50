#include "pool.h"

#include <sched.h>

#include <algorithm>
#include <cstdio>

#include "futex.h"

namespace strata {
namespace {

constexpr int UNIT_BITS = 20;
constexpr uint64_t UNIT_MASK = (1u << UNIT_BITS) - 1;
constexpr uint32_t SHARES = 2;  // a worker takes its share of half of what is left of a phase
constexpr int64_t STOP_NANOSECONDS = 1'000'000'000;  // that a worker has to end its unit
constexpr int64_t REFUSE_NANOSECONDS = 1'000'000;    // between two looks for requests of a pool that has failed

}  // namespace

void Pool::relax() {
#ifdef STRATA_X86
  __builtin_ia32_pause();
#else
  yield();
#endif
}

void Pool::yield() { sched_yield(); }

Pool* Pool::start(const std::vector<int>& cores, const std::vector<int>& nodes, const Times& times, int& errno_) {
  std::unique_ptr<Pool> pool(new Pool(nodes.empty() ? 0 : size_t(*std::max_element(nodes.begin(), nodes.end()) + 1), times));
  bool started = true;
  for (const int node : nodes) ++pool->nodes_[node].size;
  for (size_t i = 0; i < cores.size() && started; ++i) {
    auto worker = std::make_unique<Worker>();
    worker->pool = pool.get();
    worker->index = int(i);
    worker->node = size_t(nodes[i]);
    char name[16];
    snprintf(name, sizeof name, "strata-cpu-%d", int(i) % 1000);
    started = pool->start_thread(worker->thread, enter_worker, worker.get(), cores[i], name, errno_);
    if (started) pool->workers_.push_back(std::move(worker));
  }
  if (started) {
    started = pool->watched_ = pool->start_thread(pool->watchdog_, enter_watchdog, pool.get(), -1, "strata-watch", errno_);
  }
  if (started) return pool.release();
  if (!pool->stop()) pool.release();  // what a thread still uses must stay
  return nullptr;
}

bool Pool::start_thread(pthread_t& thread, void* (*enter)(void*), void* argument, int core, const char* name, int& errno_) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  if (core >= 0) {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(size_t(core), &cores);
    pthread_attr_setaffinity_np(&attributes, sizeof cores, &cores);
  }
  errno_ = pthread_create(&thread, &attributes, enter, argument);
  pthread_attr_destroy(&attributes);
  if (errno_ == 0) pthread_setname_np(thread, name);
  return errno_ == 0;
}

bool Pool::stop() {
  stop_ = 1;
  failed_ = true;  // units that wait for others end
  wake_all(stop_);
  call_.fetch_add(1);
  wake_all(call_);
  timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += STOP_NANOSECONDS / 1'000'000'000;
  bool all = true;
  for (auto& worker : workers_) all &= pthread_timedjoin_np(worker->thread, nullptr, &until) == 0;
  if (watched_) all &= pthread_timedjoin_np(watchdog_, nullptr, &until) == 0;
  return all;
}

void* Pool::enter_worker(void* worker) {
  Worker& me = *static_cast<Worker*>(worker);
  me.pool->work(me);
  return nullptr;
}

void* Pool::enter_watchdog(void* pool) {
  static_cast<Pool*>(pool)->watch();
  return nullptr;
}

void Pool::work(Worker& me) {
  do {
    uint32_t first, mine = 0;
    me.busy.store(true, std::memory_order_relaxed);
    while (const uint32_t count = failed() ? 0 : take(nodes_[me.node], first)) {
      work_->run(me.node, first, count);
      mine += count;
    }
    me.busy.store(false, std::memory_order_relaxed);
    // The job cannot end, nor another begin, before these are counted.
    if (mine && done_.fetch_add(mine, std::memory_order_acq_rel) + mine == units_) complete();
  } while (idle(me));
}

// How many of the node's units there are to run from `first` on; 0 where none are left.
uint32_t Pool::take(Node& node, uint32_t& first) {
  uint64_t seen = node.ticket.load(std::memory_order_acquire);
  uint32_t count;
  do {
    const uint32_t units = uint32_t(seen >> UNIT_BITS & UNIT_MASK);
    first = uint32_t(seen & UNIT_MASK);
    if (first >= units) return 0;
    uint32_t end = units;
    for (size_t i = Phases::COUNT; i-- > 0;) {
      const uint32_t each = node.ends[i].load(std::memory_order_relaxed);
      if (first < each && each < end) end = each;
    }
    count = std::max(1u, (end - first) / (SHARES * node.size));
  } while (!node.ticket.compare_exchange_weak(seen, seen + count, std::memory_order_acq_rel, std::memory_order_acquire));
  return count;
}

void Pool::begin(Work& work, const NodePhases& phases) {
  work_ = &work;
  units_ = 0;
  for (size_t n = 0; n < num_nodes_; ++n) {
    units_ += phases[n].units();
    for (size_t i = 0; i < Phases::COUNT; ++i) nodes_[n].ends[i].store(phases[n].ends[i], std::memory_order_relaxed);
  }
  done_.store(0, std::memory_order_relaxed);
  since_.store(now(), std::memory_order_relaxed);
  job_.store(Job::RUNS, std::memory_order_relaxed);
  // A node without units keeps its ticket, of which nothing is left: so the job is not over before all are written.
  for (size_t n = 0; n < num_nodes_; ++n) {
    const uint32_t units = phases[n].units();
    if (units == 0) continue;
    std::atomic<uint64_t>& ticket = nodes_[n].ticket;
    const uint64_t number = (ticket.load(std::memory_order_relaxed) >> 2 * UNIT_BITS) + 1;
    ticket.store(number << 2 * UNIT_BITS | uint64_t(units) << UNIT_BITS, std::memory_order_seq_cst);
  }
  wake();
}

void Pool::wake() {
  if (sleepers_.load(std::memory_order_seq_cst) == 0) return;
  call_.fetch_add(1, std::memory_order_seq_cst);
  wake_all(call_);
}

void Pool::complete() {
  Work& work = *work_;
  since_.store(now(), std::memory_order_relaxed);
  // A failure found meanwhile has told the waiters already.
  Job running = Job::RUNS;
  if (!job_.compare_exchange_strong(running, Job::ENDS)) return;
  work.finish(false);
  job_.store(Job::NONE, std::memory_order_release);  // only now may the next one begin
  completed_.fetch_add(1, std::memory_order_release);
  wake_all(completed_);
}

// Takes the job, if one runs, from its workers: whoever gets it tells its waiters.
bool Pool::abandon() {
  Job running = Job::RUNS;
  return job_.compare_exchange_strong(running, Job::NONE);
}

Wait Pool::run(Work& work, const NodePhases& phases) {
  const uint32_t before = completed_.load(std::memory_order_acquire);
  if (failed()) return Wait::FAILED;
  begin(work, phases);
  // Asleep: a caller that spins takes a core from a worker where every core has one.
  while (completed_.load(std::memory_order_acquire) == before) wait_while(completed_, before);
  return failed() ? Wait::FAILED : Wait::DONE;
}

void Pool::expect(Source* source, int32_t count) {
  source_.store(source, std::memory_order_release);
  since_.store(now(), std::memory_order_relaxed);
  expected_.fetch_add(count, std::memory_order_seq_cst);
  wake();
}

// Called by the first worker while it has nothing to do: whether a request has become a job.
bool Pool::poll(Worker& me) {
  if (me.index != 0 || !expects() || job_.load(std::memory_order_acquire) != Job::NONE) return false;
  Work* work;
  NodePhases phases;
  int32_t requests;
  const Taken taken = source_.load(std::memory_order_acquire)->take(work, phases, requests);
  if (taken == Taken::NOTHING) return false;
  if (taken == Taken::OVER) {
    since_.store(now(), std::memory_order_relaxed);
  } else {
    begin(*work, phases);
    if (failed() && abandon()) work->finish(true);  // the watchdog looked for a job before there was one
  }
  // Only now: between the two the watchdog has a job to watch.
  if (taken != Taken::PART) expected_.fetch_sub(requests, std::memory_order_acq_rel);
  return taken != Taken::OVER;
}

// Waits for work; false when the pool ends.
bool Pool::idle(Worker& me) {
  const auto has_units = [this, &me] {
    const uint64_t seen = nodes_[me.node].ticket.load(std::memory_order_seq_cst);
    return (seen & UNIT_MASK) < (seen >> UNIT_BITS & UNIT_MASK) && !failed();
  };
  int64_t spin_until = now() + times_.spin;
  for (uint32_t spins = 1;; ++spins) {
    if (stop_.load(std::memory_order_acquire)) return false;
    if (has_units() || poll(me)) return true;
    relax();
    if (spins % SPINS) continue;
    yield();
    const bool expecting = expects() && !failed();
    if (expecting || now() < spin_until) continue;
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t call = call_.load(std::memory_order_seq_cst);
    if (!has_units() && !(expected_.load(std::memory_order_seq_cst) > 0 && !failed()) && !stop_.load(std::memory_order_seq_cst)) {
      wait_while(call_, call);
    }
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    spin_until = now() + times_.spin;
  }
}

void Pool::fail(bool active) {
  failed_.store(true, std::memory_order_seq_cst);
  Source* source = source_.load(std::memory_order_acquire);
  // A request that lies there untaken is the workers' fault, not its sender's.
  const bool waiting = !active && source && source->refuse();
  overdue_ = active || waiting;
  expected_.store(0, std::memory_order_release);
  if (abandon()) work_->finish(true);
  completed_.fetch_add(1, std::memory_order_release);
  wake_all(completed_);
}

void Pool::watch() {
  int64_t lying = -1, lying_since = 0;  // the request that nobody takes, and the first look at it
  while (!stop_.load(std::memory_order_acquire)) {
    Source* source = source_.load(std::memory_order_acquire);
    const bool refusing = failed() && source;
    wait_while(stop_, 0, refusing ? REFUSE_NANOSECONDS : times_.timeout / 4 + 1);
    if (stop_.load(std::memory_order_acquire)) return;
    if (failed()) {
      // What a recorded graph still asks for must be answered, or the GPU never ends its step.
      if (source) source->refuse();
      continue;
    }
    const bool active = job_.load(std::memory_order_acquire) != Job::NONE;
    if (!active && !expects()) continue;
    const int64_t time = now(), waited = time - since_.load(std::memory_order_relaxed);
    const int64_t untaken = active ? -1 : source_.load(std::memory_order_acquire)->untaken();
    if (untaken != lying) lying_since = time;
    lying = untaken;
    if (active ? waited > times_.timeout : untaken >= 0 ? time - lying_since > times_.timeout : waited > times_.patience) {
      fail(active);
    }
  }
}

}  // namespace strata
