"""The whole step, with a real (tiny) model: loading, batching, ending, aborting."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strata.config import CacheConfig, DeviceConfig, EngineConfig, SchedulerConfig
from strata.engine.load import load_engine
from strata.engine.loop import EngineLoop
from strata.engine.messages import LoadProgress
from strata.errors import RequestError
from strata.request import FinishReason, GenerationRequest, SamplingParams
from strata.runner.runner import Runner
from strata.sampling import filters
from strata.store.locate import resolve
from tests.engine import float32
from tests.engine.tiny_llama import CONFIG, QWEN3_NEXT, write_checkpoint

Outputs = dict[str, tuple[list[int], FinishReason | None]]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("loop")
    return resolve(str(write_checkpoint(directory / "tiny")), "bf16", directory / "cache")


def config(store: Path, num_kv_tokens: int = 1024, **scheduler: Any) -> EngineConfig:
    return EngineConfig(
        model=str(store),
        dtype="bf16",
        device=DeviceConfig(device="cpu", num_threads=1),
        cache=CacheConfig(num_kv_tokens=num_kv_tokens),
        scheduler=SchedulerConfig(**scheduler),
    )


def request(number: int, max_tokens: int = 24, **sampling: object) -> GenerationRequest:
    prompt = tuple((7 * number + 13 * position) % 90 + 2 for position in range(3 + 5 * number))
    params = SamplingParams(max_tokens=max_tokens, **({"temperature": 0.0} | sampling))  # type: ignore[arg-type]
    return GenerationRequest(f"r{number}", prompt, params)


def run(loop: EngineLoop) -> Outputs:
    """Step until nothing is left."""
    outputs: Outputs = {}
    while loop.has_work:
        for output in loop.step().outputs:
            tokens, ended = outputs.get(output.request_id, ([], None))
            assert ended is None
            outputs[output.request_id] = ([*tokens, *output.token_ids], output.finish_reason)
        loop.check_integrity()
    return outputs


@pytest.fixture(params=[False, True], ids=["in turn", "ahead"])
def ahead(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps begin after the one before was taken in, as on a CPU; or while it runs, as on a card."""
    monkeypatch.setattr(Runner, "runs_ahead", request.param)


EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "eos_token_id": None}


# Several residual streams, n-grams, and attention to 2 groups of 4 tokens beside those behind the last whole one.
QWEN4: dict[str, Any] = {
    **QWEN3_NEXT,
    "architectures": ["Qwen4ExpForCausalLM"],
    "hc_count": 2,
    "hc_lowrank": 8,
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 8,
    "indexer_compress_ratio": 4,
    "ple_layer_ids": [1],
    "heads_per_ngram": 2,
    "ngram_vocab_size_base": 50,
    "eos_token_id": 1,
}


@pytest.mark.usefixtures("ahead")
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="llama"),
        pytest.param({"architectures": ["Qwen3MoeForCausalLM"], "norm_topk_prob": True, **EXPERTS}, id="experts"),
        pytest.param(
            {"architectures": ["GptOssForCausalLM"], "head_dim": 16, "sliding_window": 10, **EXPERTS},
            id="experts, windows and sinks",
        ),
        pytest.param(QWEN3_NEXT, id="linear attention"),
        pytest.param(QWEN4, id="streams, index and n-grams"),
    ],
)
def test_requests_together_get_what_each_gets_alone(tmp_path: Path, changes: dict[str, Any]) -> None:
    store = resolve(str(write_checkpoint(tmp_path / "tiny", **changes)), "bf16", tmp_path / "cache")
    requests = [request(number, ignore_eos="ple_layer_ids" in changes) for number in range(8)]  # n-grams need an eos
    alone: Outputs = {}
    for wanted in requests:
        loop = float32.load(config(store))
        loop.add(wanted)
        alone |= run(loop)
    # Prompts of up to 38 tokens in chunks of at most 16, three at a time, in a pool that holds fewer than they need.
    together = float32.load(
        config(store, num_kv_tokens=64, max_model_len=64, max_num_seqs=3, max_num_batched_tokens=16)
    )
    for wanted in requests:
        together.add(wanted)
    assert run(together) == alone
    assert together.stats().num_preemptions > 0
    assert together.stats().num_free_blocks == together.stats().num_total_blocks == 4
    assert all(len(tokens) == 24 or reason is FinishReason.STOP for tokens, reason in alone.values())


@pytest.mark.usefixtures("ahead")
def test_seeded_sampling_does_not_depend_on_the_batch(store: Path) -> None:
    requests = [request(number, max_tokens=12, temperature=1.0, seed=number) for number in range(4)]
    alone: Outputs = {}
    loop = float32.load(config(store))
    for wanted in requests:
        loop.add(wanted)
        alone |= run(loop)
    for wanted in requests:
        loop.add(wanted)
    assert run(loop) == alone


@pytest.mark.usefixtures("ahead")
@pytest.mark.parametrize(
    "changes", [pytest.param(QWEN3_NEXT, id="linear attention"), pytest.param(QWEN4, id="streams, index and n-grams")]
)
def test_states_that_are_kept_change_no_output(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Of a model with linear attention: prompts with the same 70 tokens before what is their own."""
    store = resolve(str(write_checkpoint(tmp_path / "tiny", **changes)), "bf16", tmp_path / "cache")
    beginning = tuple(11 * position % 90 + 2 for position in range(70))
    requests = [
        replace(wanted, prompt_token_ids=(*beginning, *wanted.prompt_token_ids)) for wanted in map(request, range(4))
    ]
    alone: Outputs = {}
    for wanted in requests:
        loop = float32.load(replace(config(store), cache=CacheConfig(num_kv_tokens=1024, prefix_cache=False)))
        loop.add(wanted)
        alone |= run(loop)
        assert (loop.stats().num_total_snapshots, loop.stats().num_prefix_hits) == (0, 0)
    together = float32.load(config(store, max_num_seqs=2, max_num_batched_tokens=32))
    for wanted in requests:
        together.add(wanted)
    assert run(together) == alone
    stats = together.stats()
    assert stats.num_prefix_hits >= 2 * 64, "four blocks of 16 for those that follow"
    assert (stats.num_used_states, stats.num_total_states) == (0, 2)
    assert 0 < stats.num_snapshots <= stats.num_total_snapshots


@pytest.mark.usefixtures("ahead")
def test_shared_beginnings_change_no_output(store: Path) -> None:
    """Prompts with the same 40 tokens before what is their own, three of them twice, in a pool too small for them."""
    beginning = tuple(11 * position % 90 + 2 for position in range(40))
    requests = [
        replace(wanted, request_id=name, prompt_token_ids=(*beginning, *wanted.prompt_token_ids))
        for wanted in map(request, range(4))
        for name in (wanted.request_id, f"{wanted.request_id} again")
    ]
    alone: Outputs = {}
    for wanted in requests:
        loop = float32.load(replace(config(store), cache=CacheConfig(num_kv_tokens=1024, prefix_cache=False)))
        loop.add(wanted)
        alone |= run(loop)
        assert loop.stats().num_prefix_hits == 0
    together = float32.load(config(store, num_kv_tokens=128, max_num_seqs=4, max_num_batched_tokens=32))
    for wanted in requests:
        together.add(wanted)
    assert run(together) == alone
    stats = together.stats()
    assert stats.num_prefix_hits >= 32 * 7, "two blocks of 16 for all but the first"
    assert stats.num_preemptions > 0
    assert (stats.num_free_blocks, stats.num_total_blocks) == (8, 8)


def test_a_request_whose_time_is_over_ends_with_the_step(store: Path) -> None:
    loop = float32.load(config(store))
    loop.add(replace(request(1), timeout_seconds=1e-9))
    loop.add(request(2))
    outputs = {output.request_id: output for output in loop.step().outputs}
    assert (len(outputs["r1"].token_ids), outputs["r1"].finish_reason) == (1, FinishReason.TIMEOUT)
    assert outputs["r2"].finish_reason is None
    loop.add(request(1))
    assert len(run(loop)["r1"][0]) > 1, "its id can be used again"


@pytest.mark.usefixtures("ahead")
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"repetition_penalty": 1.4}, id="of prompt and output"),
        pytest.param({"presence_penalty": 1.5, "frequency_penalty": 0.8}, id="of the output"),
        pytest.param({"temperature": 1.0, "seed": 3, "min_p": 0.02, "logit_bias": ((7, 3.0),)}, id="drawn"),
    ],
)
def test_penalties_outlast_a_preemption(store: Path, settings: dict[str, Any]) -> None:
    """The output that is prefilled again is output still; and logprobs come for each token once."""
    requests = [request(number, logprobs=1, ignore_eos=True, **settings) for number in range(4)]
    plain = request(2, ignore_eos=True)
    roomy = float32.load(config(store))
    roomy.add(plain)
    without = run(roomy)["r2"]
    alone: Outputs = {}
    for wanted in requests:
        roomy.add(wanted)
        alone |= run(roomy)
    assert alone["r2"] != without, "the settings change something"
    tight = float32.load(config(store, num_kv_tokens=64, max_model_len=64, max_num_seqs=3, max_num_batched_tokens=16))
    for wanted in requests:
        tight.add(wanted)
    outputs: Outputs = {}
    while tight.has_work:
        for output in tight.step().outputs:
            assert len(output.logprobs) == len(output.token_ids) == 1
            if settings.get("temperature", 0) == 0:
                (likeliest,) = output.logprobs[0].top
                assert likeliest == (output.token_ids[0], output.logprobs[0].logprob)
            tokens, _ = outputs.get(output.request_id, ([], None))
            outputs[output.request_id] = ([*tokens, *output.token_ids], output.finish_reason)
    assert outputs == alone
    assert tight.stats().num_preemptions > 0


@pytest.mark.usefixtures("ahead")
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"temperature": 1e-46}, id="a temperature that is zero in float32"),
        pytest.param({"temperature": 0.5, "top_k": 2**70, "top_p": 1e-300}, id="filters beyond any number of torch's"),
        pytest.param({"repetition_penalty": 1e-38}, id="a penalty that overflows"),
    ],
)
def test_no_request_can_end_the_engine(store: Path, settings: dict[str, Any]) -> None:
    loop = float32.load(config(store))
    loop.add(request(2))
    alone = run(loop)
    loop.add(request(1, **settings))
    loop.add(request(2))
    together = run(loop)
    assert together["r2"] == alone["r2"]
    failed = "repetition_penalty" in settings
    assert (together["r1"][1] is FinishReason.ERROR) == failed
    assert loop.stats().num_free_blocks == loop.stats().num_total_blocks


@pytest.mark.usefixtures("ahead")
def test_an_output_that_is_not_finite_is_explained(store: Path) -> None:
    loop = float32.load(config(store))
    loop.add(request(1, repetition_penalty=1e-38))
    (output,) = loop.step().outputs
    assert (output.token_ids, output.finish_reason) == ((), FinishReason.ERROR)
    assert "not finite" in (output.error or "")
    assert not loop.has_work


@pytest.mark.usefixtures("ahead")
def test_abort_frees_blocks_and_forgets_the_request(store: Path) -> None:
    loop = float32.load(config(store))
    loop.add(request(1))
    loop.step()
    assert loop.stats().num_running == 1
    loop.abort("r1")
    loop.abort("r1")
    assert loop.stats().num_free_blocks == loop.stats().num_total_blocks
    assert not loop.has_work
    assert loop.step().outputs == ()
    loop.add(request(1))
    assert len(run(loop)["r1"][0]) > 0


def test_a_step_that_began_before_an_abort_is_of_no_consequence(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even for a request with the same id."""
    monkeypatch.setattr(Runner, "runs_ahead", True)
    loop = float32.load(config(store))
    loop.add(request(2, ignore_eos=True))
    alone = run(loop)["r2"]
    loop.add(request(1, ignore_eos=True, logprobs=2, repetition_penalty=1.3))
    loop.add(replace(request(2, ignore_eos=True), request_id="other"))
    loop.step()
    loop.step()
    loop.abort("r1")
    loop.add(replace(request(2, ignore_eos=True), request_id="r1"))
    outputs = run(loop)
    assert outputs["r1"] == alone
    assert outputs["other"][0] == alone[0][2:]


def test_a_step_is_taken_in_while_the_next_one_runs(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runner, "runs_ahead", True)
    loop = float32.load(config(store))
    events: list[str] = []
    run_step, finish = loop._runner.run, loop._sampler.finish

    def watched_run(*given: Any) -> Any:
        events.append("run")
        return run_step(*given)

    def watched_finish(drawing: Any) -> Any:
        events.append("finish")
        return finish(drawing)

    monkeypatch.setattr(loop._runner, "run", watched_run)
    monkeypatch.setattr(loop._sampler, "finish", watched_finish)
    loop.add(request(1, max_tokens=4, ignore_eos=True))
    run(loop)
    assert events == ["run", "run", "finish", "run", "finish", "run", "finish", "finish"], "one step of each token"


def test_a_step_that_began_with_another_token_is_run_again(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Filters that leave more than the first look sees."""
    requests = [request(number, temperature=1.5, seed=number, top_p=0.99, ignore_eos=True) for number in range(3)]

    def outputs() -> Outputs:
        loop = float32.load(config(store))
        loop._sampler._draws_at_once = loop._runner.runs_ahead
        for wanted in requests:
            loop.add(wanted)
        return run(loop)

    expected = outputs()
    monkeypatch.setattr(filters, "LOOKS", (2,))
    monkeypatch.setattr(Runner, "runs_ahead", True)
    assert outputs() == expected


@pytest.mark.parametrize(("can_repeat", "num_steps"), [(True, 9), (False, 8)])
def test_a_step_that_cannot_be_repeated_begins_with_tokens_that_are_sure(
    store: Path, monkeypatch: pytest.MonkeyPatch, can_repeat: bool, num_steps: int
) -> None:
    """The first look is always wrong once for a request; states move on with each run."""
    monkeypatch.setattr(filters, "LOOKS", (2,))
    monkeypatch.setattr(Runner, "runs_ahead", True)
    monkeypatch.setattr(Runner, "can_repeat", can_repeat)
    loop = float32.load(config(store))
    loop._sampler._draws_at_once = True
    run_step, steps = loop._runner.run, list[int]()

    def counted(*given: Any) -> Any:
        steps.append(1)
        return run_step(*given)

    monkeypatch.setattr(loop._runner, "run", counted)
    loop.add(request(1, max_tokens=8, temperature=1.5, seed=1, top_p=0.99, ignore_eos=True))
    tokens, _ = run(loop)["r1"]
    assert (len(tokens), len(steps)) == (8, num_steps)


def test_a_token_outside_of_the_vocabulary_is_refused(store: Path) -> None:
    loop = float32.load(config(store))
    for token_id in (-1, CONFIG["vocab_size"]):
        with pytest.raises(RequestError, match="ids go from 0 to 95") as refused:
            loop.add(GenerationRequest("a", (5, token_id), SamplingParams(max_tokens=1)))
        assert refused.value.param == "prompt"
    assert not loop.has_work


def test_loading_reports_every_phase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATA_CACHE_DIR", str(tmp_path / "cache"))
    checkpoint = write_checkpoint(tmp_path / "tiny")
    (checkpoint / "generation_config.json").write_text('{"eos_token_id": [1, 7], "top_p": 0.5}')
    reports: list[LoadProgress] = []
    loop = load_engine(config(checkpoint), reports.append)
    for phase in ("convert", "verify", "load", "prepare"):
        of_phase = [report for report in reports if report.phase == phase]
        assert [report.bytes_done for report in of_phase] == sorted(report.bytes_done for report in of_phase)
        assert of_phase[-1].bytes_done == of_phase[-1].bytes_total > 0
    assert loop.ready.store_path.startswith(str(tmp_path / "cache"))
    assert (loop.ready.vocab_size, loop.ready.eos_token_ids, loop.ready.max_model_len) == (96, (1, 7), 128)
    assert loop.ready.generation_config["top_p"] == 0.5
