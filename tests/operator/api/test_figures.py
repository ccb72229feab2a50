from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from strata.cli import progress as shown
from strata.engine.fake import FakeEngine
from strata.experts.counts import ExpertCounts, ExpertStats
from strata.request import TokenOutput
from strata.server.metrics import Metrics, Pace
from strata.server.record import RequestRecord
from strata_operator.api.figures import FETCHING, IN_BYTES, Counters, Progress, Traffic, total

INF = float("inf")


def exposition() -> bytes:
    """What the engine itself answers after one request of five tokens."""
    experts = ExpertStats({3: ExpertCounts(8, 6, 2)}, num_vram=4, num_host=8, expert_bytes=1000)
    engine = FakeEngine(experts=experts)
    asyncio.run(engine.start())
    metrics = Metrics(engine, model_name="m")
    pace = Pace(metrics, RequestRecord("r", "-", "POST", "/generate", {}, arrived=0.0), num_prompt_tokens=3)
    pace.count(TokenOutput("r", (1,)))
    pace.count(TokenOutput("r", (1, 2, 3, 4)))
    return metrics.render()


def test_the_engine_s_own_metrics_are_understood() -> None:
    counters = Counters.parse(exposition())
    assert counters is not None
    assert counters.tokens == 5
    assert counters.step_seconds >= 0
    assert (counters.experts, counters.hits) == (8, 6)
    assert counters.ttft[-1] == (INF, 1)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\xff\xfe",
        b"strata_generation_tokens_total 3\n",
        b"strata_generation_tokens_total NaN\nstrata_step_seconds_total 1\n",
        b"strata_generation_tokens_total 1\nstrata_step_seconds_total +Inf\n",
        b"strata_generation_tokens_total 1\nstrata_step_seconds_total 1\n"
        b'strata_time_to_first_token_seconds_bucket{x="1"} 1\n',
        b"strata_generation_tokens_total one\nstrata_step_seconds_total 1\n",
        b"{{{{",
    ],
    ids=["nothing", "no text", "half of it", "no number", "no end", "no bound", "a word", "no metrics"],
)
def test_what_is_no_engine_s_tells_nothing(answer: bytes) -> None:
    assert Counters.parse(answer) is None


def test_what_came_since() -> None:
    before = Counters(10, 1, ((0.1, 1), (INF, 2)), experts=8, hits=1)
    after = Counters(110, 3, ((0.1, 4), (INF, 6)), experts=24, hits=9)
    assert after.since(before) == Traffic(100, 2, ((0.1, 3), (INF, 4)), experts=16, hits=8)


@pytest.mark.parametrize(
    "after",
    [Counters(9, 2, ((INF, 2),)), Counters(10, 0, ((INF, 2),)), Counters(10, 2, ((INF, 1),)), Counters(10, 2, ())],
    ids=["tokens", "time", "requests", "other buckets"],
)
def test_an_engine_that_started_anew_has_no_since(after: Counters) -> None:
    assert after.since(Counters(10, 1, ((INF, 2),))) is None


def test_engines_add_up() -> None:
    one = Traffic(100, 2, ((0.1, 3), (INF, 4)), 16, 8)
    assert total([one, one]) == Traffic(200, 4, ((0.1, 6), (INF, 8)), 32, 16)
    assert total([]) == Traffic(0, 0, ())


LOADING: dict[str, Any] = {"status": "loading", "phase": "download", "bytes_done": 3, "bytes_total": 9, "error": {}}


def test_a_start_is_understood() -> None:
    assert Progress.parse(json.dumps(LOADING).encode()) == Progress("download", 3, 9)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"status": "ready"}, None),
        ({"phase": 3}, None),
        ({"bytes_done": -1}, None),
        ({"bytes_total": True}, None),
        ({"bytes_total": 1 << 70}, None),
        ({"bytes_done": 10}, Progress("download", 9, 9)),
        ({"phase": "a\nb" + "c" * 100}, Progress("a b" + "c" * 61, 3, 9)),
    ],
    ids=["no start", "no phase", "negative", "no count", "no size", "more than all", "words of anybody"],
)
def test_a_start_is_doubted(change: dict[str, Any], expected: Progress | None) -> None:
    assert Progress.parse(json.dumps({**LOADING, **change}).encode()) == expected


@pytest.mark.parametrize("answer", [b"", b"[]", b"ready", b"[" * 100_000])
def test_an_answer_of_something_else_is_no_start(answer: bytes) -> None:
    assert Progress.parse(answer) is None


def test_phases_are_the_engine_s() -> None:
    assert set(shown.IN_BYTES) == set(IN_BYTES) - {"start"}
    assert set(FETCHING) < set(IN_BYTES)
