from __future__ import annotations

import pytest

from strata_operator.api.figures import Loading
from strata_operator.wording import progress

GIB = 1 << 30


@pytest.mark.parametrize(
    ("loading", "expected"),
    [
        (Loading("start", 0, 0), "start"),
        (Loading("download", 0, 20 * GIB), "download, 0 % of 20.0 GiB"),
        (Loading("download", 1, 20 * GIB, GIB // 10), "download, 10 % of 20.0 GiB at 102.4 MiB/s, about 3 min left"),
        (Loading("download", 1, 20 * GIB, GIB // 1000), "download, 10 % of 20.0 GiB at 1.0 MiB/s, about 5 h left"),
        (Loading("load", 9, GIB, 10 * GIB), "load, 90 % of 1.0 GiB at 10.0 GiB/s, about 1 s left"),
        (Loading("load", 10, GIB, GIB), "load, 100 % of 1.0 GiB"),
        (Loading("warm up", 5, 2048, 512), "warm up, 50 % of 2048 tokens at 512 tokens/s, about 2 s left"),
    ],
    ids=["no size", "no rate yet", "minutes", "hours", "no time", "all", "tokens"],
)
def test_a_start_in_words(loading: Loading, expected: str) -> None:
    assert progress(loading) == expected
