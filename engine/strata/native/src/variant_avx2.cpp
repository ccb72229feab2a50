#define VARIANT avx2
#include "simd_avx2.h"

#include "elementwise.h"
#include "multiply.h"
#include "pack_int4.h"
#include "route.h"

namespace strata {
extern const Kernels avx2_kernels;
const Kernels avx2_kernels = {"avx2", avx2::multiply, avx2::quantise, avx2::gate, avx2::read, avx2::pack_int4, avx2::route};
}  // namespace strata
