#include "experts.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

namespace strata {
namespace {

constexpr size_t CHUNK = 32;  // tokens multiplied while a row block lies in the cache

// Always inline: see Ahead in multiply.h.
__attribute__((always_inline)) inline void prefetch(const uint8_t* start, size_t bytes) {
  for (size_t at = 0; start && at < bytes; at += LINE) __builtin_prefetch(start + at);
}

}  // namespace

Experts::Buffer::Buffer(size_t bytes) : data(nullptr, free) {
  const size_t size = ceil_div(bytes + 1, LINE) * LINE;
  data.reset(static_cast<uint8_t*>(aligned_alloc(LINE, size)));
  if (!data) throw std::bad_alloc();
  memset(data.get(), 0, size);
}

Experts::Experts(const ExpertsConfig& config, const Kernels& kernels, Pool& pool)
    : config_(config), kernels_(kernels), pool_(pool),
      outer_{config.layout.format, config.layout.hidden_groups(), config.digits},
      inner_{config.layout.format, config.layout.intermediate_groups(), config.digits},
      token_bytes_(outer_.num_bytes()), rounded_bytes_(inner_.num_bytes()), product_floats_(inner_.groups * GROUP),
      prefetch_(config.prefetch), order_(config.max_tokens * config.top_k), chosen_(new Chosen[config.max_tokens * config.top_k]),
      left_(new std::atomic<uint32_t>[config.layout.down_blocks()]),
      tokens_(config.max_tokens * token_bytes_),
      products_(config.max_tokens * config.top_k * product_floats_ * sizeof(float)),
      rounded_(config.max_tokens * config.top_k * rounded_bytes_),
      sums_((config.nodes - 1) * config.max_tokens * config.layout.hidden * sizeof(float)) {
  ids_.reserve(config.max_tokens * config.top_k);
}

void Experts::set_table(const uint64_t* table, size_t layers, size_t experts) {
  table_ = table;
  layers_ = layers;
  experts_ = experts;
  place_.assign(experts, 0);
}

Fault Experts::prepare(const Request& request, NodePhases& phases) {
  if (request.layer >= layers_) return Fault::LAYER;
  if (request.tokens < 1 || request.tokens > config_.max_tokens) return Fault::TOKENS;
  const size_t num_pairs = request.tokens * config_.top_k;
  const uint64_t* blobs = table_ + request.layer * experts_;
  ids_.clear();
  Fault fault = Fault::NONE;
  for (size_t i = 0; i < num_pairs && fault == Fault::NONE; ++i) {
    if (request.ids[i] < 0) continue;
    const size_t id = size_t(request.ids[i]);
    if (id >= experts_) {
      fault = Fault::EXPERT;
    } else if (!blobs[id]) {
      fault = Fault::ABSENT;
    } else if (place_[id]++ == 0) {
      ids_.push_back(uint32_t(id));
    }
  }
  // Each node's in the order of the ids, so that a token's sum does not depend on the other tokens.
  const size_t nodes = config_.nodes;
  std::sort(ids_.begin(), ids_.end(), [nodes](uint32_t a, uint32_t b) {
    return a % nodes != b % nodes ? a % nodes < b % nodes : a < b;
  });
  num_chosen_ = ids_.size();
  size_t first = 0;
  std::fill(ends_, ends_ + nodes, 0);
  for (size_t c = 0; c < num_chosen_; ++c) {
    Chosen& chosen = chosen_[c];
    uint32_t& place = place_[ids_[c]];
    chosen.blob = reinterpret_cast<const uint8_t*>(blobs[ids_[c]]);
    if (blobs[ids_[c]] - mapped_ < mapped_bytes_) read_ahead(blobs[ids_[c]]);
    chosen.first = first;
    chosen.count = 0;
    chosen.left.store(uint32_t(config_.layout.gate_blocks()), std::memory_order_relaxed);
    chosen.ready.store(0, std::memory_order_relaxed);
    first += place;
    place = uint32_t(c) + 1;
    ++ends_[ids_[c] % nodes];
  }
  for (size_t n = 1; n < nodes; ++n) ends_[n] += ends_[n - 1];
  for (size_t i = 0; i < num_pairs && fault == Fault::NONE; ++i) {
    if (request.ids[i] < 0) continue;
    Chosen& chosen = chosen_[place_[size_t(request.ids[i])] - 1];
    order_[chosen.first + chosen.count++] = {uint32_t(i / config_.top_k), request.weights[i]};
  }
  for (const uint32_t id : ids_) place_[id] = 0;
  if (fault != Fault::NONE) return fault;
  request_ = request;
  rounded_tokens_.store(0, std::memory_order_relaxed);
  phases = {};
  uint32_t sharing = 0;
  for (size_t n = 0; n < nodes; ++n) {
    if (n > 0 && num_hidden(n) == 0) continue;
    const size_t hidden_end = num_tokens(n) + num_hidden(n), units = hidden_end + config_.layout.down_blocks();
    if (units > Pool::MAX_UNITS) return Fault::TOKENS;
    phases[n] = {{uint32_t(num_tokens(n)), uint32_t(hidden_end), uint32_t(units)}};
    ++sharing;
  }
  for (size_t b = 0; nodes > 1 && b < config_.layout.down_blocks(); ++b) left_[b].store(sharing, std::memory_order_relaxed);
  return Fault::NONE;
}

void Experts::read_ahead(uintptr_t blob) const {
  constexpr uintptr_t PAGE = 4096;
  const uintptr_t start = blob / PAGE * PAGE;
  madvise(reinterpret_cast<void*>(start), blob + config_.layout.num_bytes() - start, MADV_WILLNEED);
}

void Experts::run(size_t node, uint32_t first, uint32_t count) {
  const size_t blocks = config_.layout.gate_blocks(), tokens = num_tokens(node), num_hidden = this->num_hidden(node);
  prefetch(start_of(node, first), prefetch_);  // while this waits for what the units need
  for (size_t unit = first; unit < first + count && !pool_.failed(); ++unit) {
    const uint8_t* next = unit + 1 < first + count ? start_of(node, unit + 1) : nullptr;
    const size_t hidden = unit - tokens;
    if (unit < tokens) {
      run_token(unit);
    } else if (hidden < num_hidden) {
      run_hidden(chosen_[begin_of(node) + hidden / blocks], hidden % blocks, next);
    } else {
      run_output(node, hidden - num_hidden, next);
    }
  }
}

// The first weights that a unit reads.
const uint8_t* Experts::start_of(size_t node, size_t unit) const {
  const ExpertLayout& layout = config_.layout;
  const size_t blocks = layout.gate_blocks(), num_hidden = this->num_hidden(node), hidden = unit - num_tokens(node);
  const Chosen* mine = &chosen_[begin_of(node)];
  if (unit < num_tokens(node) || num_hidden == 0) return nullptr;
  if (hidden < num_hidden) return mine[hidden / blocks].blob + 2 * (hidden % blocks) * layout.gate_block_bytes();
  return mine->blob + layout.down_offset() + (hidden - num_hidden) * layout.down_block_bytes();
}

void Experts::run_token(size_t token) {
  const size_t hidden = config_.layout.hidden;
  const void* x = (const uint8_t*)request_.x + token * hidden * (config_.number == FLOAT32 ? 4 : 2);
  kernels_.quantise(x, config_.number, hidden, outer_, tokens_.data.get() + token * token_bytes_);
  rounded_tokens_.fetch_add(1, std::memory_order_release);
}

void Experts::run_hidden(Chosen& chosen, size_t block, const uint8_t* next) {
  const size_t tokens = request_.tokens;
  if (!pool_.wait_until([&] { return rounded_tokens_.load(std::memory_order_acquire) == tokens; })) return;
  multiply_hidden(chosen, block, next);
  if (chosen.left.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  for (size_t i = chosen.first; i < chosen.first + chosen.count; ++i) {
    kernels_.quantise(product(i), FLOAT32, product_floats_, inner_, rounded_.data.get() + i * rounded_bytes_);
  }
  chosen.ready.store(1, std::memory_order_release);
}

void Experts::multiply_hidden(const Chosen& chosen, size_t block, const uint8_t* next) {
  const ExpertLayout& layout = config_.layout;
  const size_t bytes = layout.gate_block_bytes();
  const uint8_t* tiles = chosen.blob + 2 * block * bytes;
  const float* bias = layout.bias ? (const float*)(chosen.blob + layout.bias_offset()) + block * ROWS : nullptr;
  const uint8_t* activations[CHUNK];
  alignas(LINE) float gate[CHUNK * ROWS], up[CHUNK * ROWS];
  for (size_t at = 0; at < chosen.count; at += CHUNK) {
    const size_t count = std::min(CHUNK, chosen.count - at);
    for (size_t i = 0; i < count; ++i) activations[i] = rounded_token(order_[chosen.first + at + i].token);
    const size_t prefetch = at == 0 ? prefetch_ : 0;
    kernels_.multiply({tiles, outer_, activations, count, gate, tiles + bytes, prefetch});
    kernels_.multiply({tiles + bytes, outer_, activations, count, up, next, prefetch});
    for (size_t i = 0; i < count; ++i) {
      float *g = gate + i * ROWS, *u = up + i * ROWS;
      for (size_t r = 0; bias && r < ROWS; ++r) {
        g[r] += bias[r];
        u[r] += bias[layout.gate_blocks() * ROWS + r];
      }
      kernels_.gate(config_.gating, config_.limit, g, u, product(chosen.first + at + i) + block * ROWS);
    }
  }
}

void Experts::run_output(size_t node, size_t block, const uint8_t* next) {
  const size_t hidden = config_.layout.hidden, first_row = block * ROWS, rows = std::min(ROWS, hidden - first_row);
  float* y = sums_of(node);
  for (size_t t = 0; t < request_.tokens; ++t) memset(y + t * hidden + first_row, 0, rows * sizeof(float));
  const size_t offset = config_.layout.down_offset() + block * config_.layout.down_block_bytes();
  for (size_t c = begin_of(node); c < ends_[node]; ++c) {
    const Chosen& chosen = chosen_[c];
    if (!pool_.wait_until([&] { return chosen.ready.load(std::memory_order_acquire) != 0; })) return;
    add_output(chosen, block, y, c + 1 < ends_[node] ? chosen_[c + 1].blob + offset : next);
  }
  if (config_.nodes > 1 && left_[block].fetch_sub(1, std::memory_order_acq_rel) == 1) add_sums(block);
}

void Experts::add_sums(size_t block) {
  const size_t hidden = config_.layout.hidden, end = std::min((block + 1) * ROWS, hidden);
  for (size_t n = 1; n < config_.nodes; ++n) {
    if (begin_of(n) == ends_[n]) continue;
    for (size_t t = 0; t < request_.tokens; ++t) {
      for (size_t r = block * ROWS; r < end; ++r) request_.y[t * hidden + r] += sums_of(n)[t * hidden + r];
    }
  }
}

void Experts::add_output(const Chosen& chosen, size_t block, float* y, const uint8_t* next) {
  const ExpertLayout& layout = config_.layout;
  const uint8_t* tiles = chosen.blob + layout.down_offset() + block * layout.down_block_bytes();
  const float* bias = (const float*)(chosen.blob + layout.bias_offset()) + (2 * layout.gate_blocks() + block) * ROWS;
  const size_t rows = std::min(ROWS, layout.hidden - block * ROWS);
  const uint8_t* activations[CHUNK];
  alignas(LINE) float out[CHUNK * ROWS];
  for (size_t at = 0; at < chosen.count; at += CHUNK) {
    const size_t count = std::min(CHUNK, chosen.count - at);
    for (size_t i = 0; i < count; ++i) activations[i] = rounded_product(chosen.first + at + i);
    kernels_.multiply({tiles, inner_, activations, count, out, next, at == 0 ? prefetch_ : 0});
    for (size_t i = 0; i < count; ++i) {
      const Pair& pair = order_[chosen.first + at + i];
      float* sum = y + pair.token * layout.hidden + block * ROWS;
      for (size_t r = 0; r < rows; ++r) {
        const float value = layout.bias ? out[i * ROWS + r] + bias[r] : out[i * ROWS + r];
        sum[r] += pair.weight * value;
      }
    }
  }
}

}  // namespace strata
