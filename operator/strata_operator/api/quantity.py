"""Kubernetes quantities, of bytes mostly, read and written."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction

from strata_operator.api.errors import InvalidSpecError

_SUFFIXES = {
    "": Fraction(1),
    "m": Fraction(1, 1000),
    **{prefix: Fraction(1000) ** power for power, prefix in enumerate(["k", "M", "G", "T", "P", "E"], 1)},
    **{f"{prefix}i": Fraction(1024) ** power for power, prefix in enumerate(["K", "M", "G", "T", "P", "E"], 1)},
}
_QUANTITY = re.compile(
    r"(?P<number>\d+(?:\.\d*)?|\.\d+)(?:(?P<suffix>[KMGTPE]i|[mkMGTPE])|[eE](?P<exponent>[+-]?\d{1,2}))?"
)


def parse_quantity(text: str, path: str) -> int:
    """ "24Gi" is 25769803776; parts of one are rounded up. Raises InvalidSpecError naming ``path``."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise InvalidSpecError(f"{path} is {text!r}; a quantity such as 24Gi is needed")
    value = Fraction(Decimal(match["number"])) * _SUFFIXES[match["suffix"] or ""]
    value *= Fraction(10) ** int(match["exponent"] or 0)
    return -(-value.numerator // value.denominator)


def format_quantity(size: int) -> str:
    """The shortest binary quantity that is exactly ``size`` bytes: "24Gi", "1536Mi", "1000"."""
    for suffix in ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki"):
        unit = int(_SUFFIXES[suffix])
        if size and size % unit == 0:
            return f"{size // unit}{suffix}"
    return str(size)
