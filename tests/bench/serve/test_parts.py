"""Mixes, arrivals, prompts, percentiles, counters."""

from __future__ import annotations

import asyncio
import random
import statistics
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Counter as PrometheusCounter

from strata.bench.serve.address import bearer, is_local, root
from strata.bench.serve.client import Answer
from strata.bench.serve.mix import PUBLISHED, draw, format_mix, parse_mix
from strata.bench.serve.prompts import PromptMaker
from strata.bench.serve.summary import distribution, percentile, read_counters, summarise
from strata.bench.serve.sweep import ServeOptions
from strata.bench.serve.traffic import arrivals, closed_loop, open_loop
from strata.cli.main import build_parser
from strata.errors import OptionError
from tests.bench.serve.conftest import Encode

# --- addresses and keys


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8000", True),
        ("http://localhost:8000/v1", True),
        ("http://[::1]:8000", True),
        ("http://127.0.0.1.example", False),  # a name that only begins alike
        ("https://gpu-box/v1/", False),
    ],
)
def test_a_server_on_this_machine_is_known_by_its_address(url: str, expected: bool) -> None:
    assert is_local(url) is expected
    assert not root(url).endswith(("/", "/v1"))


def test_a_key_goes_into_a_header_that_can_hold_it() -> None:
    assert bearer("k") == {"Authorization": "Bearer k"}
    assert bearer(None) == bearer("") == {}
    for key in ("k\r\nX: y", "schlüssel"):
        with pytest.raises(OptionError, match="no header may hold"):
            bearer(key)


# --- mixes


def test_the_published_load_is_the_command_s_default() -> None:
    arguments = build_parser().parse_args(["bench", "serve"])
    assert arguments.mix == format_mix(PUBLISHED) == "30:80:200,50:200:600,20:800:1200"
    assert parse_mix(arguments.mix) == ServeOptions(url="").mix
    assert arguments.concurrency == ServeOptions(url="").concurrency == (8, 16, 32, 64)


@pytest.mark.parametrize(
    "text", ["", "1:2", "0:80:200", "1:0:200", "1:80:0", "a:80:200", "1:80:200,", "nan:1:1", "inf:1:1"]
)
def test_a_mix_that_cannot_be_says_how_it_is_written(text: str) -> None:
    with pytest.raises(OptionError, match="weight:prompt:output"):
        parse_mix(text)


@pytest.mark.parametrize(("count", "expected"), [(10, [3, 5, 2]), (100, [30, 50, 20]), (1, [0, 1, 0]), (4, [1, 2, 1])])
def test_every_draw_has_the_mix_s_parts(count: int, expected: list[int]) -> None:
    drawn = Counter(draw(PUBLISHED, count, random.Random(1)))
    assert [drawn[shape] for shape in PUBLISHED] == expected


def test_a_seed_gives_the_same_order_again() -> None:
    first, again, other = (draw(PUBLISHED, 50, random.Random(seed)) for seed in (1, 1, 2))
    assert first == again != other


# --- when


def test_arrivals_are_a_poisson_process() -> None:
    """The gaps of one are exponential: their mean and their standard deviation are both 1 / rate."""
    times = arrivals(4001, 5.0, random.Random(0))
    gaps = [after - before for before, after in pairwise(times)]
    assert times[0] == 0
    assert len(times) == 4001
    assert statistics.fmean(gaps) == pytest.approx(0.2, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(0.2, rel=0.05)
    assert arrivals(10, 5.0, random.Random(0)) == times[:10]


async def test_a_closed_loop_keeps_as_many_in_flight() -> None:
    in_flight, seen, done = 0, [], []

    async def send(request: int) -> None:
        nonlocal in_flight
        in_flight += 1
        seen.append(in_flight)
        for _ in range(request % 3 + 1):  # of different length
            await asyncio.sleep(0)
        in_flight -= 1
        done.append(request)

    await closed_loop(range(40), send, concurrency=4)
    assert max(seen) == 4
    assert seen.count(4) > 20
    assert sorted(done) == list(range(40))


async def test_an_open_loop_sends_whatever_is_in_flight() -> None:
    all_sent = asyncio.Event()
    sent = []

    async def send(request: int) -> None:
        sent.append(request)
        if len(sent) == 20:
            all_sent.set()
        await all_sent.wait()

    await open_loop(range(20), send, rate=1e4, rng=random.Random(0))
    assert sent == list(range(20))


# --- prompts


@pytest.mark.parametrize("num_tokens", [3, 80, 200, 800])
async def test_prompts_have_their_exact_length(encode: Encode, num_tokens: int) -> None:
    """By a tokenizer of few tokens, for which a word is several."""

    async def count(text: str) -> int:
        return len(encode(text))

    maker = PromptMaker(count, random.Random(0))
    prompts = [await maker.make(num_tokens) for _ in range(3)]
    assert [len(encode(prompt.text)) for prompt in prompts] == [num_tokens] * 3
    assert [prompt.num_tokens for prompt in prompts] == [num_tokens] * 3
    assert len({prompt.text for prompt in prompts}) > 1, "a prefix cache must not help"


async def test_words_that_join_are_corrected() -> None:
    """Two of the same beside each other are one token less, which no sum over words foresees."""

    async def count(text: str) -> int:
        words = text.split()
        return 2 + len(words) - sum(a == b for a, b in pairwise(words))

    maker = PromptMaker(count, random.Random(0))
    prompt = await maker.make(400)
    assert (prompt.num_tokens, await count(prompt.text)) == (400, 400)


async def test_what_the_server_adds_is_taken_off() -> None:
    async def count(text: str) -> int:
        return len(text.split())

    maker = PromptMaker(count, random.Random(0))
    (probe,) = await maker.probes()
    maker.learn([probe], [probe.num_tokens + 11])  # a chat template
    assert await count((await maker.make(100)).text) == 89


async def test_without_a_tokenizer_two_probes_tell_what_a_word_costs() -> None:
    maker = PromptMaker(None, random.Random(0))
    short, long = await maker.probes()
    maker.learn([short, long], [7 + 2 * short.num_pieces, 7 + 2 * long.num_pieces])
    prompt = await maker.make(107)
    assert len(prompt.text.split()) == prompt.num_pieces == 50


async def test_without_any_report_a_word_is_a_token() -> None:
    maker = PromptMaker(None, random.Random(0))
    maker.learn(await maker.probes(), [])
    assert (await maker.make(100)).num_pieces == 100


# --- figures


@pytest.mark.parametrize("q", [0, 50, 90, 99, 100])
def test_percentiles_are_numpy_s(q: float) -> None:
    values = sorted(random.Random(0).expovariate(1) for _ in range(37))
    assert percentile(values, q) == pytest.approx(np.percentile(values, q))
    assert percentile([3.0], q) == 3.0


def test_nothing_has_no_distribution() -> None:
    assert distribution([]) is None


def answer(started: float, ended: float, tokens: int, error: str | None = None) -> Answer:
    gaps = [0.1] * (tokens - 1)
    return Answer(started, started + 0.5, ended, gaps, 10, tokens, is_counted=True, error=error)


def test_a_level_counts_whole_answers_over_the_whole_time() -> None:
    answers = [answer(1, 3, 20), answer(2, 5, 30), answer(2, 6, 99, error="HTTP 429: full")]
    level = summarise("2 streams", 2, answers, num_requests=4)
    assert (level.num_answered, level.num_requests, level.errors) == (2, 4, {"HTTP 429: full": 1})
    assert (level.output_tokens, level.prompt_tokens, level.seconds) == (50, 20, 5)
    assert level.tokens_per_second == 10
    assert level.ttft is not None
    assert level.ttft.percentiles[50] == pytest.approx(0.5)
    assert level.duration is not None
    assert level.duration.mean == 2.5
    assert level.engine is None


def test_nothing_answered_is_no_division_by_zero() -> None:
    level = summarise("1 stream", 1, [answer(1, 1, 5, error="gone")], num_requests=1)
    assert level.tokens_per_second == 0
    assert level.ttft is None


def test_another_server_s_metrics_are_not_ours() -> None:
    registry = CollectorRegistry()
    PrometheusCounter("vllm_generation_tokens", "Tokens.", registry=registry).inc(5)
    assert read_counters(generate_latest(registry).decode()) is None
    assert read_counters(None) is None
