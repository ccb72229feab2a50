"""The native library and its C interface (``src/api.cpp``)."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_float, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from strata.errors import HardwareError
from strata.native.layout import FORMATS, TileLayout

PATH = Path(__file__).parent / "libstrata.so"
_INTERFACE = 10  # of src/api.cpp

VARIANTS = ("scalar", "avx2", "avx512", "avx512_vnni")  # slowest first, in the order of the library's numbers
GATINGS = ("silu", "clamped_swiglu")
NUMBERS = ("float32", "bfloat16", "float16")


class LayoutArguments(ctypes.Structure):
    """The library's words for a TileLayout."""

    _fields_ = [("format", c_int32), ("bias", c_int32), ("hidden", c_int64), ("intermediate", c_int64)]

    @classmethod
    def of(cls, layout: TileLayout) -> LayoutArguments:
        """Translate."""
        return cls(FORMATS.index(layout.format), layout.bias, layout.hidden, layout.intermediate)


class PoolArguments(ctypes.Structure):
    """What a pool is opened with; -1 for the best variant."""

    _fields_ = [
        ("layout", LayoutArguments),
        ("gating", c_int32),
        ("limit", c_float),
        ("digits", c_int32),
        ("number", c_int32),
        ("variant", c_int32),
        ("num_cores", c_int32),
        ("num_nodes", c_int32),
        ("max_tokens", c_int64),
        ("top_k", c_int64),
        ("prefetch_bytes", c_int64),
        ("timeout_ns", c_int64),
        ("patience_ns", c_int64),
        ("spin_ns", c_int64),
    ]


class RingArguments(ctypes.Structure):
    """A mailbox's places, and how the pool routes what asks for it."""

    _fields_ = [
        ("depth", c_int64),
        ("stride", c_int64),
        ("x", c_int64),
        ("ids", c_int64),
        ("weights", c_int64),
        ("scores", c_int64),
        ("y", c_int64),
        ("normalize", c_int32),
        ("routing_threads", c_int32),
        ("experts", c_int64),
        ("resident", c_int64),
        ("first", c_uint32),
    ]


_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "strata_interface": (c_int32, ()),
    "strata_variants": (c_int32, ()),
    "strata_expert_bytes": (c_int64, (POINTER(LayoutArguments),)),
    "strata_tile_expert": (
        None,
        (POINTER(LayoutArguments), POINTER(c_void_p), POINTER(c_void_p), c_int32, c_void_p, c_int32),
    ),
    "strata_pack_int4": (
        c_int32,
        (c_void_p, c_int32, c_int64, c_int64, c_int32, c_void_p, c_void_p, c_void_p, c_void_p),
    ),
    "strata_pool_open": (
        c_void_p,
        (POINTER(PoolArguments), POINTER(c_int32), POINTER(c_int32), POINTER(c_int32)),
    ),
    "strata_pool_close": (c_int32, (c_void_p,)),
    "strata_pool_set_table": (None, (c_void_p, c_void_p, c_int64, c_int64)),
    "strata_pool_set_mapped": (None, (c_void_p, c_void_p, c_int64)),
    "strata_pool_set_prefetch": (None, (c_void_p, c_int64)),
    "strata_pool_run": (c_int32, (c_void_p, c_int64, c_int64, c_void_p, c_void_p, c_void_p, c_void_p)),
    "strata_pool_attach": (None, (c_void_p, c_void_p, POINTER(RingArguments))),
    "strata_pool_take_fault": (c_int32, (c_void_p,)),
    "strata_pool_expect": (None, (c_void_p, c_int32)),
    "strata_pool_work": (None, (c_void_p, POINTER(c_int64))),
    "strata_pool_state": (c_int32, (c_void_p,)),
    "strata_pool_busy": (c_int32, (c_void_p, c_int32)),
    "strata_pool_variant": (c_char_p, (c_void_p,)),
    "strata_pool_read": (c_int32, (c_void_p, c_void_p, c_int64, POINTER(c_uint64))),
}


@cache
def load(path: Path = PATH) -> ctypes.CDLL:
    """The library. Raises HardwareError where it was not built, does not run here, or is of another build.

    Calls release the interpreter's lock.
    """
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise HardwareError(
            f"experts on the CPU need Strata's native library, which cannot be loaded ({error}); install a wheel for "
            "this platform, or build it in a checkout with `make native`"
        ) from error
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name, None)
        if function is None:
            break
        function.restype, function.argtypes = result, arguments
    else:
        if library.strata_interface() == _INTERFACE:
            return library
    raise HardwareError(f"{path} is of another version of Strata; install the package again, or run `make native`")


def variants() -> tuple[str, ...]:
    """The variants that run on this CPU, slowest first."""
    bits = load().strata_variants()
    return tuple(name for number, name in enumerate(VARIANTS) if bits >> number & 1)
