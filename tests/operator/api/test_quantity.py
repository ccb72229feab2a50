from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_operator.api.errors import InvalidSpecError
from strata_operator.api.quantity import format_quantity, parse_quantity, parse_thousandths


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24Gi", 24 << 30),
        ("1.5Gi", 3 << 29),
        (".5Ki", 512),
        ("1G", 10**9),
        ("128974848", 128974848),
        ("129e6", 129_000_000),
        ("1E", 10**18),  # exa, not an exponent
        ("1500m", 2),  # parts of a byte are rounded up
        ("1000000u", 1),
        ("1n", 1),
        ("0", 0),
    ],
)
def test_quantities(text: str, size: int) -> None:
    assert parse_quantity(text, "spec.x") == size


@pytest.mark.parametrize(("text", "size"), [("1500m", 1500), ("4", 4000), ("0.5", 500), ("250u", 1), ("2Ki", 2048000)])
def test_parts_of_a_cpu(text: str, size: int) -> None:
    assert parse_thousandths(text, "spec.x") == size


@pytest.mark.parametrize("text", ["", "Gi", "24GB", "24 Gi", "-1Gi", "1e999Gi", "0x10"])
def test_what_is_none_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidSpecError, match=r"spec.x is .* such as 24Gi"):
        parse_quantity(text, "spec.x")


@settings(deadline=None)
@given(st.integers(min_value=0, max_value=1 << 62))
def test_what_is_written_is_read_again(size: int) -> None:
    assert parse_quantity(format_quantity(size), "x") == size
