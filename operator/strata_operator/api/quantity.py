"""Kubernetes quantities, of bytes mostly, read and written."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from math import ceil

from strata_operator.api.errors import InvalidSpecError

_SUFFIXES = {
    "": Fraction(1),
    **{prefix: Fraction(1, 1000) ** power for power, prefix in enumerate(["m", "u", "n"], 1)},
    **{prefix: Fraction(1000) ** power for power, prefix in enumerate(["k", "M", "G", "T", "P", "E"], 1)},
    **{f"{prefix}i": Fraction(1024) ** power for power, prefix in enumerate(["K", "M", "G", "T", "P", "E"], 1)},
}
_QUANTITY = re.compile(
    r"(?P<number>\d+(?:\.\d*)?|\.\d+)(?:(?P<suffix>[KMGTPE]i|[numkMGTPE])|[eE](?P<exponent>[+-]?\d{1,2}))?"
)


def parse_quantity(text: str, path: str) -> int:
    """ "24Gi" is 25769803776; parts of one are rounded up. Raises InvalidSpecError naming ``path``."""
    return ceil(_value(text, path))


def parse_thousandths(text: str, path: str) -> int:
    """ "1500m" and "1.5" are 1500; parts of one are rounded up. Raises InvalidSpecError naming ``path``."""
    return ceil(1000 * _value(text, path))


def _value(text: str, path: str) -> Fraction:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise InvalidSpecError(f"{path} is {text!r}; a quantity such as 24Gi is needed")
    value = Fraction(Decimal(match["number"])) * _SUFFIXES[match["suffix"] or ""]
    return value * Fraction(10) ** int(match["exponent"] or 0)


def format_quantity(size: int) -> str:
    """The shortest binary quantity that is exactly ``size`` bytes: "24Gi", "1536Mi", "1000"."""
    for suffix in ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki"):
        unit = int(_SUFFIXES[suffix])
        if size and size % unit == 0:
            return f"{size // unit}{suffix}"
    return str(size)
