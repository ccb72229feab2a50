// The library's C interface, which strata.native.library declares once more for Python.
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <new>

#include "experts.h"
#include "mailbox.h"
#include "tiles.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using namespace strata;

struct LayoutArguments {
  int32_t format, bias;
  int64_t hidden, intermediate;

  ExpertLayout layout() const { return {Format(format), size_t(hidden), size_t(intermediate), bias != 0}; }
};

struct PoolArguments {
  LayoutArguments layout;
  int32_t gating;
  float limit;
  int32_t digits, number, variant, num_cores, num_nodes;
  int64_t max_tokens, top_k, prefetch_bytes, timeout_ns, patience_ns, spin_ns;
};

struct RingArguments {
  int64_t depth, stride, x, ids, weights, scores, y;
  int32_t normalize, routing_threads;
  int64_t experts, resident;
  uint32_t first;
};

// A pool with the one kind of experts that it computes.
struct Handle {
  Pool* pool;
  std::unique_ptr<Experts> experts;
  std::unique_ptr<Mailbox> mailbox;
  const Kernels* kernels;
  size_t nodes;
};

// Reads memory as fast as the pool's workers can.
class Reading : public Work {
 public:
  static constexpr size_t UNIT = 1 << 21;
  Reading(const Kernels& kernels, const uint8_t* data, size_t bytes, size_t nodes)
      : kernels_(kernels), data_(data), bytes_(bytes), nodes_(nodes) {}
  NodePhases phases() const {
    NodePhases phases;
    for (size_t n = 0; n < nodes_; ++n) {
      const uint32_t units = uint32_t(begin_of(n + 1) - begin_of(n));
      phases[n] = {{units, units, units}};
    }
    return phases;
  }
  void run(size_t node, uint32_t first, uint32_t count) override {
    const size_t at = (begin_of(node) + first) * UNIT;
    sum_.fetch_xor(kernels_.read(data_ + at, std::min(count * UNIT, bytes_ - at)), std::memory_order_relaxed);
  }
  void finish(bool) override {}
  uint64_t sum() const { return sum_; }

 private:
  size_t begin_of(size_t node) const { return ceil_div(bytes_, UNIT) * node / nodes_; }

  const Kernels& kernels_;
  const uint8_t* const data_;
  const size_t bytes_, nodes_;
  std::atomic<uint64_t> sum_{0};
};

}  // namespace

// Raised with every change of this interface: a library of another build is refused.
EXPORT int32_t strata_interface() { return 10; }

// Bit v is set where variant v runs here.
EXPORT int32_t strata_variants() {
  int32_t bits = 0;
  for (int32_t v = 0; v < NUM_VARIANTS; ++v) bits |= (kernels_of(Variant(v)) != nullptr) << v;
  return bits;
}

EXPORT int64_t strata_expert_bytes(const LayoutArguments* layout) { return int64_t(layout->layout().num_bytes()); }

EXPORT void strata_tile_expert(const LayoutArguments* layout, uint8_t* const parts[3][4], uint8_t* const biases[3],
                               int32_t narrow_biases, uint8_t* blob, int32_t back) {
  tile_expert(layout->layout(), parts, biases, narrow_biases != 0, blob, back != 0);
}

// Rounds a matrix to int4; `variant` as for a pool. 0, or an errno.
EXPORT int32_t strata_pack_int4(const void* numbers, int32_t number, int64_t rows, int64_t cols, int32_t variant,
                                uint8_t* codes, uint8_t* scales, uint8_t* mins, uint16_t* super) {
  const Kernels* kernels = kernels_of(variant < 0 ? best_variant() : Variant(variant));
  if (!kernels) return ENOTSUP;
  const std::unique_ptr<void, void (*)(void*)> workspace(aligned_alloc(LINE, pack_workspace_bytes(size_t(cols))), free);
  if (!workspace) return ENOMEM;
  kernels->pack_int4(numbers, Number(number), size_t(rows), size_t(cols), static_cast<uint8_t*>(workspace.get()),
                     {codes, scales, mins, super});
  return 0;
}

// Null where it cannot be; `error` then is an errno.
EXPORT Handle* strata_pool_open(const PoolArguments* given, const int32_t* cores, const int32_t* nodes, int32_t* error) {
  const Kernels* kernels = kernels_of(given->variant < 0 ? best_variant() : Variant(given->variant));
  if (!kernels) {
    *error = ENOTSUP;
    return nullptr;
  }
  try {
    const int32_t count = given->num_cores;
    const Pool::Times times{given->timeout_ns, given->patience_ns, given->spin_ns};
    Pool* pool = Pool::start({cores, cores + count}, {nodes, nodes + count}, times, *error);
    if (!pool) return nullptr;
    std::unique_ptr<Handle> handle(new Handle{pool, nullptr, nullptr, kernels, size_t(given->num_nodes)});
    try {
      handle->experts = std::make_unique<Experts>(
          ExpertsConfig{given->layout.layout(), Gating(given->gating), given->limit, size_t(given->digits),
                        Number(given->number), size_t(given->max_tokens), size_t(given->top_k),
                        size_t(given->prefetch_bytes), size_t(given->num_nodes)},
          *kernels, *pool);
    } catch (const std::bad_alloc&) {
      if (pool->stop()) delete pool;
      throw;
    }
    return handle.release();
  } catch (const std::bad_alloc&) {
    *error = ENOMEM;
    return nullptr;
  }
}

// 0, or 1 where a worker hangs in a unit: its memory is left as it is.
EXPORT int32_t strata_pool_close(Handle* handle) {
  if (!handle->pool->stop()) return 1;
  delete handle->pool;
  delete handle;
  return 0;
}

EXPORT void strata_pool_set_table(Handle* handle, const uint64_t* table, int64_t layers, int64_t experts) {
  handle->experts->set_table(table, size_t(layers), size_t(experts));
}

EXPORT void strata_pool_set_mapped(Handle* handle, const uint8_t* begin, int64_t bytes) {
  handle->experts->set_mapped(begin, size_t(bytes));
}

EXPORT void strata_pool_set_prefetch(Handle* handle, int64_t bytes) { handle->experts->set_prefetch(size_t(bytes)); }

// A Fault.
EXPORT int32_t strata_pool_run(Handle* handle, int64_t layer, int64_t tokens, const void* x, const int32_t* ids,
                               const float* weights, float* y) {
  if (handle->pool->failed()) return int32_t(Fault::FAILED);
  NodePhases phases;
  const Fault fault = handle->experts->prepare({size_t(layer), size_t(tokens), x, ids, weights, y}, phases);
  if (fault != Fault::NONE) return int32_t(fault);
  return int32_t(handle->pool->run(*handle->experts, phases) == Wait::DONE ? Fault::NONE : Fault::FAILED);
}

EXPORT void strata_pool_attach(Handle* handle, uint8_t* ring, const RingArguments* given) {
  const RingLayout layout{given->depth, given->stride, given->x, given->ids, given->weights, given->scores, given->y};
  const RouteConfig route{size_t(given->experts), handle->experts->top_k(), given->normalize != 0};
  const RoutingConfig routing{route, size_t(given->routing_threads), size_t(given->resident)};
  handle->mailbox =
      std::make_unique<Mailbox>(*handle->experts, *handle->kernels, ring, layout, routing, given->first);
}

// A Fault, once: why a request through the mailbox could not be answered.
EXPORT int32_t strata_pool_take_fault(Handle* handle) { return int32_t(handle->mailbox->take_fault()); }

EXPORT void strata_pool_expect(Handle* handle, int32_t requests) {
  if (!handle->pool->expects()) handle->mailbox->begin_to_wait();
  handle->pool->expect(handle->mailbox.get(), requests);
}

// Of the mailbox that was attached.
EXPORT void strata_pool_work(Handle* handle, MailboxWork* work) { *work = handle->mailbox->work(); }

// 0: works; 1: a job took too long; 2: a request that was expected did not come.
EXPORT int32_t strata_pool_state(Handle* handle) {
  return !handle->pool->failed() ? 0 : handle->pool->overdue() ? 1 : 2;
}

EXPORT int32_t strata_pool_busy(Handle* handle, int32_t worker) { return handle->pool->busy(worker); }

EXPORT const char* strata_pool_variant(Handle* handle) { return handle->kernels->name; }

// A Fault. What was read goes into `sum`.
EXPORT int32_t strata_pool_read(Handle* handle, const uint8_t* data, int64_t bytes, uint64_t* sum) {
  Reading reading(*handle->kernels, data, size_t(bytes), handle->nodes);
  const bool done = handle->pool->run(reading, reading.phases()) == Wait::DONE;
  *sum = reading.sum();
  return int32_t(done ? Fault::NONE : Fault::FAILED);
}
