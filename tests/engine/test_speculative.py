"""Steps with drafts of a real (tiny) model: the answers are those that it gives without."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from strata.config import CacheConfig, DeviceConfig, EngineConfig, SchedulerConfig
from strata.config.engine import MAX_DRAFT
from strata.engine.loop import EngineLoop
from strata.request import FinishReason, GenerationRequest, SamplingParams, TokenLogprobs
from strata.runner.runner import Runner
from strata.scheduler.depth import DepthController
from strata.scheduler.drafts import LookupDrafter
from strata.scheduler.sequence import Sequence
from strata.store.locate import resolve
from tests.engine import float32
from tests.engine.tiny_llama import CONFIG, write_checkpoint

CYCLE = (17, 4, 33, 8, 25, 61)  # a prompt of these over and over


class Remembering(LookupDrafter):
    """Knows the answers, and is wrong at some places."""

    def __init__(self, answers: dict[str, Answer]) -> None:
        super().__init__()
        self._answers = answers

    def _guess(self, sequence: Sequence) -> tuple[int, ...]:
        super()._guess(sequence)
        begin = sequence.num_generated
        following = self._answers[sequence.request_id].token_ids[begin : begin + MAX_DRAFT]
        return tuple(
            (token_id + (place % 5 == 0 or place % 7 == 0)) % CONFIG["vocab_size"]
            for place, token_id in enumerate(following, start=begin)
        )


@dataclass
class Answer:
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    reason: FinishReason | None = None


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("speculative")
    return resolve(str(write_checkpoint(directory / "tiny", eos_token_id=None)), "bf16", directory / "cache")


@pytest.fixture(params=[False, True], ids=["in turn", "ahead"])
def ahead(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps begin after the one before was taken in, as on a CPU; or while it runs, as on a card."""
    monkeypatch.setattr(Runner, "runs_ahead", request.param)


@pytest.fixture(autouse=True)
def steps_of_one_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the machine is busy with: all drafts that are likely pay."""
    monkeypatch.setattr(DepthController, "record", lambda self, num_tokens, seconds: None)


def load(store: Path, speculative: str, **scheduler: Any) -> EngineLoop:
    return float32.load(
        EngineConfig(
            model=str(store),
            dtype="bf16",
            device=DeviceConfig(device="cpu", num_threads=1),
            cache=CacheConfig(num_kv_tokens=1024),
            scheduler=SchedulerConfig(**{"speculative": speculative, **scheduler}),
        )
    )


def request(number: int, **sampling: Any) -> GenerationRequest:
    prompt = (*(CYCLE * 4)[number:], 70 + number, *(CYCLE * 2)[: 3 + number])
    params = SamplingParams(**{"max_tokens": 60, "temperature": 0.0, "seed": number, **sampling})
    return GenerationRequest(f"r{number}", prompt, params)


def answers(loop: EngineLoop, requests: list[GenerationRequest]) -> dict[str, Answer]:
    for wanted in requests:
        loop.add(wanted)
    found = {wanted.request_id: Answer() for wanted in requests}
    while loop.has_work:
        for output in loop.step().outputs:
            answer = found[output.request_id]
            assert answer.reason is None
            answer.token_ids += output.token_ids
            answer.logprobs += output.logprobs
            answer.reason = output.finish_reason
        loop.check_integrity()
    return found


KINDS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "nearly greedy": {"temperature": 0.05},
    "filtered": {"temperature": 0.3, "top_k": 3, "top_p": 0.9},
    "penalty": {"frequency_penalty": 0.01},
    "logprobs": {"logprobs": 2},
    "few words": {"logit_bias": ((17, 60.0), (4, 60.0)), "temperature": 1.0},
}


@pytest.mark.usefixtures("ahead")
@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_without_drafts(store: Path, kind: str) -> None:
    requests = [request(number, **KINDS[kind]) for number in range(3)]
    plain = answers(load(store, "off"), requests)
    loop = load(store, "lookup")
    if kind != "few words":
        loop._scheduler._drafter = Remembering(plain)
    found = answers(loop, requests)
    for name, answer in plain.items():
        assert found[name].token_ids == answer.token_ids
        assert found[name].reason == answer.reason == FinishReason.LENGTH
        assert len(found[name].logprobs) == len(answer.logprobs) == (60 if kind == "logprobs" else 0)
        for one, other in zip(found[name].logprobs, answer.logprobs, strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
    stats = loop.stats()
    assert 0 < stats.num_accepted < stats.num_drafted


def test_requests_of_all_kinds_together_in_a_pool_too_small_for_them(store: Path) -> None:
    requests = [request(number, **settings) for number, settings in enumerate(KINDS.values())]
    alone: dict[str, Answer] = {}
    for wanted in requests:
        alone |= answers(load(store, "off"), [wanted])
    loop = load(store, "lookup", max_num_seqs=4, max_num_batched_tokens=24)
    loop._scheduler._drafter = Remembering(alone)
    found = answers(loop, requests)
    assert {name: answer.token_ids for name, answer in found.items()} == {
        name: answer.token_ids for name, answer in alone.items()
    }
    assert loop.stats().num_accepted > 0


def test_a_stop_token_in_the_middle_of_a_draft_ends_the_answer(store: Path) -> None:
    (plain,) = answers(load(store, "off"), [request(1)]).values()
    stop = plain.token_ids[-1]
    loop = load(store, "lookup")
    loop._scheduler._drafter = Remembering({"r1": plain})
    (found,) = answers(loop, [request(1, stop_token_ids=(stop,))]).values()
    assert found.token_ids == plain.token_ids[: plain.token_ids.index(stop) + 1]
    assert found.reason == FinishReason.STOP


def test_without_the_option_nothing_is_drafted(store: Path) -> None:
    loop = load(store, "off")
    answers(loop, [request(0)])
    assert loop.stats().num_drafted == 0
