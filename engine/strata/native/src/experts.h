// The routed experts of a layer for some tokens: y[t] = sum over k of weight[t, k] * expert[id[t, k]](x[t]).
//
// One job, in units that begin in this order:
//   tokens   rounds one token's activations
//   hidden   a row block of gate and one of up of one expert, for its tokens, and their gated product; the last unit of
//            an expert to end rounds its products
//   output   a row block of down of all experts, one after another, into the tokens' sums
// so memory is read as long ascending streams, no unit waits for more than the units just before it, there is no barrier,
// and each number is summed in the order of the experts' ids, whatever the threads did.
//
// Where cores and experts are spread over several nodes, expert `id` lies in the memory of node id % nodes and is computed
// there: each node has hidden and output units for its experts, the tokens are the first node's, and whoever is the last
// to end the output units of a row block adds the nodes' sums up, in order.
#pragma once

#include <memory>
#include <vector>

#include "kernels.h"
#include "pool.h"

namespace strata {

struct ExpertsConfig {
  ExpertLayout layout;
  Gating gating;
  float limit;  // of CLAMPED_SWIGLU
  size_t digits;
  Number number;  // of x
  size_t max_tokens, top_k;
  size_t prefetch;  // bytes
  size_t nodes;
};

// What the caller brings.
struct Request {
  size_t layer, tokens;
  const void* x;         // [tokens, hidden]
  const int32_t* ids;    // [tokens, top_k]; negative: not to be computed here
  const float* weights;  // [tokens, top_k]
  float* y;              // [tokens, hidden]
};

enum class Fault : int32_t { NONE, LAYER, TOKENS, EXPERT, ABSENT, KIND, FAILED };

class Experts : public Work {
 public:
  Experts(const ExpertsConfig& config, const Kernels& kernels, Pool& pool);

  // Host addresses [layers, experts] of the blobs, 0 where an expert is not in host memory. Stays the caller's.
  void set_table(const uint64_t* table, size_t layers, size_t experts);

  size_t top_k() const { return config_.top_k; }
  // Of a request, at most.
  size_t max_pairs() const { return config_.max_tokens * config_.top_k; }

  // Between two jobs: how far ahead of the reads memory is asked for; see RowBlock.
  void set_prefetch(size_t bytes) { prefetch_ = bytes; }

  // Experts whose blobs lie in these bytes are mapped from a file: all that a request needs are read ahead at once.
  void set_mapped(const uint8_t* begin, size_t bytes) {
    mapped_ = reinterpret_cast<uintptr_t>(begin);
    mapped_bytes_ = bytes;
  }

  // Orders a request's tokens by experts, and tells its phases.
  Fault prepare(const Request& request, NodePhases& phases);

  void run(size_t node, uint32_t first, uint32_t count) override;
  void finish(bool) override {}

 private:
  // One expert that some tokens of the request take.
  struct alignas(64) Chosen {
    const uint8_t* blob;
    size_t first, count;               // of its tokens, in order_
    std::atomic<uint32_t> left{0};     // hidden units that have not ended
    std::atomic<uint32_t> ready{0};    // whether its products are rounded
  };
  struct Pair {
    uint32_t token;
    float weight;
  };
  struct Buffer {
    explicit Buffer(size_t bytes);
    std::unique_ptr<uint8_t, void (*)(void*)> data;
  };

  void run_token(size_t token);
  void read_ahead(uintptr_t blob) const;
  const uint8_t* start_of(size_t node, size_t unit) const;
  void run_hidden(Chosen& chosen, size_t block, const uint8_t* next);
  void run_output(size_t node, size_t block, const uint8_t* next);
  void multiply_hidden(const Chosen& chosen, size_t block, const uint8_t* next);
  void add_output(const Chosen& chosen, size_t block, float* y, const uint8_t* next);
  void add_sums(size_t block);
  size_t num_tokens(size_t node) const { return node == 0 ? request_.tokens : 0; }
  size_t num_hidden(size_t node) const { return (ends_[node] - begin_of(node)) * config_.layout.gate_blocks(); }
  size_t begin_of(size_t node) const { return node == 0 ? 0 : ends_[node - 1]; }
  float* sums_of(size_t node) const {
    const size_t floats = config_.max_tokens * config_.layout.hidden;
    return node == 0 ? request_.y : (float*)sums_.data.get() + (node - 1) * floats;
  }
  const uint8_t* rounded_token(size_t token) const { return tokens_.data.get() + token * token_bytes_; }
  float* product(size_t pair) const { return (float*)products_.data.get() + pair * product_floats_; }
  const uint8_t* rounded_product(size_t pair) const { return rounded_.data.get() + pair * rounded_bytes_; }

  const ExpertsConfig config_;
  const Kernels& kernels_;
  Pool& pool_;
  const ActivationLayout outer_, inner_;  // of x, and of the products
  const size_t token_bytes_, rounded_bytes_, product_floats_;

  size_t prefetch_;
  uintptr_t mapped_ = 0;
  size_t mapped_bytes_ = 0;
  const uint64_t* table_ = nullptr;
  size_t layers_ = 0, experts_ = 0;

  Request request_{};
  std::vector<Pair> order_;      // tokens by expert
  std::vector<uint32_t> place_;  // of each expert: its number among the chosen, plus one
  std::vector<uint32_t> ids_;
  std::unique_ptr<Chosen[]> chosen_;
  size_t num_chosen_ = 0;
  size_t ends_[MAX_NODES]{};  // of each node's experts, among the chosen
  std::unique_ptr<std::atomic<uint32_t>[]> left_;  // of each output row block: nodes that have not ended it
  alignas(64) std::atomic<size_t> rounded_tokens_{0};
  Buffer tokens_, products_, rounded_, sums_;  // sums: of all nodes but the first, which has the request's y
};

}  // namespace strata
