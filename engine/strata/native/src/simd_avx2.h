// Sixteen lanes in two 256-bit registers: AVX2, FMA, F16C.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace strata::VARIANT {
namespace {

struct Floats { __m256 a, b; };
struct Ints { __m256i a, b; };
using Line = Ints;
using Sums = Ints;  // of 16 bits each

constexpr size_t MAX_VECTORS = 2;  // activations multiplied in one pass over the codes: 16 registers hold no more

inline __m256i four(const int8_t* x) { int32_t word; memcpy(&word, x, 4); return _mm256_set1_epi32(word); }

inline Line load_line(const uint8_t* p) {
  Line out{_mm256_load_si256((const __m256i*)p), _mm256_load_si256((const __m256i*)(p + 32))};
  asm("" : "+x"(out.a), "+x"(out.b));  // or the compiler loads it twice, once for each half of the nibbles
  return out;
}
inline Line low_nibbles(Line v) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(v.a, mask), _mm256_and_si256(v.b, mask)};
}
inline Line high_nibbles(Line v) { return low_nibbles({_mm256_srli_epi16(v.a, 4), _mm256_srli_epi16(v.b, 4)}); }
inline Line lookup(const uint8_t* table, Line v) {
  const __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)table));
  return {_mm256_shuffle_epi8(t, v.a), _mm256_shuffle_epi8(t, v.b)};
}

// For codes up to 32, four times at most: a 16-bit sum takes 4 * 2 * 32 * 127 = 32,512.
inline Sums dot_small(Sums sum, Line codes, const int8_t* x) {
  const __m256i v = four(x);
  return {_mm256_add_epi16(sum.a, _mm256_maddubs_epi16(codes.a, v)),
          _mm256_add_epi16(sum.b, _mm256_maddubs_epi16(codes.b, v))};
}
inline Ints total(Sums sum) {
  const __m256i one = _mm256_set1_epi16(1);
  return {_mm256_madd_epi16(sum.a, one), _mm256_madd_epi16(sum.b, one)};
}
inline __m256i dot_half(__m256i sum, __m256i codes, __m256i even, __m256i odd) {
  const __m256i low = _mm256_and_si256(codes, _mm256_set1_epi16(255)), high = _mm256_srli_epi16(codes, 8);
  return _mm256_add_epi32(sum, _mm256_add_epi32(_mm256_madd_epi16(low, even), _mm256_madd_epi16(high, odd)));
}
inline Ints dot_bytes(Ints sum, Line codes, const int8_t* x) {
  const __m256i v = four(x), even = _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8), odd = _mm256_srai_epi16(v, 8);
  return {dot_half(sum.a, codes.a, even, odd), dot_half(sum.b, codes.b, even, odd)};
}
inline Ints add(Ints x, Ints y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
inline Ints times_128(Ints x) { return {_mm256_slli_epi32(x.a, 7), _mm256_slli_epi32(x.b, 7)}; }

inline Floats splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Floats load_floats(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, Floats x) { _mm256_storeu_ps(p, x.a); _mm256_storeu_ps(p + 8, x.b); }
inline Floats to_floats(Ints x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
inline Floats mul(Floats x, Floats y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline Floats add(Floats x, Floats y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline Floats sub(Floats x, Floats y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline Floats div(Floats x, Floats y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline Floats min(Floats x, Floats y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline Floats max(Floats x, Floats y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
// a < b ? x : y
inline Floats select_less(Floats a, Floats b, Floats x, Floats y) {
  return {_mm256_blendv_ps(y.a, x.a, _mm256_cmp_ps(a.a, b.a, _CMP_LT_OQ)),
          _mm256_blendv_ps(y.b, x.b, _mm256_cmp_ps(a.b, b.b, _CMP_LT_OQ))};
}
inline Floats fma(Floats x, Floats y, Floats z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
inline Floats fnma(Floats x, Floats y, Floats z) {
  return {_mm256_fnmadd_ps(x.a, y.a, z.a), _mm256_fnmadd_ps(x.b, y.b, z.b)};
}

inline Ints bytes_to_ints(const uint8_t* p) {
  return {_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p)),
          _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)(p + 8)))};
}
inline Floats bytes_to_floats(const uint8_t* p) { return to_floats(bytes_to_ints(p)); }
inline Floats halves_to_floats(const uint8_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 16)))};
}
inline Floats exponents_to_floats(const uint8_t* p) {
  const Ints e = bytes_to_ints(p);
  const __m256i zero = _mm256_set1_epi32(1 << 22);  // exponent 0 is subnormal
  return {_mm256_castsi256_ps(_mm256_max_epi32(_mm256_slli_epi32(e.a, 23), zero)),
          _mm256_castsi256_ps(_mm256_max_epi32(_mm256_slli_epi32(e.b, 23), zero))};
}
inline Floats low_bf16(Line v) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(v.a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(v.b, 16))};
}
inline Floats high_bf16(Line v) {
  const __m256i mask = _mm256_set1_epi32(int32_t(0xFFFF0000));
  return {_mm256_castsi256_ps(_mm256_and_si256(v.a, mask)), _mm256_castsi256_ps(_mm256_and_si256(v.b, mask))};
}
inline Line exclusive_or(Line x, Line y) { return {_mm256_xor_si256(x.a, y.a), _mm256_xor_si256(x.b, y.b)}; }
inline uint64_t fold(Line x) { return uint64_t(_mm256_extract_epi64(_mm256_xor_si256(x.a, x.b), 0)); }

}  // namespace
}  // namespace strata::VARIANT
