"""Grammars in the step loop: compiled beside it, followed in it."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from strata.config import CacheConfig, DeviceConfig, EngineConfig, SchedulerConfig
from strata.engine.loop import EngineLoop
from strata.engine.messages import Rejected
from strata.errors import OverloadedError, RequestError
from strata.request import FinishReason, GenerationRequest, Grammar, SamplingParams, TokenOutput
from strata.sampling.grammar import GrammarCompiler
from strata.scheduler.depth import DepthController
from strata.store.locate import resolve
from tests.engine import float32
from tests.engine.tiny_llama import write_checkpoint

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 6},
        "sizes": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
        "kind": {"enum": ["a", "b"]},
    },
    "required": ["name", "sizes", "kind"],
    "additionalProperties": False,
}
GRAMMAR = Grammar("json_schema", json.dumps(SCHEMA))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with printable ASCII as its vocabulary: ids 2 to 95 are the characters from the space on."""
    directory = tmp_path_factory.mktemp("structured")
    checkpoint = write_checkpoint(directory / "tiny")
    characters = ["Ġ", *map(chr, range(0x21, 0x7E))]
    vocabulary = {"<unk>": 0, "</s>": 1} | {character: n for n, character in enumerate(characters, start=2)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<unk>", "</s>"])
    tokenizer.save(str(checkpoint / "tokenizer.json"))
    return resolve(str(checkpoint), "bf16", directory / "cache")


def load(store: Path, num_kv_tokens: int = 1024, **scheduler: Any) -> EngineLoop:
    return float32.load(
        EngineConfig(
            model=str(store),
            dtype="bf16",
            device=DeviceConfig(device="cpu", num_threads=1),
            cache=CacheConfig(num_kv_tokens=num_kv_tokens),
            scheduler=SchedulerConfig(**scheduler),
        )
    )


def request(name: str, grammar: Grammar | None = GRAMMAR, **sampling: Any) -> GenerationRequest:
    settings = {"max_tokens": 100, "temperature": 1.0, "seed": 3, "grammar": grammar, **sampling}
    return GenerationRequest(name, tuple(range(5, 15)), SamplingParams(**settings))


def run(loop: EngineLoop) -> dict[str, tuple[list[int], FinishReason | None]]:
    outputs: dict[str, tuple[list[int], FinishReason | None]] = {}
    while loop.has_work:
        step = loop.step()
        assert step.rejected == ()
        for output in step.outputs:
            tokens, _ = outputs.get(output.request_id, ([], None))
            outputs[output.request_id] = ([*tokens, *output.token_ids], output.finish_reason)
        loop.check_integrity()
    return outputs


def text_of(token_ids: list[int]) -> str:
    assert token_ids[-1] == 1, "the end is drawn as any other token"
    return "".join(" " if token_id == 2 else chr(0x21 + token_id - 3) for token_id in token_ids[:-1])


def test_answers_match_alone_and_together_even_when_they_are_preempted(store: Path) -> None:
    requests = [request(str(number), seed=number) for number in range(5)]
    requests.append(request("greedy", temperature=0.0))
    alone: dict[str, tuple[list[int], FinishReason | None]] = {}
    roomy = load(store)
    for wanted in requests:
        roomy.add(wanted)
        alone |= run(roomy)
    tight = load(store, num_kv_tokens=128, max_num_seqs=4, max_num_batched_tokens=16)
    for wanted in [*requests, request("free", None, max_tokens=60, ignore_eos=True)]:
        tight.add(wanted)
    together = run(tight)
    assert len(together.pop("free")[0]) == 60
    assert together == alone
    assert tight.stats().num_preemptions > 0
    for token_ids, reason in alone.values():
        assert reason is FinishReason.STOP
        jsonschema_rs.validate(SCHEMA, json.loads(text_of(token_ids)))
    assert len({tuple(token_ids) for token_ids, _ in alone.values()}) == 6


def test_the_limit_cuts_an_answer_short(store: Path) -> None:
    loop = load(store)
    loop.add(request("a", max_tokens=5))
    token_ids, reason = run(loop)["a"]
    assert (len(token_ids), reason) == (5, FinishReason.LENGTH)


def test_logprobs_come_with_a_grammar(store: Path) -> None:
    loop = load(store)
    loop.add(request("a", Grammar("regex", "[0-9]{4}"), logprobs=2))
    outputs: list[TokenOutput] = []
    while loop.has_work:
        outputs += loop.step().outputs
    assert len(outputs) == 5
    assert all(len(output.logprobs) == 1 and len(output.logprobs[0].top) == 2 for output in outputs)


def test_drafts_of_what_repeats_itself_follow_the_grammar(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DepthController, "record", lambda self, num_tokens, seconds: None)
    plain, drafted = load(store), load(store, speculative="lookup")
    for loop in (plain, drafted):
        loop.add(request("a", Grammar("regex", "(name=[0-9], ){12}end")))
    assert run(drafted) == run(plain)
    assert drafted.stats().num_accepted > 20


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Grammars take until the event is set."""
    release = threading.Event()
    build = GrammarCompiler._build

    def wait_and_build(self: GrammarCompiler, grammar: Grammar) -> Any:
        assert release.wait(60)
        return build(self, grammar)

    monkeypatch.setattr(GrammarCompiler, "_build", wait_and_build)
    yield release
    release.set()


def test_others_go_on_while_a_grammar_is_compiled(store: Path, slow: threading.Event) -> None:
    loop = load(store)
    loop.add(request("slow"))
    loop.add(request("free", None, max_tokens=10, ignore_eos=True))
    tokens = [output.token_ids for _ in range(10) for output in loop.step().outputs]
    assert len(tokens) == 10
    assert loop.has_work
    assert loop.step().outputs == (), "with nothing else to do, a step waits a moment and returns"
    slow.set()
    token_ids, reason = run(loop)["slow"]
    assert reason is FinishReason.STOP
    jsonschema_rs.validate(SCHEMA, json.loads(text_of(token_ids)))


def test_a_request_can_be_aborted_while_its_grammar_is_compiled(store: Path, slow: threading.Event) -> None:
    loop = load(store)
    for name in "abc":  # the third waits for a thread
        loop.add(request(name, Grammar("regex", name)))
    for name in "abc":
        loop.abort(name)
    assert not loop.has_work
    slow.set()
    loop.add(request("d", Grammar("regex", "d")))
    assert list(run(loop)) == ["d"]


def test_time_runs_while_a_grammar_is_compiled(store: Path, slow: threading.Event) -> None:
    loop = load(store)
    loop.add(replace(request("late"), timeout_seconds=1e-9))
    loop.add(replace(request("patient"), timeout_seconds=1e9))
    (output,) = loop.step().outputs
    assert (output.request_id, output.token_ids, output.finish_reason) == ("late", (), FinishReason.TIMEOUT)
    assert loop.step().outputs == ()
    slow.set()
    assert list(run(loop)) == ["patient"]


def test_what_cannot_be_compiled_is_rejected(store: Path) -> None:
    loop = load(store)
    loop.add(request("bad", Grammar("regex", "(")))
    loop.add(request("good", Grammar("regex", "x")))
    rejected: list[Rejected] = []
    ended = []
    while loop.has_work:
        step = loop.step()
        rejected += step.rejected
        ended += [output.request_id for output in step.outputs if output.finish_reason]
    assert ended == ["good"]
    assert [rejection.request_id for rejection in rejected] == ["bad"]
    assert isinstance(rejected[0].error, RequestError)
    assert "unclosed group" in str(rejected[0].error)


def test_a_queue_that_is_full_when_the_grammar_is_there_rejects_the_request(store: Path) -> None:
    loop = load(store, max_num_seqs=1, max_waiting=0)
    loop.add(request("free", None, ignore_eos=True))
    loop.add(request("a", Grammar("regex", "x")))
    rejected: list[Rejected] = []
    while loop.has_work and not rejected:
        rejected += loop.step().rejected
    assert [rejection.request_id for rejection in rejected] == ["a"]
    assert isinstance(rejected[0].error, OverloadedError)


def test_a_grammar_that_fails_on_the_way_ends_its_request_with_the_reason(store: Path) -> None:
    loop = load(store)
    loop.add(request("a"))
    loop.add(request("b"))
    while "a" not in loop._sampler._requests:
        loop.step()
    matcher = loop._sampler._requests["a"].matcher
    assert matcher is not None
    matcher.consume_token(1)  # the end, where none is allowed: it fails, as at a limit
    while not (step := loop.step()).rejected:
        assert "a" not in [output.request_id for output in step.outputs]
    assert [rejection.request_id for rejection in step.rejected] == ["a"]
    with pytest.raises(RequestError, match="could not be followed further") as error:
        raise step.rejected[0].error
    assert error.value.code == "invalid_grammar"
    assert run(loop)["b"][1] is FinishReason.STOP


def any_request(rng: random.Random, name: str) -> GenerationRequest:
    """A request with whatever fields there are, in whatever combination."""
    grammars = [
        GRAMMAR,
        Grammar("regex", "[a-z]{2,9}"),
        Grammar("grammar", 'start: "yes" | "no"'),
        Grammar("regex", "("),
    ]
    fields: dict[str, Any] = {
        "temperature": rng.choice([0.0, 0.7, 1.9]),
        "top_k": rng.choice([0, 1, 30]),
        "top_p": rng.choice([1.0, 0.6]),
        "min_p": rng.choice([0.0, 0.1, 1.0]),
        "repetition_penalty": rng.choice([1.0, 1.0, 0.5, 2.0]),
        "presence_penalty": rng.choice([0.0, 0.0, 2.0, -2.0]),
        "frequency_penalty": rng.choice([0.0, 0.0, 2.0, -2.0]),
        "logit_bias": rng.choice([(), (), ((5, 100.0), (6, -100.0))]),
        "logprobs": rng.choice([None, None, 0, 20]),
        "grammar": rng.choice([None, None, *grammars]),
        "seed": rng.choice([None, 7]),
        "max_tokens": rng.randrange(1, 40),
    }
    prompt = tuple(rng.randrange(2, 96) for _ in range(rng.randrange(1, 60)))
    return GenerationRequest(name, prompt, SamplingParams(**fields), priority=rng.randrange(3))


def test_any_mixture_of_requests_comes_to_its_end(store: Path) -> None:
    """With arrivals and aborts in between, in a small pool."""
    rng = random.Random(11)
    loop = load(store, num_kv_tokens=192, max_num_seqs=5, max_num_batched_tokens=24, max_waiting=20)
    waiting = [any_request(rng, str(number)) for number in range(60)]
    open_requests: dict[str, GenerationRequest] = {}
    ended: list[str] = []
    while waiting or loop.has_work:
        while waiting and len(open_requests) < 12 and rng.random() < 0.5:
            wanted = waiting.pop()
            open_requests[wanted.request_id] = wanted
            loop.add(wanted)
        if open_requests and rng.random() < 0.02:
            gone = rng.choice(sorted(open_requests))
            loop.abort(gone)
            ended.append(gone)
            del open_requests[gone]
        step = loop.step()
        loop.check_integrity()
        for output in step.outputs:
            assert output.finish_reason is not FinishReason.ERROR, output.error
            wanted_logprobs = open_requests[output.request_id].sampling.logprobs is not None
            assert len(output.logprobs) == (len(output.token_ids) if wanted_logprobs else 0)
            if output.finish_reason is not None:
                ended.append(output.request_id)
                del open_requests[output.request_id]
        for rejection in step.rejected:
            assert open_requests.pop(rejection.request_id).sampling.grammar == Grammar("regex", "(")
            ended.append(rejection.request_id)
    assert sorted(ended) == sorted(str(number) for number in range(60))
    assert loop._sampler._requests == {}
    stats = loop.stats()
    assert (stats.num_running, stats.num_waiting) == (0, 0)
