// Threads bound to cores that share out the units of one job at a time.
//
// Cores belong to nodes (of NUMA; most machines have one), and a job says for each node which units its cores run: those
// that read the node's memory.
//
// Units are taken with one compare-and-swap of a ticket that holds the job's number, its units and the next of them; a
// worker that comes late finds nothing left and disturbs nothing. Many neighbours at a time are taken at first, so that
// memory is read as long streams, and single ones at the end of each phase, so that all end together. Idle workers spin for a moment (and while requests
// through a mailbox are expected), then sleep in the kernel. A watchdog of its own ends a job that takes too long, or is
// not taken, and the wait for one that does not come: then the pool has failed for good, its waiters are told, and whoever
// asks later is refused: nothing waits for ever.
#pragma once

#include <pthread.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace strata {

class Pool;

constexpr size_t MAX_NODES = 16;

// A job. Each node's units are begun in ascending order, so a unit may wait for those before it, and for those of other
// nodes that wait for nothing.
class Work {
 public:
  virtual ~Work() = default;
  // The node's units from `first` on.
  virtual void run(size_t node, uint32_t first, uint32_t count) = 0;
  // Called once all units are done, by the last worker, before anyone is told; `failed` instead where the pool failed.
  virtual void finish(bool failed) = 0;
};

// Where each phase of a node's part of a job ends, in units; the last end is that of the part. Units of a phase are about
// alike, and those of the next may have to wait for them.
struct Phases {
  static constexpr size_t COUNT = 3;
  uint32_t ends[COUNT] = {};

  uint32_t units() const { return ends[COUNT - 1]; }
};
using NodePhases = std::array<Phases, MAX_NODES>;  // those that a pool has not have no units

enum class Taken { NOTHING, JOB, PART, OVER };

// Where jobs come from that nobody calls in.
class Source {
 public:
  virtual ~Source() = default;
  // The next job and its phases, if it is there. PART: a job whose request needs another one. OVER: a request that came
  // and needs none. `requests`: how many of the expected ones that were. Asked by one worker, never while a job runs or
  // ends.
  virtual Taken take(Work*& work, NodePhases& phases, int32_t& requests) = 0;
  // Number of the request that waits to be taken, or to be gone on with; -1 where none does. Asked by any thread.
  virtual int64_t untaken() const = 0;
  // Answers the requests that wait with a failure; whether there were any. For a pool that has failed.
  virtual bool refuse() = 0;
};

enum class Wait { DONE, FAILED };

class Pool {
 public:
  static constexpr uint32_t MAX_UNITS = (1u << 20) - 1;

  // In nanoseconds: what a job may take, how long a request that is expected may not come, and how long an idle worker
  // spins.
  struct Times {
    int64_t timeout, patience, spin;
  };

  // One worker on each of `cores`, whose `nodes` count from 0 without a gap. Null where a thread cannot be started or
  // bound; `errno_` says why.
  static Pool* start(const std::vector<int>& cores, const std::vector<int>& nodes, const Times& times, int& errno_);

  // Ends the workers; false where one does not end: then everything it may use has to stay.
  bool stop();

  // Runs a job and waits for it. One caller at a time.
  Wait run(Work& work, const NodePhases& phases);

  // Jobs that `source` will bring; the workers spin until they have come.
  void expect(Source* source, int32_t count);
  // Whether some of them have not come.
  bool expects() const { return expected_.load(std::memory_order_acquire) > 0; }

  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // What failed: a job that ran too long (true) or a request that never came (false).
  bool overdue() const { return overdue_; }
  // Whether a worker is in a unit just now, or hangs in one.
  bool busy(int worker) const { return workers_[size_t(worker)]->busy.load(std::memory_order_relaxed); }

  // Spins until `ready()` is true; false where the pool fails before. For units that need others.
  template <class Ready>
  bool wait_until(const Ready& ready) {
    for (uint32_t spins = 0; !ready(); ++spins) {
      relax();
      if (spins % SPINS != SPINS - 1) continue;
      if (failed()) return false;
      yield();
    }
    return true;
  }

 private:
  enum class Job { NONE, RUNS, ENDS };

  // Between two offers of the core to others: there may be more workers than free cores, and who is waited for may be
  // one that has none.
  static constexpr uint32_t SPINS = 64;

  struct alignas(64) Node {
    std::atomic<uint64_t> ticket{0};               // number of the job : 24, units : 20, next unit : 20
    std::atomic<uint32_t> ends[Phases::COUNT]{};  // of the phases; a worker that comes late may see the next job's
    uint32_t size = 0;                             // workers
  };
  struct alignas(64) Worker {
    Pool* pool;
    int index;
    size_t node;
    pthread_t thread;
    std::atomic<bool> busy{false};
  };

  Pool(size_t num_nodes, const Times& times) : num_nodes_(num_nodes), times_(times) {}
  static void relax();
  static void yield();
  static void* enter_worker(void* worker);
  static void* enter_watchdog(void* pool);
  void work(Worker& me);
  static uint32_t take(Node& node, uint32_t& first);
  void begin(Work& work, const NodePhases& phases);
  void complete();
  bool abandon();
  bool idle(Worker& me);
  bool poll(Worker& me);
  void fail(bool active);
  void watch();
  void wake();
  bool start_thread(pthread_t& thread, void* (*enter)(void*), void* argument, int core, const char* name, int& errno_);

  const size_t num_nodes_;
  const Times times_;
  std::vector<std::unique_ptr<Worker>> workers_;
  pthread_t watchdog_{};
  bool watched_ = false;

  Node nodes_[MAX_NODES];
  alignas(64) std::atomic<uint32_t> done_{0};  // units of this job, of all nodes
  std::atomic<Job> job_{Job::NONE};
  Work* work_ = nullptr;
  uint32_t units_ = 0;
  std::atomic<int64_t> since_{0};  // when the job began, or the last one ended
  alignas(64) std::atomic<uint32_t> completed_{0};  // number of jobs that ended; waited on
  alignas(64) std::atomic<uint32_t> call_{0};       // changes when there may be work; waited on
  std::atomic<int> sleepers_{0};
  // Below 0 while a request has told of others that were skipped, and not all of these are announced yet.
  std::atomic<int32_t> expected_{0};
  std::atomic<Source*> source_{nullptr};
  std::atomic<uint32_t> stop_{0};  // waited on by the watchdog
  std::atomic<bool> failed_{false};
  std::atomic<bool> overdue_{false};
};

}  // namespace strata
