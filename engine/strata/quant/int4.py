"""4-bit integers in asymmetric groups of 32 along a row, with two-level scales: at most 4.63 bits a weight.

    w[r, c] = d * scales[r, g] * code[r, c] - dmin * mins[r, g]      g = c // 32, code in 0 .. 15
    d, dmin = super[r, s]                                            s = min(g // 8, n_super - 1)

with n_super = max(1, cols // 256): the last superblock of a row takes the groups that do not fill one of their own.
``d`` is never negative. ``dmin`` is positive where any group of the superblock reaches below zero (then a group that
lies wholly above zero is coded from zero), and negative where none does.

Nibbles are in the order of ``strata.quant.nibbles``.
"""

from __future__ import annotations

from strata.quant.base import GROUP, Part, QuantizedTensor, Tensor, pack_rows
from strata.quant.nibbles import pack_nibbles, unpack_nibbles

SUPER = 8  # groups that share d and dmin
_LEVELS = 15  # largest code
_SCALES = 255  # largest 8-bit scale or minimum
# The fit starts from steps of 1/15 and 1/16 of a group's range (the second cuts off half a step at both ends) and
# alternates codes and least squares twice: on random normal weights 9 % less error than the plain range, at 0.6 of its
# speed. A third start takes another 0.1 % off (2026-11-29).
_STARTS = (0.0, 1.0)
_ITERATIONS = 2
# A group that is left with less than this share of its energy lies on a grid of 16 levels or fewer already (GGUF Q4_0,
# Q4_1, Q4_K; also after rounding to bf16). Others keep some 5e-3.
_ON_GRID = 2e-5


def num_super(cols: int) -> int:
    """Superblocks of a row."""
    return max(1, cols // (GROUP * SUPER))


class Int4:
    """Parts ``codes``: uint8 [rows, cols/2]; ``scales``, ``mins``: uint8 [rows, cols/32]; ``super``: float16
    [rows, n_super, 2] = d, dmin."""

    name = "int4"

    def accepts(self, rows: int, cols: int) -> bool:
        return cols % GROUP == 0

    def parts(self, rows: int, cols: int) -> dict[str, Part]:
        return {
            "codes": Part("U8", (rows, cols // 2)),
            "scales": Part("U8", (rows, cols // GROUP)),
            "mins": Part("U8", (rows, cols // GROUP)),
            "super": Part("F16", (rows, num_super(cols), 2)),
        }

    def num_bytes(self, rows: int, cols: int) -> int:
        return rows * (cols // 2 + 2 * (cols // GROUP) + 4 * num_super(cols))

    def pack(self, weight: Tensor) -> QuantizedTensor:
        from strata.quant import int4_native

        rows, cols = weight.shape
        if weight.device.type != "cpu" or not int4_native.is_available():
            return QuantizedTensor(self.name, (rows, cols), pack_rows(weight, pack_reference))
        import torch

        dtypes = {"U8": torch.uint8, "F16": torch.float16}
        parts = {
            name: torch.empty(part.shape, dtype=dtypes[part.dtype]) for name, part in self.parts(rows, cols).items()
        }
        int4_native.pack_into(parts, weight)
        return QuantizedTensor(self.name, (rows, cols), parts)

    def unpack(self, weight: QuantizedTensor) -> Tensor:
        import torch

        rows, cols = weight.shape
        parts = weight.parts
        codes = unpack_nibbles(parts["codes"]).view(rows, -1, GROUP).float()
        spread = _superblock_of(parts["scales"].shape[1], parts["codes"].device)
        d, dmin = parts["super"].float()[:, spread].unbind(-1)
        scale, minimum = d * parts["scales"], dmin * parts["mins"]
        return torch.sub(codes * scale[..., None], minimum[..., None]).view(rows, cols)


def _superblock_of(groups: int, device: Tensor) -> Tensor:
    """Index of each group's superblock: int64 [groups]."""
    import torch

    return (torch.arange(groups, device=device) // SUPER).clamp_(max=num_super(groups * GROUP) - 1)


def pack_reference(weight: Tensor) -> dict[str, Tensor]:
    """The parts of a float32 matrix, in torch: on a GPU, without the native library, and for tests."""
    import torch

    rows, cols = weight.shape
    w = weight.view(rows, cols // GROUP, GROUP)
    spread = _superblock_of(w.shape[1], w.device)

    def per_superblock(values: Tensor) -> Tensor:  # the largest of each superblock: [rows, n_super]
        out = torch.zeros(rows, num_super(cols), device=w.device)
        return out.scatter_reduce(1, spread.expand_as(values), values, "amax")

    below = per_superblock(-w.amin(-1)) > 0
    sign = torch.where(below, 1.0, -1.0)  # of dmin: see the head of this file
    scale, low = _fit(w, sign[:, spread])
    d = _half_up(per_superblock(scale) / _SCALES)
    dmin = sign * _half_up(per_superblock(low.abs()) / _SCALES)
    codes, scales, mins = _round(w, scale, low, d.float()[:, spread], dmin.float()[:, spread])
    return {
        "codes": pack_nibbles(codes.to(torch.uint8).view(rows, cols)),
        "scales": scales.to(torch.uint8),
        "mins": mins.to(torch.uint8),
        "super": torch.stack([d, dmin.half()], dim=-1),
    }


def _fit(w: Tensor, sign: Tensor) -> tuple[Tensor, Tensor]:
    """Step and lowest value of each group [rows, groups], before they are rounded to 8 bits.

    ``sign`` is 1 where the lowest value must not lie above zero, -1 where it must not lie below.
    """
    import torch

    low, high = w.amin(-1), w.amax(-1)
    low = torch.where(low * sign > 0, 0.0, low)
    span = torch.maximum(high, low) - low
    best = (span / _LEVELS, low)
    error = _error(w, _codes(w, *best), *best)
    enough = _ON_GRID * w.square().sum(-1)

    def keep_better(scale: Tensor, low: Tensor) -> None:
        nonlocal best, error
        new_error = _error(w, _codes(w, scale, low), scale, low)
        better = new_error < error
        error = torch.where(better, new_error, error)
        best = (torch.where(better, scale, best[0]), torch.where(better, low, best[1]))

    if _lies_on_grid(w[:: max(1, w.shape[0] // 2)]):
        for levels in range(_LEVELS - 1, 0, -1):
            if (error <= enough).all():
                break
            keep_better(span / levels, low)
        keep_better(*_least_squares(w, _codes(w, *best), sign))
        if (error <= enough).all():
            return best
    for start in _STARTS:
        scale = span / (_LEVELS + start)
        codes = _codes(w, scale, low + scale * start / 2)
        for _ in range(_ITERATIONS):
            scale, fitted = _least_squares(w, codes, sign)
            codes = _codes(w, scale, fitted)
        keep_better(scale, fitted)
    return best


def _lies_on_grid(sample: Tensor) -> bool:
    """Whether every group of a few rows is a lowest value and whole multiples, 15 at most, of some step."""
    import torch

    low = sample.amin(-1, keepdim=True)
    levels = torch.arange(1.0, _LEVELS + 1, device=sample.device)
    steps = (sample.amax(-1, keepdim=True) - low) / levels
    shifted = (sample - low)[..., None, :]
    codes = (shifted * _inverse(steps)[..., None]).round_()
    error = (codes * steps[..., None] - shifted).square_().sum(-1).amin(-1)
    return bool((error <= _ON_GRID * sample.square().sum(-1)).all())


def _round(w: Tensor, scale: Tensor, low: Tensor, d: Tensor, dmin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Codes [rows, groups, 32], 8-bit scales and minima [rows, groups], all as float32 integers.

    Rounding the scale moves the best minimum and the other way round, so each is fitted once more to the other's
    rounded value and kept where the error falls.
    """
    import torch

    inverse_d, inverse_dmin = _inverse(d), _inverse(dmin)
    scales = (scale * inverse_d).round_().clamp_(0, _SCALES)
    mins = (-low * inverse_dmin).round_().clamp_(0, _SCALES)
    codes = _codes(w, d * scales, -dmin * mins)
    error = _error(w, codes, d * scales, -dmin * mins)
    mean = w.mean(-1)
    for part in ("mins", "scales"):
        new_scales, new_mins = scales, mins
        if part == "mins":
            new_mins = ((d * scales * codes.mean(-1) - mean) * inverse_dmin).round_().clamp_(0, _SCALES)
        else:
            product = ((w + (dmin * mins)[..., None]) * codes).sum(-1)
            new_scales = (product / codes.square().sum(-1).clamp_(min=1) * inverse_d).round_().clamp_(0, _SCALES)
        new_codes = _codes(w, d * new_scales, -dmin * new_mins)
        new_error = _error(w, new_codes, d * new_scales, -dmin * new_mins)
        better = new_error < error
        error = torch.where(better, new_error, error)
        scales = torch.where(better, new_scales, scales)
        mins = torch.where(better, new_mins, mins)
        codes = torch.where(better[..., None], new_codes, codes)
    return codes, scales, mins


def _codes(w: Tensor, scale: Tensor, low: Tensor) -> Tensor:
    return ((w - low[..., None]) * _inverse(scale)[..., None]).round_().clamp_(0, _LEVELS)


def _error(w: Tensor, codes: Tensor, scale: Tensor, low: Tensor) -> Tensor:
    """Squared error of each group."""
    return (codes * scale[..., None]).add_(low[..., None]).sub_(w).square_().sum(-1)


def _least_squares(w: Tensor, codes: Tensor, sign: Tensor) -> tuple[Tensor, Tensor]:
    """The step and lowest value that fit given codes best, w ~ scale * code + low, the latter on its side."""
    import torch

    sum_c, sum_cc = codes.sum(-1), codes.square().sum(-1)
    sum_w, sum_wc = w.sum(-1), (w * codes).sum(-1)
    spread = GROUP * sum_cc - sum_c * sum_c  # 0 where all codes are equal
    scale = torch.where(spread > 0, (GROUP * sum_wc - sum_c * sum_w) / spread.clamp(min=1), 0.0).clamp_(min=0)
    low = (sum_w - scale * sum_c) / GROUP
    wrong = low * sign > 0
    return torch.where(wrong, sum_wc / sum_cc.clamp(min=1), scale).clamp_(min=0), torch.where(wrong, 0.0, low)


def _inverse(values: Tensor) -> Tensor:
    import torch

    return torch.where(values == 0, 0.0, 1 / values)


def _half_up(values: Tensor) -> Tensor:
    """The smallest fp16 that is not below ``values`` >= 0: 255 steps of it always reach the largest value, even where
    fp16 is subnormal and coarse (steps of 6e-8)."""
    import torch

    values = values.clamp(max=65504.0)
    half = values.half()
    return torch.where(half.float() < values, (half.view(torch.int16) + 1).view(torch.half), half)
