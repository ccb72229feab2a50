"""Bit formats: pack, unpack, sizes, errors.

Formats are registered by name; importing this package never imports torch.
"""

from __future__ import annotations

from strata.config.engine import DTYPES
from strata.errors import OptionError
from strata.quant.base import Format, QuantizedTensor
from strata.quant.bf16 import BF16
from strata.quant.int4 import Int4
from strata.quant.int8 import Int8
from strata.quant.mxfp4 import MXFP4

FORMATS: dict[str, Format] = {item.name: item for item in (BF16(), Int8(), Int4(), MXFP4())}


def get(name: str) -> Format:
    """The format called ``name``, which is one of ``FORMATS``."""
    return FORMATS[name]


def target(name: str) -> Format:
    """The format that a user asked for; raises OptionError with those that there are."""
    if name not in DTYPES:
        raise OptionError(f"dtype {name!r} is unknown; one of {', '.join(DTYPES)} is needed")
    return FORMATS[name]


__all__ = ["FORMATS", "Format", "QuantizedTensor", "get", "target"]
