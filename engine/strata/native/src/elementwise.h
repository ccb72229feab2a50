// What is done to single numbers: rounding activations, gating, reading memory; included by each variant.
//
// Loops over 16 lanes, which compilers turn into the variant's vectors. Numbers that are not finite stay visible: a
// group with one has a scale of NaN, so that no wrong but plausible result comes out of it.
#pragma once

#include <cstring>

#include "kernels.h"
#include "numbers.h"

namespace strata::VARIANT {
namespace {

constexpr float ROUNDER = 12582912.0f;  // 1.5 * 2^23: adding it rounds to the nearest integer, ties to even
constexpr float ALPHA = 1.702f;         // of clamped SwiGLU: x * sigmoid(1.702 x) is near GELU

// Widens `count` numbers from the `first` on into a group, zeros behind them.
inline void load_group(const void* numbers, Number number, size_t first, size_t count, float* out) {
  if (count == GROUP && number == FLOAT32) {
    memcpy(out, (const float*)numbers + first, GROUP * sizeof(float));
  } else if (count == GROUP && number == BFLOAT16) {
    const uint16_t* x = (const uint16_t*)numbers + first;
    for (size_t i = 0; i < GROUP; ++i) out[i] = from_bits(uint32_t(x[i]) << 16);
  } else {
    for (size_t i = 0; i < GROUP; ++i) out[i] = i < count ? widen(numbers, first + i, number) : 0;
  }
}

// The largest magnitude's bits; what is not finite has larger ones than any number.
inline int32_t largest(const float* x) {
  int32_t most[GROUP];
  memcpy(most, x, sizeof most);
  for (size_t i = 0; i < GROUP; ++i) most[i] &= 0x7FFFFFFF;
#pragma GCC unroll 5
  for (size_t half = GROUP / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) most[i] = most[i] > most[i + half] ? most[i] : most[i + half];
  }
  return most[0];
}

inline void quantise_group(const float* x, size_t g, const ActivationLayout& layout, uint8_t* out) {
  const size_t groups = layout.groups;
  int8_t *first = (int8_t*)out + g * GROUP, *second = first + groups * GROUP;
  float* steps = (float*)(out + layout.digits * groups * GROUP);
  const int32_t most = largest(x);
  if (most >= 0x7F800000) {  // infinity or NaN
    memset(first, 0, GROUP);
    if (layout.digits == 2) memset(second, 0, GROUP);
    steps[g] = steps[groups + g] = __builtin_nanf("");
    return;
  }
  const float limit = layout.digits == 2 ? 127 * 128 : 127, high = from_bits(uint32_t(most));
  // Where the quotient would overflow, the group is zero.
  const float inverse = high > 0x1p-100f ? limit / high : 0;
  int32_t rounded[GROUP], sum[GROUP];
  for (size_t i = 0; i < GROUP; ++i) rounded[i] = sum[i] = int32_t(x[i] * inverse + ROUNDER - ROUNDER);
  if (layout.digits == 2) {
    for (size_t i = 0; i < GROUP; ++i) {
      const int32_t upper = (rounded[i] + 64) >> 7;
      first[i] = int8_t(upper);
      second[i] = int8_t(rounded[i] - 128 * upper);
    }
  } else {
    for (size_t i = 0; i < GROUP; ++i) first[i] = int8_t(rounded[i]);
  }
#pragma GCC unroll 5
  for (size_t half = GROUP / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) sum[i] += sum[i + half];
  }
  steps[g] = inverse > 0 ? high / limit : 0;
  steps[groups + g] = steps[g] * float(sum[0]);
}

void quantise(const void* numbers, Number number, size_t count, const ActivationLayout& layout, uint8_t* out) {
  for (size_t g = 0; g < layout.groups; ++g) {
    const size_t first = g * GROUP, left = count - first;
    if (layout.format == BF16) {
      load_group(numbers, number, first, left < GROUP ? left : GROUP, (float*)out + first);
    } else {
      float x[GROUP];
      load_group(numbers, number, first, left < GROUP ? left : GROUP, x);
      quantise_group(x, g, layout, out);
    }
  }
}

// e^x to 2e-7; NaN stays NaN.
inline float exponential(float x) {
  x = x > 88 ? 88 : x < -87 ? -87 : x;
  const float n = x * 1.44269504f + ROUNDER - ROUNDER;
  const float r = x - n * 0.693359375f + n * 2.12194440e-4f;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1;
  p = p * r + 1;
  const uint32_t bits = uint32_t(int32_t(n == n ? n : 0) + 127) << 23;
  float power;
  memcpy(&power, &bits, 4);
  return p * power;
}

void gate(Gating gating, float limit, const float* gate, const float* up, float* out) {
  if (gating == SILU) {
    for (int i = 0; i < 16; ++i) out[i] = gate[i] / (1 + exponential(-gate[i])) * up[i];
    return;
  }
  for (int i = 0; i < 16; ++i) {
    const float g = gate[i] > limit ? limit : gate[i];
    const float u = up[i] > limit ? limit : up[i] < -limit ? -limit : up[i];
    out[i] = g / (1 + exponential(-ALPHA * g)) * (u + 1);
  }
}

uint64_t read(const uint8_t* data, size_t bytes) {
  Line sum[4] = {load_line(data), load_line(data), load_line(data), load_line(data)};
  for (size_t at = 0; at + 4 * LINE <= bytes; at += 4 * LINE) {
    for (size_t i = 0; i < 4; ++i) sum[i] = exclusive_or(sum[i], load_line(data + at + i * LINE));
  }
  return fold(exclusive_or(exclusive_or(sum[0], sum[1]), exclusive_or(sum[2], sum[3])));
}

}  // namespace
}  // namespace strata::VARIANT
