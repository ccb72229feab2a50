// What each variant of the kernels offers. Everything else is compiled for any x86-64, so only what lies behind these
// pointers may use wider instructions.
#pragma once

#include "layout.h"
#include "numbers.h"

namespace strata {

// Activations as a row block takes them. For integer formats: `digits` times int8 [groups * 32], then float [groups]
// scales, then float [groups] sums of the rounded values. With two digits a value is scale * (128 * first + second), 15
// bits with the sign. For bf16 weights: float [groups * 32], as they are.
struct ActivationLayout {
  Format format;
  size_t groups;
  size_t digits;  // 1 or 2

  size_t num_bytes() const {
    const size_t bytes = format == BF16 ? groups * GROUP * sizeof(float) : groups * (digits * GROUP + 2 * sizeof(float));
    return ceil_div(bytes, LINE) * LINE;
  }
};

// One row block times some tokens' activations.
struct RowBlock {
  const uint8_t* tiles;
  ActivationLayout layout;           // of its inputs
  const uint8_t* const* activations;  // of each token
  size_t tokens;
  float* out;           // [tokens][16]
  const uint8_t* next;  // what will be read after this block; null where that is not known
  size_t prefetch;      // bytes ahead of the reads that are asked for; 0: the hardware's prefetchers do it alone
};

enum Gating : int32_t { SILU, CLAMPED_SWIGLU, NUM_GATINGS };

// The parts of an int4 matrix, as strata.quant has them.
struct Int4Parts {
  uint8_t *codes, *scales, *mins;
  uint16_t* super;
};

// Bytes that rounding a matrix of that many columns works in.
constexpr size_t pack_workspace_bytes(size_t cols) { return ceil_div(cols, 16 * GROUP) * 16 * (GROUP + 5) * sizeof(float); }

// How tokens find their experts. `normalize`: shares are of the chosen ones' sum, not of all experts'.
struct RouteConfig {
  size_t experts, top_k;
  bool normalize;

  // int32 that choosing for one token works in.
  size_t workspace() const { return ceil_div(experts, 16) * 17; }
};

struct Kernels {
  const char* name;
  void (*multiply)(const RowBlock& block);
  // `count` numbers, and zeros up to whole groups, as activations.
  void (*quantise)(const void* numbers, Number number, size_t count, const ActivationLayout& layout, uint8_t* out);
  // 16 values each: SILU is silu(gate) * up, CLAMPED_SWIGLU that of kernels/clamped_swiglu.
  void (*gate)(Gating gating, float limit, const float* gate, const float* up, float* out);
  // Reads whole lines and returns what keeps a compiler from leaving it out: how fast memory is.
  uint64_t (*read)(const uint8_t* data, size_t bytes);
  // Rounds a matrix [rows, cols] of finite numbers; `workspace` is aligned to 64 bytes.
  void (*pack_int4)(const void* numbers, Number number, size_t rows, size_t cols, uint8_t* workspace,
                    const Int4Parts& parts);
  // One token's experts [top_k], likeliest first, and its shares of them, by its scores [experts].
  void (*route)(const float* scores, const RouteConfig& config, int32_t* workspace, int32_t* ids, float* shares);
};

enum Variant : int32_t { SCALAR, AVX2, AVX512, AVX512_VNNI, NUM_VARIANTS };

// Null where this CPU, its operating system or this build lacks what the variant needs.
const Kernels* kernels_of(Variant variant);
Variant best_variant();

}  // namespace strata
