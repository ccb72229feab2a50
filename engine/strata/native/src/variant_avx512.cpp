#define VARIANT avx512
#include "simd_avx512.h"

#include "elementwise.h"
#include "multiply.h"
#include "pack_int4.h"
#include "route.h"

namespace strata {
extern const Kernels avx512_kernels;
const Kernels avx512_kernels = {"avx512", avx512::multiply, avx512::quantise, avx512::gate, avx512::read, avx512::pack_int4, avx512::route};
}  // namespace strata
