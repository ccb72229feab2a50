// Sixteen lanes in one 512-bit register: AVX-512 F, BW, DQ, VL, and VNNI where the unit is compiled for it.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace strata::VARIANT {
namespace {

using Floats = __m512;
using Ints = __m512i;
using Line = __m512i;
using Sums = __m512i;  // of 16 bits each, or of 32 with VNNI

constexpr size_t MAX_VECTORS = 4;  // activations multiplied in one pass over the codes

inline __m512i four(const int8_t* x) { int32_t word; memcpy(&word, x, 4); return _mm512_set1_epi32(word); }

inline Line load_line(const uint8_t* p) {
  Line out = _mm512_load_si512(p);
  asm("" : "+v"(out));  // or the compiler loads it twice, once for each half of the nibbles
  return out;
}
inline Line low_nibbles(Line v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
inline Line high_nibbles(Line v) { return low_nibbles(_mm512_srli_epi16(v, 4)); }
inline Line lookup(const uint8_t* table, Line v) {
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)table)), v);
}

#ifdef __AVX512VNNI__
inline Ints dot_bytes(Ints sum, Line codes, const int8_t* x) { return _mm512_dpbusd_epi32(sum, codes, four(x)); }
inline Sums dot_small(Sums sum, Line codes, const int8_t* x) { return dot_bytes(sum, codes, x); }
inline Ints total(Sums sum) { return sum; }
#else
// For codes up to 32, four times at most: a 16-bit sum takes 4 * 2 * 32 * 127 = 32,512.
inline Sums dot_small(Sums sum, Line codes, const int8_t* x) {
  return _mm512_add_epi16(sum, _mm512_maddubs_epi16(codes, four(x)));
}
inline Ints total(Sums sum) { return _mm512_madd_epi16(sum, _mm512_set1_epi16(1)); }
inline Ints dot_bytes(Ints sum, Line codes, const int8_t* x) {
  const __m512i v = four(x), even = _mm512_srai_epi16(_mm512_slli_epi16(v, 8), 8), odd = _mm512_srai_epi16(v, 8);
  const __m512i low = _mm512_and_si512(codes, _mm512_set1_epi16(255)), high = _mm512_srli_epi16(codes, 8);
  return _mm512_add_epi32(sum, _mm512_add_epi32(_mm512_madd_epi16(low, even), _mm512_madd_epi16(high, odd)));
}
#endif
inline Ints add(Ints x, Ints y) { return _mm512_add_epi32(x, y); }
inline Ints times_128(Ints x) { return _mm512_slli_epi32(x, 7); }

inline Floats splat(float x) { return _mm512_set1_ps(x); }
inline Floats load_floats(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, Floats x) { _mm512_storeu_ps(p, x); }
inline Floats to_floats(Ints x) { return _mm512_cvtepi32_ps(x); }
inline Floats mul(Floats x, Floats y) { return _mm512_mul_ps(x, y); }
inline Floats add(Floats x, Floats y) { return _mm512_add_ps(x, y); }
inline Floats sub(Floats x, Floats y) { return _mm512_sub_ps(x, y); }
inline Floats div(Floats x, Floats y) { return _mm512_div_ps(x, y); }
inline Floats min(Floats x, Floats y) { return _mm512_min_ps(x, y); }
inline Floats max(Floats x, Floats y) { return _mm512_max_ps(x, y); }
// a < b ? x : y
inline Floats select_less(Floats a, Floats b, Floats x, Floats y) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}
inline Floats fma(Floats x, Floats y, Floats z) { return _mm512_fmadd_ps(x, y, z); }
inline Floats fnma(Floats x, Floats y, Floats z) { return _mm512_fnmadd_ps(x, y, z); }

inline Ints bytes_to_ints(const uint8_t* p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)); }
inline Floats bytes_to_floats(const uint8_t* p) { return to_floats(bytes_to_ints(p)); }
inline Floats halves_to_floats(const uint8_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
inline Floats exponents_to_floats(const uint8_t* p) {
  const __m512i zero = _mm512_set1_epi32(1 << 22);  // exponent 0 is subnormal
  return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_slli_epi32(bytes_to_ints(p), 23), zero));
}
inline Floats low_bf16(Line v) { return _mm512_castsi512_ps(_mm512_slli_epi32(v, 16)); }
inline Floats high_bf16(Line v) {
  return _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32(int32_t(0xFFFF0000))));
}
inline Line exclusive_or(Line x, Line y) { return _mm512_xor_si512(x, y); }
inline uint64_t fold(Line x) { return uint64_t(_mm_cvtsi128_si64(_mm512_castsi512_si128(x))); }

}  // namespace
}  // namespace strata::VARIANT
