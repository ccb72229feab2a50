"""A chat with a served model by the official client, and what its metrics say of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
from openai import DefaultHttpxClient, OpenAI
from prometheus_client.parser import text_string_to_metric_families

TTFT, ITL = "strata_time_to_first_token_seconds", "strata_inter_token_latency_seconds"


@dataclass(frozen=True, slots=True)
class Speed:
    """Of the requests between two looks at the metrics."""

    time_to_first_token: float  # seconds, mean
    tokens_per_second: float  # of one sequence after its first token
    tokens: int  # generated


@contextmanager
def openai(base_url: str, api_key: str = "none") -> Iterator[OpenAI]:
    """The official client; it takes no proxy, since the address is a cluster's or this machine's."""
    with (
        DefaultHttpxClient(trust_env=False, timeout=120) as http,
        OpenAI(base_url=f"{base_url}/v1", api_key=api_key, http_client=http, max_retries=0) as client,
    ):
        yield client


def stream(client: OpenAI, model: str, question: str, *, max_tokens: int) -> Iterator[str]:
    """The answer, piece by piece."""
    chunks = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        max_tokens=max_tokens,
        temperature=0,
        stream=True,
    )
    for chunk in chunks:
        for choice in chunk.choices:
            if choice.delta.content:
                yield choice.delta.content


def metrics(base_url: str) -> dict[str, float]:
    """Samples by name and labels: ``strata_requests_total{outcome=stop}``."""
    text = httpx.get(f"{base_url}/metrics", trust_env=False, timeout=30).raise_for_status().text
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def speed(before: dict[str, float], after: dict[str, float]) -> Speed:
    """How fast the requests between the two looks were."""

    def mean(histogram: str) -> float:
        count = after[f"{histogram}_count"] - before[f"{histogram}_count"]
        total = after[f"{histogram}_sum"] - before[f"{histogram}_sum"]
        return total / count if count else float("nan")

    tokens = after["strata_generation_tokens_total"] - before["strata_generation_tokens_total"]
    return Speed(time_to_first_token=mean(TTFT), tokens_per_second=1 / mean(ITL), tokens=int(tokens))
