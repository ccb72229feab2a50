"""Rounding matrices to int4 on the CPU, by the rule of ``strata.quant.int4`` (``src/pack_int4.h``)."""

from __future__ import annotations

from collections.abc import Mapping

from strata.native.library import NUMBERS, VARIANTS, load


def pack_int4(
    weights: int, number: str, rows: int, cols: int, parts: Mapping[str, int], *, variant: str | None = None
) -> None:
    """Round a matrix [rows, cols] of finite numbers of the type ``number``, row after row at the address ``weights``.

    ``parts``: addresses of ``codes``, ``scales``, ``mins`` and ``super``, as ``Int4`` has them. On the calling thread,
    without the interpreter's lock; the fastest variant unless one is named.
    """
    places = (parts[name] for name in ("codes", "scales", "mins", "super"))
    number_, variant_ = NUMBERS.index(number), -1 if variant is None else VARIANTS.index(variant)
    error = load().strata_pack_int4(weights, number_, rows, cols, variant_, *places)
    assert error == 0, f"packing with {variant or 'the fastest variant'} failed: errno {error}"
