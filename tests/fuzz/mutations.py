"""Inputs that are nearly right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

# Where (as a share of what is changed), how many bytes go, and what comes in their place.
Changes = list[tuple[float, int, bytes]]
CHANGES: st.SearchStrategy[Changes] = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 9), st.binary(max_size=9)), min_size=1, max_size=6
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.sampled_from(
        [0, 1, -1, 2**31, 10**40, 0.5, 1e308, "", "x", "..", "../x", "/", "\u0000", "auto", "none", "text"]
    )
    | st.floats(allow_nan=False)
    | st.text(max_size=9)
)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
)


def changed(data: bytes, changes: Changes) -> bytes:
    """``data`` with changes."""
    for share, gone, come in changes:
        at = int(share * len(data))
        data = data[:at] + come + data[at + gone :]
    return data


@st.composite
def mutated(draw: st.DrawFn, sound: Any) -> Any:
    """A JSON value with some places changed, left out or added."""
    if draw(st.integers(0, 9)) == 0:
        return draw(JSON)
    if isinstance(sound, dict):
        made = {key: draw(mutated(value)) for key, value in sound.items() if draw(st.integers(0, 19))}
        if draw(st.integers(0, 19)) == 0:
            made[draw(st.text(max_size=9))] = draw(JSON)
        return made
    if isinstance(sound, list):
        return [draw(mutated(value)) for value in sound] * draw(st.sampled_from([1, 1, 1, 0, 2]))
    return sound


def joined(fragments: Sequence[str]) -> st.SearchStrategy[str]:
    """Texts of these, one after the other."""
    return st.lists(st.sampled_from(fragments) | st.text(max_size=4), max_size=25).map("".join)
