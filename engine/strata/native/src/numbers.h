// Numbers of 16 bits to float32 and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace strata {

enum Number : int32_t { FLOAT32, BFLOAT16, FLOAT16, NUM_NUMBERS };

// In each unit by itself: a unit's instructions must not get into another one by way of the linker.
namespace {

inline float from_bits(uint32_t bits) {
  float out;
  memcpy(&out, &bits, 4);
  return out;
}

inline float half_to_float(uint16_t half) {
  const uint32_t rest = uint32_t(half & 0x7FFF) << 13;
  // The exponent's bias goes from 15 to 127 by a product, which is right for subnormal numbers too.
  const float magnitude = rest >= 0x7C00u << 13 ? from_bits(rest | 0x7F800000) : from_bits(rest) * 0x1p112f;
  return half & 0x8000 ? -magnitude : magnitude;
}

// Number `i` of an array.
inline float widen(const void* numbers, size_t i, Number number) {
  if (number == FLOAT32) return ((const float*)numbers)[i];
  const uint16_t narrow = ((const uint16_t*)numbers)[i];
  return number == BFLOAT16 ? from_bits(uint32_t(narrow) << 16) : half_to_float(narrow);
}

// The smallest fp16 that is not below `value` >= 0; the largest one for what lies beyond.
inline uint16_t half_above(float value) {
  if (!(value < 65504)) return 0x7BFF;
  if (value < 0x1p-14f) {  // subnormal: whole steps of 2^-24
    const float steps = value * 0x1p24f;
    const uint32_t whole = uint32_t(steps);
    return uint16_t(whole + (float(whole) < steps));
  }
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return uint16_t(((bits - (112u << 23)) >> 13) + ((bits & 0x1FFF) != 0));
}

}  // namespace
}  // namespace strata
