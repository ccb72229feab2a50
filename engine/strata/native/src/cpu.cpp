// Which variants this CPU and its operating system can run.
#include "kernels.h"

#ifdef STRATA_X86
#include <cpuid.h>
#endif

namespace strata {

extern const Kernels scalar_kernels;
#ifdef STRATA_X86
extern const Kernels avx2_kernels, avx512_kernels, avx512_vnni_kernels;

namespace {

bool bit(uint32_t word, int number) { return word >> number & 1; }

// The registers that the operating system saves on a switch of threads (XCR0).
uint32_t saved_state() {
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

struct Features {
  bool avx2 = false, avx512 = false, vnni = false;

  Features() {
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return;
    const bool osxsave = bit(c, 27), avx = bit(c, 28), fma = bit(c, 12), f16c = bit(c, 29);
    if (!osxsave || !avx || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return;
    const uint32_t state = saved_state();
    constexpr uint32_t YMM = 0x6, ZMM = 0xE6;
    avx2 = (state & YMM) == YMM && bit(b, 5) && fma && f16c;
    const bool f = bit(b, 16), dq = bit(b, 17), bw = bit(b, 30), vl = bit(b, 31);
    avx512 = avx2 && (state & ZMM) == ZMM && f && dq && bw && vl;
    vnni = avx512 && bit(c, 11);
  }
};

}  // namespace
#endif

const Kernels* kernels_of(Variant variant) {
  if (variant == SCALAR) return &scalar_kernels;
#ifdef STRATA_X86
  static const Features features;
  if (variant == AVX2 && features.avx2) return &avx2_kernels;
  if (variant == AVX512 && features.avx512) return &avx512_kernels;
  if (variant == AVX512_VNNI && features.vnni) return &avx512_vnni_kernels;
#endif
  return nullptr;
}

Variant best_variant() {
  int32_t best = NUM_VARIANTS - 1;
  while (!kernels_of(Variant(best))) --best;
  return Variant(best);
}

}  // namespace strata
