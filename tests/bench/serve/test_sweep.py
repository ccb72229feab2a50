"""Whole measurements against real servers: Strata's over the fake engine, and another one."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strata.bench.serve.client import BenchClient
from strata.bench.serve.gpus import GpuSampler, sampling
from strata.bench.serve.mix import Shape
from strata.bench.serve.report import Report, save
from strata.bench.serve.sweep import ServeOptions, run
from strata.engine.fake import FakeEngine
from strata.errors import EngineError, OptionError, StorageError
from strata.plan.fake_nvml import FakeCard, FakeNvml
from strata.plan.nvml import open_nvml
from strata.request import GenerationRequest, TokenOutput
from strata.scheduler.stats import SchedulerStats
from tests.bench.serve.conftest import OtherServer, run_other
from tests.server.conftest import Live

Encode = Callable[[str], list[int]]

MIX = (Shape(3, 20, 30), Shape(1, 40, 10))


def quiet(phase: str, done: int, total: int) -> None:
    assert 0 <= done <= total


async def measure(url: str, **options: Any) -> Report:
    return await run(ServeOptions(url=url, **{"mix": MIX, "concurrency": (1, 4), **options}), quiet, nvml=FakeNvml())


async def test_a_sweep_of_a_closed_loop(live: Callable[..., Live]) -> None:
    server = live("hello ", max_model_len=1024)
    report = await measure(server.url)
    assert report.ended_by is None
    assert [level.load for level in report.levels] == ["1 stream", "4 streams"]
    first, second = report.levels
    assert (first.num_answered, second.num_answered) == (4, 16)
    assert (first.errors, second.errors) == ({}, {})
    # The engine's answer has ended long before: only with ignore_eos it goes on to its length.
    assert first.output_tokens == 3 * 30 + 10
    assert second.output_tokens == 4 * first.output_tokens
    assert first.is_counted
    assert first.ttft is not None
    assert first.gaps is not None
    assert first.duration is not None
    assert 0 < first.ttft.percentiles[50] <= first.duration.percentiles[99]
    served = sum(request.sampling.max_tokens or 0 for request in server.engine.requests[-20:])
    assert served == first.output_tokens + second.output_tokens


class TimedEngine(FakeEngine):
    """Says that every token took 10 ms."""

    num_tokens = 0

    @property
    def stats(self) -> SchedulerStats | None:
        stats = super().stats
        return stats and replace(stats, step_seconds=self.num_tokens / 100)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenOutput, None]:
        async with aclosing(super().generate(request)) as outputs:
            async for output in outputs:
                self.num_tokens += len(output.token_ids)
                yield output


async def test_the_engine_s_own_speed_stands_beside_the_client_s(live: Callable[..., Live]) -> None:
    report = await measure(live(kind=TimedEngine, max_model_len=1024).url, concurrency=(2,))
    (level,) = report.levels
    assert level.engine is not None
    assert level.engine.tokens_per_second == pytest.approx(100)
    assert level.engine.client_ratio == pytest.approx(level.tokens_per_second / 100)
    assert "| client ÷ engine |" in report.markdown()


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
async def test_strata_counts_prompts_exactly(live: Callable[..., Live], endpoint: str) -> None:
    """What a chat template adds is taken off."""
    server = live(max_model_len=1024)
    report = await measure(server.url, mix=(Shape(1, 300, 5),), concurrency=(2,), endpoint=endpoint)
    assert report.levels[0].prompt_tokens == 8 * 300
    assert "exact number of tokens" in "\n".join(report.notes)
    sent = [request.prompt_token_ids for request in server.engine.requests]
    assert [len(prompt) for prompt in sent[-8:]] == [300] * 8
    assert len(set(sent)) == len(sent)


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
async def test_an_open_loop_at_either_endpoint(live: Callable[..., Live], endpoint: str) -> None:
    report = await measure(live(max_model_len=1024).url, endpoint=endpoint, rates=(200.0, 400.0), num_requests=10)
    assert [level.load for level in report.levels] == ["200 requests/s", "400 requests/s"]
    assert [level.num_answered for level in report.levels] == [10, 10]
    assert report.settings["endpoint"].startswith("/v1/chat/" if endpoint == "chat" else "/v1/completions")
    assert "Poisson" in report.settings["load"]


async def test_a_server_that_turns_requests_away_is_reported(live: Callable[..., Live]) -> None:
    report = await measure(live(max_open=2, max_model_len=1024).url, concurrency=(6,), num_requests=30)
    (level,) = report.levels
    (error,) = level.errors
    assert error.startswith("HTTP 429: ")
    assert level.errors[error] + level.num_answered == 30
    assert level.num_answered > 0
    assert error in report.markdown()


async def test_an_engine_that_dies_is_an_error_a_request(live: Callable[..., Live]) -> None:
    server = live(max_model_len=1024)
    answered = server.engine.requests

    def fail_in_the_level(phase: str, done: int, total: int) -> None:
        if phase == "2 streams" and server.engine.state == "ready":
            server.loop.call_soon_threadsafe(server.engine.fail)

    report = await run(ServeOptions(url=server.url, mix=MIX, concurrency=(2,), num_requests=8), fail_in_the_level)
    (level,) = report.levels
    assert sum(level.errors.values()) + level.num_answered == 8
    assert level.errors
    assert answered


async def test_cancelling_reports_what_there_is(live: Callable[..., Live]) -> None:
    server = live(max_model_len=1024)
    is_waiting = asyncio.Event()

    def progress(phase: str, done: int, total: int) -> None:
        if phase == "2 streams":
            server.engine.pause()
            is_waiting.set()

    options = ServeOptions(url=server.url, mix=MIX, concurrency=(1, 2))
    task = asyncio.create_task(run(options, progress, nvml=FakeNvml()))
    await is_waiting.wait()
    task.cancel()
    report = await task
    assert report.ended_by == "interrupted"
    assert report.levels[0].load == "1 stream"
    assert "interrupted" in report.markdown()
    server.wait_until(lambda engine: engine.num_open == 0)


async def test_a_server_that_goes_away_leaves_a_report(encode: Encode) -> None:
    server = OtherServer(encode, has_tokenize=True)
    with run_other(server):

        def progress(phase: str, done: int, total: int) -> None:
            if phase == "2 streams":
                server.behaviour = "close"

        report = await run(ServeOptions(url=server.url, mix=MIX, concurrency=(1, 2, 4), num_requests=2), progress)
    assert [level.load for level in report.levels] == ["1 stream", "2 streams"]
    assert report.levels[0].num_answered == 2
    assert report.ended_by is not None
    assert "has stopped to answer" in report.ended_by
    assert report.ended_by in report.markdown()


async def test_a_seed_gives_the_same_requests_again(live: Callable[..., Live]) -> None:
    server = live(max_model_len=1024)
    sent = []
    for seed in (5, 5, 6):
        await measure(server.url, concurrency=(4,), seed=seed)
        sent.append(sorted(request.prompt_token_ids for request in server.engine.requests))
        server.engine.requests.clear()
    assert sent[0] == sent[1] != sent[2]


# --- another server


@pytest.mark.parametrize(
    ("behaviour", "error"),
    [
        ("close", "the connection broke (ClientPayloadError)"),
        ("stop", "the stream ended before it was complete"),
        ("garble", "not an answer of this API (JSONDecodeError)"),
        ("list", "not an answer of this API (AttributeError)"),
        ("hang", "silent for too long"),
    ],
)
async def test_answers_that_break_are_told_apart(encode: Encode, behaviour: str, error: str) -> None:
    server = OtherServer(encode, has_tokenize=False)
    with run_other(server):

        def progress(phase: str, done: int, total: int) -> None:
            if phase == "2 streams":
                server.behaviour = behaviour

        patience = 1.0 if behaviour == "hang" else 60.0
        options = ServeOptions(url=server.url, mix=MIX, concurrency=(2,), num_requests=2, timeout_seconds=patience)
        report = await run(options, progress)
    assert report.levels[0].errors == {error: 2}


async def test_a_server_by_another_hand(other: OtherServer, encode: Encode, request: pytest.FixtureRequest) -> None:
    report = await measure(other.url, model="second", concurrency=(2,), num_requests=8)
    (level,) = report.levels
    assert (level.num_answered, level.errors) == (8, {})
    assert level.output_tokens == 6 * 30 + 2 * 10, "chunks stand for tokens"
    assert not level.is_counted
    assert level.engine is None
    notes = "\n".join(report.notes)
    assert "does not take ignore_eos" in notes
    assert "reports no usage" in notes
    lengths = sorted(len(encode(prompt)) for prompt in other.prompts[-8:])
    if "with /tokenize" in request.node.name:
        assert lengths == [20] * 6 + [40] * 2
        assert "exact number of tokens" in notes
    else:
        assert "has no /tokenize" in notes


# --- what cannot be measured


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param({"model": "gpt-5"}, "'gpt-5' is not served at .*; served: tiny", id="another model"),
        pytest.param({"mix": (Shape(1, 800, 300),)}, r"800 \+ 300 = 1100 tokens; tiny takes 1024", id="too long"),
        pytest.param({"url": "http://127.0.0.1:9"}, "no server answers", id="nobody"),
    ],
)
async def test_what_cannot_be_measured_says_why(live: Callable[..., Live], options: dict[str, Any], words: str) -> None:
    url = live(max_model_len=1024).url
    with pytest.raises(OptionError, match=words):
        await measure(**{"url": url, **options})


async def test_an_endpoint_that_is_not_there_names_the_other(other: OtherServer) -> None:
    with pytest.raises(OptionError, match=r"/v1/chat.*404.*--endpoint completions"):
        await measure(other.url, endpoint="chat")


async def test_a_server_that_fails_at_once(live: Callable[..., Live]) -> None:
    server = live(max_model_len=1024)
    await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_reject(server), server.loop))
    with pytest.raises(EngineError, match="out of order"):
        await measure(server.url)


async def _reject(server: Live) -> None:
    server.engine.reject_next(EngineError("out of order"))


def test_only_this_machine_s_cards_are_sampled() -> None:
    assert BenchClient(None, "http://localhost:8000", "chat").is_local  # type: ignore[arg-type]
    assert not BenchClient(None, "http://10.0.0.7:8000", "chat").is_local  # type: ignore[arg-type]


# --- cards


def test_samples_are_summed_up_by_level() -> None:
    card, silent = FakeCard(), FakeCard(temperature=None, power=None, sm_clock=None, utilization=None)
    with open_nvml(FakeNvml([card, silent])) as nvml:
        sampler = GpuSampler(nvml)
        for temperature, power, clock in ((60, 200_000, 1800), (70, 300_000, 1600)):
            card.temperature, card.power, card.sm_clock = temperature, power, clock
            sampler.sample()
        summary, without = sampler.take()
        assert sampler.take()[0].num_samples == 0
    assert (summary.max_temperature_c, summary.mean_power_watts, summary.max_power_watts) == (70, 250, 300)
    assert (summary.mean_sm_clock_mhz, summary.min_sm_clock_mhz, summary.num_samples) == (1700, 1600, 2)
    assert (without.max_temperature_c, without.mean_power_watts) == (None, None)


def test_a_thread_samples_until_the_end() -> None:
    has_sampled = threading.Event()

    class Library(FakeNvml):
        def nvmlDeviceGetTemperature(self, handle: FakeCard, sensor: int) -> int:  # noqa: N802
            has_sampled.set()
            return super().nvmlDeviceGetTemperature(handle, sensor)

    library = Library([FakeCard()])
    with sampling(library, interval_seconds=0.001) as sampler:
        assert sampler is not None
        assert has_sampled.wait(30)
        assert library.num_open == 1
    assert library.num_open == 0
    assert not [thread for thread in threading.enumerate() if thread.name == "gpu-samples"]


@pytest.mark.parametrize("library", [FakeNvml(), FakeNvml(init_error=FakeNvml.NVML_ERROR_LIBRARY_NOT_FOUND)])
def test_without_a_card_there_are_no_samples(library: FakeNvml) -> None:
    with sampling(library) as sampler:
        assert sampler is None


# --- reports


async def test_a_report_in_three_forms(live: Callable[..., Live], tmp_path: Path) -> None:
    report = await measure(live(max_model_len=1024).url)
    with open_nvml(FakeNvml([FakeCard()])) as nvml:
        sampler = GpuSampler(nvml)
        sampler.sample()
        report = replace(report, levels=tuple(replace(level, gpus=sampler.take()) for level in report.levels))
    written = save(report, tmp_path / "new" / "report")
    assert [path.name for path in written] == ["report.md", "report.json", "report.png"]
    text = written[0].read_text()
    for words in ("| 1 stream | 4 of 4 | 0 |", "TTFT p50 / p90 / p99", "RTX 3090 | 41 | 25 / 25 | 210 / 210 | 405 |"):
        assert words in text, words
    table = json.loads(written[1].read_text())
    assert table["levels"][0]["tokens_per_second"] == pytest.approx(report.levels[0].tokens_per_second)
    assert table["levels"][1]["gpus"][0]["name"] == "NVIDIA GeForce RTX 3090"
    png = written[2].read_bytes()
    assert png.startswith(b"\x89PNG")
    assert len(png) > 10_000


async def test_a_report_that_cannot_be_written(live: Callable[..., Live], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    report = await measure(live(max_model_len=1024).url, concurrency=(1,), num_requests=1)
    with pytest.raises(StorageError, match="cannot be written to"):
        save(report, tmp_path / "file")
