"""One level of load, summed up."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from strata.bench.serve.client import Answer
from strata.bench.serve.gpus import GpuSummary

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Seconds. ``percentiles``: by their number."""

    mean: float
    percentiles: dict[int, float]


@dataclass(frozen=True, slots=True)
class EngineCounters:
    """What Strata's ``/metrics`` counted so far; times in seconds."""

    generation_tokens: float
    step_seconds: float


@dataclass(frozen=True, slots=True)
class EngineView:
    """The same level inside the server: tokens over the seconds that the engine's steps took, without HTTP and text."""

    tokens_per_second: float
    client_ratio: float  # client's tok/s over the engine's; less where streams are not always busy


@dataclass(frozen=True, slots=True)
class Level:
    """``load``: "8 streams" or "2 requests/s". ``seconds``: from the first request to the last answer. Distributions
    are None where nothing was answered."""

    load: str
    value: float
    num_requests: int
    num_answered: int
    errors: dict[str, int]
    seconds: float
    prompt_tokens: int
    output_tokens: int
    is_counted: bool  # by the server; else chunks of text stand for tokens
    ttft: Distribution | None
    gaps: Distribution | None
    duration: Distribution | None
    engine: EngineView | None
    gpus: tuple[GpuSummary, ...]

    @property
    def tokens_per_second(self) -> float:
        return self.output_tokens / self.seconds if self.seconds else 0.0


def summarise(
    load: str,
    value: float,
    answers: Sequence[Answer],
    *,
    num_requests: int,
    before: EngineCounters | None = None,
    after: EngineCounters | None = None,
    gpus: tuple[GpuSummary, ...] = (),
) -> Level:
    """Errors are counted beside; what a failed request got of its answer does not count."""
    whole = [answer for answer in answers if answer.error is None]
    began = min((answer.started for answer in answers), default=0.0)
    seconds = max((answer.ended for answer in answers), default=0.0) - began
    # The engine's counter has those of broken answers, too, and those of requests that nobody waited for.
    all_tokens = sum(answer.output_tokens for answer in answers)
    return Level(
        load=load,
        value=value,
        num_requests=num_requests,
        num_answered=len(whole),
        errors=dict(Counter(answer.error for answer in answers if answer.error is not None).most_common()),
        seconds=seconds,
        prompt_tokens=sum(answer.prompt_tokens or 0 for answer in whole),
        output_tokens=sum(answer.output_tokens for answer in whole),
        is_counted=all(answer.is_counted for answer in whole),
        ttft=distribution(answer.first - answer.started for answer in whole if answer.first is not None),
        gaps=distribution(gap for answer in whole for gap in answer.gaps),
        duration=distribution(answer.ended - answer.started for answer in whole),
        engine=_engine_view(before, after, all_tokens / seconds) if len(answers) == num_requests and seconds else None,
        gpus=gpus,
    )


def distribution(values: Iterable[float]) -> Distribution | None:
    """None of no values."""
    ordered = sorted(values)
    if not ordered:
        return None
    return Distribution(math.fsum(ordered) / len(ordered), {q: percentile(ordered, q) for q in PERCENTILES})


def percentile(ordered: Sequence[float], q: float) -> float:
    """Linear between the two nearest of sorted values, as numpy's default."""
    place = (len(ordered) - 1) * q / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def read_counters(metrics: str | None) -> EngineCounters | None:
    """From the text of ``/metrics``; None where it is not Strata's."""
    if metrics is None or "strata_generation_tokens_total" not in metrics:
        return None
    values = {
        sample.name: sample.value
        for family in text_string_to_metric_families(metrics)
        for sample in family.samples
        if not sample.labels
    }
    return EngineCounters(
        generation_tokens=values.get("strata_generation_tokens_total", 0.0),
        step_seconds=values.get("strata_step_seconds_total", 0.0),
    )


def _engine_view(before: EngineCounters | None, after: EngineCounters | None, client_rate: float) -> EngineView | None:
    """None where the engine is not Strata's, or made no step that took time."""
    if before is None or after is None or after.step_seconds <= before.step_seconds:
        return None
    rate = (after.generation_tokens - before.generation_tokens) / (after.step_seconds - before.step_seconds)
    return EngineView(rate, client_rate / rate if rate else 0.0)
