#define VARIANT scalar
#include "simd_scalar.h"

#include "elementwise.h"
#include "multiply.h"
#include "pack_int4.h"
#include "route.h"

namespace strata {
extern const Kernels scalar_kernels;
const Kernels scalar_kernels = {"scalar", scalar::multiply, scalar::quantise, scalar::gate, scalar::read, scalar::pack_int4, scalar::route};
}  // namespace strata
