from __future__ import annotations

import io
import logging

import pytest

from strata_operator import logs


def written(name: str, *, is_debug: bool) -> str:
    """What becomes of an error that is logged under that name."""
    stream, log = io.StringIO(), logging.Logger(name)
    log.addHandler(logs.handler(stream, is_debug=is_debug))
    try:
        raise ValueError("no JSON")
    except ValueError:
        log.exception("%s broke", "the watch")
    return stream.getvalue()


@pytest.mark.parametrize("name", ["kopf._core.reactor.queueing", "asyncio"])
def test_a_library_s_error_is_one_line(name: str) -> None:
    (line,) = written(name, is_debug=False).splitlines()
    assert line.endswith(f"ERROR {name} the watch broke (ValueError)")


@pytest.mark.parametrize(
    ("name", "is_debug"),
    [
        pytest.param("asyncio", True, id="who debugs wants it all"),
        pytest.param("strata_operator.workers", False, id="a defect of ours"),
        pytest.param("kopf.objects", False, id="a defect of our handler"),
    ],
)
def test_a_traceback_that_somebody_can_use_is_written(name: str, is_debug: bool) -> None:
    assert "Traceback (most recent call last)" in written(name, is_debug=is_debug)
