"""Steps with drafts of a real (tiny) model: the answers are those that it gives without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
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
from tests.engine.tiny_llama import CONFIG, QWEN3_5, QWEN3_NEXT, write_checkpoint

MODELS: dict[str, dict[str, Any]] = {"llama": {"eos_token_id": None}, "qwen3 next": QWEN3_NEXT, "qwen3.5 moe": QWEN3_5}
WRONG: dict[str, Callable[[int], bool]] = {
    "none": lambda place: False,
    "some": lambda place: place % 5 == 0 or place % 7 == 0,
    "all": lambda place: True,
}
CYCLE = (17, 4, 33, 8, 25, 61)  # a prompt of these over and over


class Remembering(LookupDrafter):
    """Knows the answers, and is wrong at some places."""

    def __init__(self, answers: dict[str, Answer], wrong: Callable[[int], bool] = WRONG["some"]) -> None:
        """``wrong``: at which places of an answer."""
        super().__init__()
        self._answers = answers
        self._wrong = wrong

    def _guess(self, sequence: Sequence) -> tuple[int, ...]:
        super()._guess(sequence)
        begin = sequence.num_generated
        following = self._answers[sequence.request_id].token_ids[begin : begin + MAX_DRAFT]
        return tuple(
            (token_id + self._wrong(place)) % CONFIG["vocab_size"]
            for place, token_id in enumerate(following, start=begin)
        )


@dataclass
class Answer:
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    reason: FinishReason | None = None


@pytest.fixture(scope="module", params=MODELS)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("speculative")
    checkpoint = write_checkpoint(directory / "tiny", **MODELS[request.param])
    return resolve(str(checkpoint), "bf16", directory / "cache")


@pytest.fixture(params=[False, True], ids=["in turn", "ahead"])
def ahead(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps begin after the one before was taken in, as on a CPU; or while it runs, as on a card."""
    monkeypatch.setattr(Runner, "runs_ahead", request.param)


@pytest.fixture(autouse=True)
def steps_of_one_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the machine is busy with: all drafts that are likely pay."""
    monkeypatch.setattr(DepthController, "record", lambda self, num_tokens, seconds: None)


def load(store: Path, speculative: str, num_kv_tokens: int = 1024, **scheduler: Any) -> EngineLoop:
    return float32.load(
        EngineConfig(
            model=str(store),
            dtype="bf16",
            device=DeviceConfig(device="cpu", num_threads=1),
            cache=CacheConfig(num_kv_tokens=num_kv_tokens),
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
    check_nothing_is_left(loop)


def check_nothing_is_left(loop: EngineLoop) -> None:
    stats = loop.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_used_states) == (0, 0, 0)
    assert stats.num_free_blocks == stats.num_total_blocks


@pytest.mark.usefixtures("ahead")
@pytest.mark.parametrize("wrong", ["none", "all"])
def test_drafts_that_are_all_right_or_all_wrong_change_no_answer(store: Path, wrong: str) -> None:
    requests = [request(number) for number in range(3)]
    plain = answers(load(store, "off"), requests)
    loop = load(store, "lookup")
    loop._scheduler._drafter = Remembering(plain, WRONG[wrong])
    found = answers(loop, requests)
    assert {name: answer.token_ids for name, answer in found.items()} == {
        name: answer.token_ids for name, answer in plain.items()
    }
    stats = loop.stats()
    assert stats.num_drafted > 0
    assert stats.num_accepted == (stats.num_drafted if wrong == "none" else 0)


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
    check_nothing_is_left(loop)


def test_drafts_in_a_pool_too_small_for_all_change_no_answer(store: Path) -> None:
    requests = [request(number, max_tokens=90) for number in range(5)]
    alone: dict[str, Answer] = {}
    for wanted in requests:
        alone |= answers(load(store, "off"), [wanted])
    loop = load(store, "lookup", num_kv_tokens=160, max_num_seqs=4, max_num_batched_tokens=16, max_model_len=128)
    loop._scheduler._drafter = Remembering(alone)
    found = answers(loop, requests)
    assert {name: answer.token_ids for name, answer in found.items()} == {
        name: answer.token_ids for name, answer in alone.items()
    }
    assert loop.stats().num_preemptions > 0
    assert loop.stats().num_accepted > 0
    check_nothing_is_left(loop)


@pytest.mark.usefixtures("ahead")
def test_drafts_behind_a_beginning_that_was_computed_change_no_answer(store: Path) -> None:
    """Prompts that share 70 tokens; each comes when the one before has begun to answer."""
    beginning = tuple(11 * position % 90 + 2 for position in range(70))
    requests = [
        replace(wanted, prompt_token_ids=(*beginning, *wanted.prompt_token_ids[-5:]))
        for wanted in (request(number, max_tokens=40) for number in range(4))
    ]
    alone: dict[str, Answer] = {}
    for wanted in requests:
        alone |= answers(load(store, "off"), [wanted])
    loop = load(store, "lookup", max_num_seqs=3, max_num_batched_tokens=24)
    loop._scheduler._drafter = Remembering(alone)
    found: dict[str, list[int]] = {wanted.request_id: [] for wanted in requests}
    waiting = requests[::-1]
    while waiting or loop.has_work:
        if waiting and (len(waiting) == len(requests) or len(found[requests[-len(waiting) - 1].request_id]) > 5):
            loop.add(waiting.pop())
        for output in loop.step().outputs:
            found[output.request_id] += output.token_ids
        loop.check_integrity()
    assert found == {name: answer.token_ids for name, answer in alone.items()}
    stats = loop.stats()
    assert stats.num_prefix_hits == 3 * 64
    assert stats.num_accepted > 0
    check_nothing_is_left(loop)


@pytest.mark.usefixtures("ahead")
def test_requests_that_are_dropped_between_drafts_change_no_other_answer(store: Path) -> None:
    requests = [request(number) for number in range(6)]
    alone: dict[str, Answer] = {}
    for wanted in requests:
        alone |= answers(load(store, "off"), [wanted])
    loop = load(store, "lookup", max_num_seqs=3)
    loop._scheduler._drafter = Remembering(alone)
    for wanted in requests:
        loop.add(wanted)
    found: dict[str, list[int]] = {wanted.request_id: [] for wanted in requests}
    while loop.has_work:
        for output in loop.step().outputs:
            found[output.request_id] += output.token_ids
        for name in ("r0", "r2", "r4"):
            if len(found[name]) > 12:
                loop.abort(name)
        loop.check_integrity()
    for name, answer in alone.items():
        dropped = name in ("r0", "r2", "r4")
        assert found[name] == (answer.token_ids[: len(found[name])] if dropped else answer.token_ids)
        assert dropped == (len(found[name]) < 60)
    assert loop.stats().num_accepted > 0
    check_nothing_is_left(loop)


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
