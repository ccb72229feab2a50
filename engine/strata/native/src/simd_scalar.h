// Sixteen lanes in plain C++: for any CPU.
#pragma once

#include <cstdint>
#include <cstring>

#include "numbers.h"

namespace strata::VARIANT {
namespace {

struct Floats { float v[16]; };
struct Ints { int32_t v[16]; };
struct Line { uint8_t v[64]; };
using Sums = Ints;

constexpr size_t MAX_VECTORS = 2;  // activations multiplied in one pass over the codes

#define EACH for (int i = 0; i < 16; ++i)

inline Line load_line(const uint8_t* p) { Line out; memcpy(out.v, p, 64); return out; }
inline Line low_nibbles(Line a) { for (auto& b : a.v) b &= 15; return a; }
inline Line high_nibbles(Line a) { for (auto& b : a.v) b >>= 4; return a; }
inline Line lookup(const uint8_t* table, Line a) { for (auto& b : a.v) b = table[b]; return a; }

inline Ints dot_bytes(Ints sum, const Line& codes, const int8_t* x) {
  EACH for (int j = 0; j < 4; ++j) sum.v[i] += codes.v[4 * i + j] * x[j];
  return sum;
}
inline Sums dot_small(Sums sum, const Line& codes, const int8_t* x) { return dot_bytes(sum, codes, x); }
inline Ints total(const Sums& sums) { return sums; }
inline Ints add(Ints a, const Ints& b) { EACH a.v[i] += b.v[i]; return a; }
inline Ints times_128(Ints a) { EACH a.v[i] *= 128; return a; }

inline Floats splat(float x) { Floats out; EACH out.v[i] = x; return out; }
inline Floats load_floats(const float* p) { Floats out; memcpy(out.v, p, 64); return out; }
inline void store(float* p, const Floats& a) { memcpy(p, a.v, 64); }
inline Floats to_floats(const Ints& a) { Floats out; EACH out.v[i] = float(a.v[i]); return out; }
inline Floats mul(Floats a, const Floats& b) { EACH a.v[i] *= b.v[i]; return a; }
inline Floats add(Floats a, const Floats& b) { EACH a.v[i] += b.v[i]; return a; }
inline Floats sub(Floats a, const Floats& b) { EACH a.v[i] -= b.v[i]; return a; }
inline Floats div(Floats a, const Floats& b) { EACH a.v[i] /= b.v[i]; return a; }
inline Floats min(Floats a, const Floats& b) { EACH a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i]; return a; }
inline Floats max(Floats a, const Floats& b) { EACH a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i]; return a; }
// a < b ? x : y
inline Floats select_less(const Floats& a, const Floats& b, Floats x, const Floats& y) {
  EACH x.v[i] = a.v[i] < b.v[i] ? x.v[i] : y.v[i];
  return x;
}
inline Floats fma(const Floats& a, const Floats& b, Floats c) { EACH c.v[i] += a.v[i] * b.v[i]; return c; }
inline Floats fnma(const Floats& a, const Floats& b, Floats c) { EACH c.v[i] -= a.v[i] * b.v[i]; return c; }

inline Floats bytes_to_floats(const uint8_t* p) { Floats out; EACH out.v[i] = p[i]; return out; }
inline Floats halves_to_floats(const uint8_t* p) {
  Floats out;
  EACH { uint16_t h; memcpy(&h, p + 2 * i, 2); out.v[i] = half_to_float(h); }
  return out;
}
inline Floats exponents_to_floats(const uint8_t* p) {
  Floats out;
  EACH out.v[i] = from_bits(p[i] ? uint32_t(p[i]) << 23 : 1u << 22);
  return out;
}
inline uint32_t word(const Line& a, int i) { uint32_t out; memcpy(&out, a.v + 4 * i, 4); return out; }
inline Floats low_bf16(const Line& a) { Floats out; EACH out.v[i] = from_bits(word(a, i) << 16); return out; }
inline Floats high_bf16(const Line& a) {
  Floats out;
  EACH out.v[i] = from_bits(word(a, i) & 0xFFFF0000u);
  return out;
}
inline uint64_t fold(const Line& a) { uint64_t out; memcpy(&out, a.v, 8); return out; }
inline Line exclusive_or(Line a, const Line& b) { for (int i = 0; i < 64; ++i) a.v[i] ^= b.v[i]; return a; }

#undef EACH

}  // namespace
}  // namespace strata::VARIANT
