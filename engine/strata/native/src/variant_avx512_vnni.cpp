#define VARIANT avx512_vnni
#include "simd_avx512.h"

#include "elementwise.h"
#include "multiply.h"
#include "pack_int4.h"
#include "route.h"

namespace strata {
extern const Kernels avx512_vnni_kernels;
const Kernels avx512_vnni_kernels = {"avx512_vnni", avx512_vnni::multiply, avx512_vnni::quantise, avx512_vnni::gate, avx512_vnni::read, avx512_vnni::pack_int4, avx512_vnni::route};
}  // namespace strata
