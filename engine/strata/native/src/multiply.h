// A row block times the activations of some tokens; included by each variant behind its lanes (simd_*.h).
//
// Lane = row. For each group of 32 inputs the codes are multiplied by the rounded activations in integers, then
//
//   w = scale * code - low        out += scale * step * dot(code, x) - low * step * sum(x)
//
// with low = minimum (int4), 128 * scale (int8) or 12 * scale (mxfp4, whose doubled numbers are coded from 0 to 24). The
// arithmetic of a token does not depend on how many others are multiplied with it. Every line of a tile is touched in
// ascending order, its header first: out of order costs up to 2.5 times (measured on a 16-core Xeon and a Zen 4).
#pragma once

#include "kernels.h"

namespace strata::VARIANT {
namespace {

// What is read ahead of position `at` of a block.
struct Ahead {
  const uint8_t *tiles, *next;
  size_t bytes, distance;

  explicit Ahead(const RowBlock& block)
      : tiles(block.tiles), next(block.next), bytes(block_bytes(block.layout.format, block.layout.groups)),
        distance(block.prefetch) {}

  // GCC takes a function that only prefetches for one without effect and leaves out its calls, unless it is always inline.
  template <size_t LINES>
  __attribute__((always_inline)) void touch(const uint8_t* at) const {
    if (!distance) return;
    const size_t there = size_t(at - tiles) + distance;
    const uint8_t* p = there < bytes ? tiles + there : next ? next + (there - bytes) : tiles;
    for (size_t i = 0; i < LINES; ++i) __builtin_prefetch(p + i * LINE);
  }
};

inline void touch_header(const uint8_t* header, size_t bytes) {
  for (size_t i = 0; i < bytes; i += LINE) (void)*(const volatile uint8_t*)(header + i);
}

struct Int4 {
  static constexpr Format FORMAT = INT4;
  static Floats scale(const uint8_t* header, size_t g) { return bytes_to_floats(header + 192 + g * ROWS); }
  static Floats low(const uint8_t* header, size_t g, const Floats&) { return bytes_to_floats(header + 64 + g * ROWS); }
  static Floats finish(const uint8_t* header, const Floats& high, const Floats& low, const Floats& sum) {
    const Floats d = halves_to_floats(header), dmin = halves_to_floats(header + 32);
    return fnma(dmin, low, fma(d, high, sum));
  }
  static Line decode(const Line& nibbles) { return nibbles; }
};

struct Int8 {
  static constexpr Format FORMAT = INT8;
  static Floats scale(const uint8_t* header, size_t g) { return halves_to_floats(header + g * ROWS * 2); }
  static Floats low(const uint8_t*, size_t, const Floats& scale) { return mul(scale, splat(128)); }
  static Floats finish(const uint8_t*, const Floats& high, const Floats& low, const Floats& sum) {
    return add(sum, sub(high, low));
  }
};

struct Mxfp4 {
  static constexpr Format FORMAT = MXFP4;
  static Floats scale(const uint8_t* header, size_t g) {
    return mul(exponents_to_floats(header + g * ROWS), splat(0.5f));
  }
  static Floats low(const uint8_t*, size_t, const Floats& scale) { return mul(scale, splat(12)); }
  static Floats finish(const uint8_t*, const Floats& high, const Floats& low, const Floats& sum) {
    return add(sum, sub(high, low));
  }
  // 12 + twice the number: 0, 0.5, 1, 1.5, 2, 3, 4, 6, and the same below zero.
  static constexpr uint8_t DOUBLED[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
  static Line decode(const Line& nibbles) { return lookup(DOUBLED, nibbles); }
};

// Dot products of a group's codes with V vectors of 32 values.
template <class F, size_t V>
inline void dot(const uint8_t* codes, const int8_t* const* x, Ints* out) {
  if constexpr (F::FORMAT == INT8) {
    for (size_t v = 0; v < V; ++v) out[v] = Ints{};
#pragma GCC unroll 8
    for (size_t i = 0; i < 8; ++i) {
      const Line line = load_line(codes + i * LINE);
#pragma GCC unroll 4
      for (size_t v = 0; v < V; ++v) out[v] = dot_bytes(out[v], line, x[v] + 4 * i);
    }
  } else {
    Sums first[V], second[V];
    for (size_t v = 0; v < V; ++v) first[v] = second[v] = Sums{};
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; ++i) {
      const Line line = load_line(codes + i * LINE);
      const Line low = F::decode(low_nibbles(line)), high = F::decode(high_nibbles(line));
#pragma GCC unroll 4
      for (size_t v = 0; v < V; ++v) {
        first[v] = dot_small(first[v], low, x[v] + 8 * i);
        second[v] = dot_small(second[v], high, x[v] + 8 * i + 4);
      }
    }
    for (size_t v = 0; v < V; ++v) out[v] = add(total(first[v]), total(second[v]));
  }
}

// T tokens of D digits each.
template <class F, size_t T, size_t D>
void multiply_integers(const RowBlock& block, const uint8_t* const* activations, float* out, const Ahead& ahead) {
  constexpr size_t LINES = group_bytes(F::FORMAT) / LINE;
  const size_t groups = block.layout.groups;
  Floats sum[T];
  for (size_t t = 0; t < T; ++t) sum[t] = splat(0);
  const uint8_t* p = block.tiles;
  for (size_t first = 0; first < groups; first += TILE_GROUPS) {
    const uint8_t* header = p;
    touch_header(header, HEADER_BYTES[F::FORMAT]);
    ahead.touch<HEADER_BYTES[F::FORMAT] / LINE>(p);
    p += HEADER_BYTES[F::FORMAT];
    Floats high[T], low[T];
    for (size_t t = 0; t < T; ++t) high[t] = low[t] = splat(0);
    const size_t end = first + TILE_GROUPS < groups ? first + TILE_GROUPS : groups;
    for (size_t g = first; g < end; ++g, p += group_bytes(F::FORMAT)) {
      ahead.touch<LINES>(p);
      const int8_t* x[T * D];
      for (size_t v = 0; v < T * D; ++v) {
        x[v] = (const int8_t*)activations[v / D] + (v % D * groups + g) * GROUP;
      }
      Ints dots[T * D];
      dot<F, T * D>(p, x, dots);
      const Floats scale = F::scale(header, g - first), lowest = F::low(header, g - first, scale);
      for (size_t t = 0; t < T; ++t) {
        const float* steps = (const float*)(activations[t] + D * groups * GROUP);
        Ints whole = dots[t * D];
        if constexpr (D == 2) whole = add(times_128(whole), dots[t * D + 1]);
        high[t] = fma(mul(scale, splat(steps[g])), to_floats(whole), high[t]);
        low[t] = fma(lowest, splat(steps[groups + g]), low[t]);
      }
    }
    for (size_t t = 0; t < T; ++t) sum[t] = F::finish(header, high[t], low[t], sum[t]);
  }
  for (size_t t = 0; t < T; ++t) store(out + t * ROWS, sum[t]);
}

// bf16 weights times float activations: a line has two inputs of 16 rows.
template <size_t T>
void multiply_bf16(const RowBlock& block, const uint8_t* const* activations, float* out, const Ahead& ahead) {
  Floats even[T], odd[T];
  for (size_t t = 0; t < T; ++t) even[t] = odd[t] = splat(0);
  const uint8_t* p = block.tiles;
  for (size_t g = 0; g < block.layout.groups; ++g) {
    ahead.touch<group_bytes(BF16) / LINE>(p);
#pragma GCC unroll 4
    for (size_t i = 0; i < GROUP; i += 2, p += LINE) {
      const Line line = load_line(p);
      const Floats low = low_bf16(line), high = high_bf16(line);
#pragma GCC unroll 4
      for (size_t t = 0; t < T; ++t) {
        const float* x = (const float*)activations[t] + g * GROUP + i;
        even[t] = fma(low, splat(x[0]), even[t]);
        odd[t] = fma(high, splat(x[1]), odd[t]);
      }
    }
  }
  for (size_t t = 0; t < T; ++t) store(out + t * ROWS, add(even[t], odd[t]));
}

template <class F, size_t D, size_t T>
void multiply_tokens(const RowBlock& block, const uint8_t* const* activations, float* out, const Ahead& ahead) {
  if constexpr (F::FORMAT == BF16) {
    multiply_bf16<T>(block, activations, out, ahead);
  } else {
    multiply_integers<F, T, D>(block, activations, out, ahead);
  }
}

template <class F, size_t D>
void multiply_format(const RowBlock& block) {
  Ahead ahead(block);
  for (size_t t = 0; t < block.tokens;) {
    const size_t left = block.tokens - t;
    const uint8_t* const* activations = block.activations + t;
    float* out = block.out + t * ROWS;
    if constexpr (MAX_VECTORS / D >= 4) {
      if (left >= 4) {
        multiply_tokens<F, D, 4>(block, activations, out, ahead);
        t += 4;
        ahead.distance = 0;  // the block lies in the cache now
        continue;
      }
    }
    if constexpr (MAX_VECTORS / D >= 2) {
      if (left >= 2) {
        multiply_tokens<F, D, 2>(block, activations, out, ahead);
        t += 2;
        ahead.distance = 0;
        continue;
      }
    }
    multiply_tokens<F, D, 1>(block, activations, out, ahead);
    t += 1;
    ahead.distance = 0;
  }
}

struct Bf16 {
  static constexpr Format FORMAT = BF16;
};

template <class F>
void multiply_digits(const RowBlock& block) {
  if (block.layout.digits == 2) {
    multiply_format<F, 2>(block);
  } else {
    multiply_format<F, 1>(block);
  }
}

void multiply(const RowBlock& block) {
  switch (block.layout.format) {
    case INT4: return multiply_digits<Int4>(block);
    case INT8: return multiply_digits<Int8>(block);
    case MXFP4: return multiply_digits<Mxfp4>(block);
    default: return multiply_format<Bf16, 1>(block);
  }
}

}  // namespace
}  // namespace strata::VARIANT
