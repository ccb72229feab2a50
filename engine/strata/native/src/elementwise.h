// What is done to single numbers: rounding activations, gating, reading memory; included by each variant.
//
// Loops over 16 lanes, which compilers turn into the variant's vectors. Numbers that are not finite stay visible: a
// group with one has a scale of NaN, so that no wrong but plausible result comes out of it.
#pragma once

#include <cstring>

#include "kernels.h"

namespace strata::VARIANT {
namespace {

constexpr float ROUNDER = 12582912.0f;  // 1.5 * 2^23: adding it rounds to the nearest integer, ties to even
constexpr float ALPHA = 1.702f;         // of clamped SwiGLU: x * sigmoid(1.702 x) is near GELU

inline float largest(const float* x, float& poison) {
  float most[16] = {}, wrong[16] = {};
  for (size_t half = 0; half < GROUP; half += 16) {
    for (int i = 0; i < 16; ++i) {
      const float magnitude = x[half + i] < 0 ? -x[half + i] : x[half + i];
      most[i] = magnitude > most[i] ? magnitude : most[i];
      wrong[i] += x[half + i] * 0.0f;
    }
  }
  float out = 0;
  poison = 0;
  for (int i = 0; i < 16; ++i) {
    out = most[i] > out ? most[i] : out;
    poison += wrong[i];
  }
  return out;
}

void quantise(const float* values, const ActivationLayout& layout, uint8_t* out) {
  const size_t groups = layout.groups, digits = layout.digits;
  if (layout.format == BF16) {
    memcpy(out, values, groups * GROUP * sizeof(float));
    return;
  }
  const float limit = digits == 2 ? 127 * 128 : 127;
  float* steps = (float*)(out + digits * groups * GROUP);
  for (size_t g = 0; g < groups; ++g) {
    const float* x = values + g * GROUP;
    int8_t *first = (int8_t*)out + g * GROUP, *second = first + groups * GROUP;
    float poison;
    const float most = largest(x, poison);
    // Below the smallest normal number the quotient would overflow; such a group is zero.
    const float inverse = most > 0x1p-100f && poison == 0 ? limit / most : 0;
    int32_t rounded[GROUP], sum = 0;
    for (size_t i = 0; i < GROUP; ++i) rounded[i] = int32_t((poison == 0 ? x[i] : 0) * inverse + ROUNDER - ROUNDER);
    for (size_t i = 0; i < GROUP; ++i) sum += rounded[i];
    if (digits == 2) {
      for (size_t i = 0; i < GROUP; ++i) {
        const int32_t high = (rounded[i] + 64) >> 7;
        first[i] = int8_t(high);
        second[i] = int8_t(rounded[i] - 128 * high);
      }
    } else {
      for (size_t i = 0; i < GROUP; ++i) first[i] = int8_t(rounded[i]);
    }
    const float step = (inverse > 0 ? most / limit : 0) + poison;
    steps[g] = step;
    steps[groups + g] = step * float(sum);
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
