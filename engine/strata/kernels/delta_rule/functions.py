"""Device functions of the delta rule's kernels."""

from __future__ import annotations

import triton
import triton.language as tl

from strata.kernels.triton_functions import store_groups


@triton.jit
def log_decay_and_beta(gates_ptr, rows, mask, decay, dt_bias, head, VALUE_HEADS: tl.constexpr):
    """Of one value head and the float32 gates b and a of ``rows``; 0 where not ``mask``."""
    at = gates_ptr + rows * (2 * VALUE_HEADS) + head
    beta = tl.where(mask, tl.sigmoid(tl.load(at, mask=mask, other=0.0)), 0.0)
    a = tl.load(at + VALUE_HEADS, mask=mask, other=0.0) + dt_bias
    softened = tl.maximum(a, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(a)))
    return tl.where(mask, -tl.exp(decay) * softened, 0.0), beta


@triton.jit
def silu(x):
    return x * tl.sigmoid(x)


@triton.jit
def unit(x):
    """Each row of x [..., dims], float32, of length 1."""
    axis: tl.constexpr = x.shape.__len__() - 1
    return x * tl.expand_dims(tl.rsqrt(tl.sum(x * x, axis) + 1e-6), axis)


@triton.jit
def gated_norm(heads, gate, weight, eps, VALUE_DIM: tl.constexpr, SIGMOID: tl.constexpr):
    """heads and gate float32 [..., dims], zeros past VALUE_DIM; weight [dims]."""
    axis: tl.constexpr = heads.shape.__len__() - 1
    scale = tl.rsqrt(tl.sum(heads * heads, axis) / VALUE_DIM + eps)
    opening = tl.sigmoid(gate) if SIGMOID else silu(gate)
    return heads * tl.expand_dims(scale, axis) * weight * opening


@triton.jit
def decayed(state, key, value, log_decay, beta):
    """The state [keys, values] as a token finds it, and what the token adds to it along its key."""
    state *= tl.exp(log_decay)
    return state, beta * (value - tl.sum(state * key[:, None], 0))


@triton.jit
def store_head(out, at, out_ptr, codes_ptr, scales_ptr, sums_ptr, DIM: tl.constexpr):
    """out [DIM], a multiple of 32, from number ``at`` on: in bf16, or quantised where ``out_ptr`` is None."""
    if out_ptr is not None:
        tl.store(out_ptr + at + tl.arange(0, DIM), out.to(tl.bfloat16))
    else:
        GROUPS: tl.constexpr = DIM // 32
        group = tl.arange(0, GROUPS)
        store_groups(tl.reshape(out, (GROUPS, 32)), codes_ptr, scales_ptr, sums_ptr, at // 32 + group, group < GROUPS)
