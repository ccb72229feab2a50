// A token's experts: the largest scores and their softmax, as kernels/router/reference.py has it; included by each
// variant.
//
// Scores are compared as integers in the same order, so that the choice is the GPU's to the bit, ties included: of equal
// scores the lower expert comes first, what is not a number is below all. The largest of each 16 are kept, so that a
// choice looks at one of these per 16 experts, and at 16 experts.
#pragma once

#include <climits>
#include <cstring>

#include "elementwise.h"

namespace strata::VARIANT {
namespace {

constexpr size_t KEYS = 16;  // whose largest is kept

inline float number_or_least(float score) { return score == score ? score + 0.0f : -__builtin_inff(); }  // 0 for -0

inline int32_t in_order(int32_t bits) { return bits ^ (bits >> 31 & 0x7FFFFFFF); }  // and back

inline int32_t largest_key(const int32_t* keys) {
  int32_t most[KEYS];
  memcpy(most, keys, sizeof most);
#pragma GCC unroll 4
  for (size_t half = KEYS / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) most[i] = most[i] > most[i + half] ? most[i] : most[i + half];
  }
  return most[0];
}

inline float sum_of_exponentials(const float* scores, size_t count, float top) {
  float sums[KEYS] = {};
  size_t at = 0;
  for (; at + KEYS <= count; at += KEYS) {
    for (size_t i = 0; i < KEYS; ++i) sums[i] += exponential(number_or_least(scores[at + i]) - top);
  }
  for (; at < count; ++at) sums[at % KEYS] += exponential(number_or_least(scores[at]) - top);
#pragma GCC unroll 4
  for (size_t half = KEYS / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

void route(const float* scores, const RouteConfig& config, int32_t* workspace, int32_t* ids, float* shares) {
  const size_t blocks = ceil_div(config.experts, KEYS);
  int32_t *keys = workspace, *most = workspace + blocks * KEYS;
  for (size_t i = 0; i < config.experts; ++i) {
    const float score = number_or_least(scores[i]);
    int32_t bits;
    memcpy(&bits, &score, sizeof bits);
    keys[i] = in_order(bits);
  }
  for (size_t i = config.experts; i < blocks * KEYS; ++i) keys[i] = INT_MIN;
  for (size_t b = 0; b < blocks; ++b) most[b] = largest_key(keys + b * KEYS);
  float top = 0, total = 0;
  for (size_t k = 0; k < config.top_k; ++k) {
    size_t block = 0;
    for (size_t b = 1; b < blocks; ++b) block = most[b] > most[block] ? b : block;
    size_t expert = block * KEYS;
    while (keys[expert] != most[block]) ++expert;
    const float score = from_bits(uint32_t(in_order(most[block])));
    keys[expert] = INT_MIN;
    most[block] = largest_key(keys + block * KEYS);
    if (k == 0) top = score;
    ids[k] = int32_t(expert);
    shares[k] = exponential(score - top);
    total += shares[k];
  }
  if (!config.normalize) total = sum_of_exponentials(scores, config.experts, top);
  for (size_t k = 0; k < config.top_k; ++k) shares[k] /= total;
}

}  // namespace
}  // namespace strata::VARIANT
