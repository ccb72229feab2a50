"""What an engine tells of itself over HTTP: how far a start is, and what it has counted since."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from prometheus_client.parser import text_string_to_metric_families

MAX_PHASE = 64  # characters
# Phases until the converted weights are on the node, and all that count bytes; the others count tokens.
FETCHING = ("start", "wait", "download", "convert", "write", "verify")
IN_BYTES = (*FETCHING, "load", "prepare")
# Metrics of the engine (docs/metrics.md).
_TOKENS = "strata_generation_tokens_total"
_STEPS = "strata_step_seconds_total"
_TTFT = "strata_time_to_first_token_seconds_bucket"
_EXPERTS = "strata_expert_uses_total"

Buckets = tuple[tuple[float, float], ...]  # upper bound in seconds, and how many were no longer than that


@dataclass(frozen=True, slots=True)
class Progress:
    """One look at a start; ``done`` and ``total`` are bytes, or tokens, of the phase."""

    phase: str
    done: int
    total: int

    @classmethod
    def parse(cls, answer: bytes) -> Progress | None:
        """Of the body of ``GET /ready``; None where it tells of no start. Pods run anybody's images: all is doubted."""
        try:
            said = json.loads(answer)
        except (ValueError, RecursionError):
            return None
        if not isinstance(said, Mapping) or said.get("status") != "loading":
            return None
        phase, done, total = said.get("phase"), said.get("bytes_done"), said.get("bytes_total")
        if not isinstance(phase, str) or not _is_count(done) or not _is_count(total):
            return None
        words = "".join(one if one.isprintable() else " " for one in phase[:MAX_PHASE])
        return cls(words, min(done, total), total)


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < 1 << 60


@dataclass(frozen=True, slots=True)
class Loading:
    """How a start goes, coarsely, for it is written down: ``tenths`` of the phase, and the rate so far."""

    phase: str
    tenths: int
    total: int  # 0: not known
    per_second: int | None = None  # None: not known yet


@dataclass(frozen=True, slots=True)
class Counters:
    """What an engine has counted since it started."""

    tokens: float  # generated
    step_seconds: float
    ttft: Buckets
    experts: float = 0  # that steps needed, where VRAM is a cache of them
    hits: float = 0  # those of them that it had

    @classmethod
    def parse(cls, answer: bytes) -> Counters | None:
        """Of the body of ``GET /metrics``; None where it is not this engine's."""
        found: dict[str, float] = {}
        experts, hits = 0.0, 0.0
        buckets: list[tuple[float, float]] = []
        try:
            for family in text_string_to_metric_families(answer.decode()):
                for sample in family.samples:
                    if sample.name == _TTFT:
                        buckets.append((float(sample.labels["le"]), float(sample.value)))
                    elif sample.name in (_TOKENS, _STEPS):
                        found[sample.name] = float(sample.value)
                    elif sample.name == _EXPERTS:
                        experts += sample.value
                        hits += sample.value if sample.labels["source"] == "vram" else 0
        except (ValueError, KeyError, IndexError, TypeError):
            return None
        figures = [*found.values(), *(count for _, count in buckets), experts, hits]
        if len(found) != 2 or not all(0 <= value < float("inf") for value in figures):
            return None
        return cls(found[_TOKENS], found[_STEPS], tuple(sorted(buckets)), experts, hits)

    def since(self, before: Counters) -> Traffic | None:
        """What came after ``before``; None where the engine has started anew in between."""
        grown = len(self.ttft) == len(before.ttft) and all(
            now[0] == then[0] and now[1] >= then[1] for now, then in zip(self.ttft, before.ttft, strict=True)
        )
        plain = [
            now - then
            for now, then in (
                (self.tokens, before.tokens),
                (self.step_seconds, before.step_seconds),
                (self.experts, before.experts),
                (self.hits, before.hits),
            )
        ]
        if not grown or min(plain) < 0:
            return None
        tokens, seconds, experts, hits = plain
        ttft = tuple((bound, now - then) for (bound, now), (_, then) in zip(self.ttft, before.ttft, strict=True))
        return Traffic(tokens, seconds, ttft, experts, hits)


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one engine did in a stretch of time."""

    tokens: float
    step_seconds: float
    ttft: Buckets
    experts: float = 0
    hits: float = 0


def total(parts: Iterable[Traffic]) -> Traffic:
    """Of several engines."""
    parts = tuple(parts)
    counts: dict[float, float] = {}
    for bound, count in (bucket for one in parts for bucket in one.ttft):
        counts[bound] = counts.get(bound, 0.0) + count
    return Traffic(
        tokens=sum(one.tokens for one in parts),
        step_seconds=sum(one.step_seconds for one in parts),
        ttft=tuple(sorted(counts.items())),
        experts=sum(one.experts for one in parts),
        hits=sum(one.hits for one in parts),
    )
