"""The same checks on a card, where there is one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from strata import quant
from strata.config import DeviceConfig, EngineConfig, SchedulerConfig
from strata.errors import HardwareError
from strata.kernels.attention import reference, sdpa
from strata.kernels.rows import MAX_QUANTIZED_ROWS
from strata.request import SamplingParams
from strata.runner.runner import Runner
from strata.sampling.sampler import Sampler
from strata.scheduler.batch import Batch
from strata.store.locate import resolve
from strata.store.reader import Store
from tests.engine import tiny_llama
from tests.engine.tiny_llama import write_checkpoint
from tests.kernels.batches import make_case
from tests.models import tiny
from tests.models.cases import CASES, made, packed_experts, runner_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

TOKEN_IDS = [(7 * i + i * i) % 160 for i in range(120)]


@pytest.mark.parametrize("chunk", [120, 50, 7, 1])
def test_logits(chunk: int) -> None:
    model = tiny.hf_llama(attention_bias=True)
    runner = tiny.runner_of(tiny.model_config(model), tiny.checkpoint(model), device="cuda")
    found = tiny.run_chunks(runner, TOKEN_IDS, chunk, list(reversed(range(32))))
    assert tiny.relative(found.cpu(), tiny.reference_logits(model, TOKEN_IDS)) < 1e-4


@pytest.mark.parametrize("name", CASES)
def test_logits_of_every_architecture(name: str) -> None:
    _, token_ids, expected = made(name)
    found = tiny.run_chunks(runner_of(name, device="cuda"), token_ids, 50, list(range(13)))
    assert tiny.relative(found.cpu(), expected) < 1e-4


@pytest.mark.parametrize("name", ["qwen3 moe", "gpt-oss"])
@pytest.mark.parametrize("kind", ["int8", "int4", "mxfp4"])
def test_packed_experts(name: str, kind: str) -> None:
    packed, _ = packed_experts(name, kind)
    token_ids = made(name)[1]
    found, expected = (
        tiny.run_chunks(runner_of(name, tensors=packed, device=device), token_ids, 50, list(range(13))).cpu()
        for device in ("cuda", "cpu")
    )
    assert tiny.relative(found, expected) < 1e-4


@pytest.mark.parametrize("kind", ["bf16", "int8", "int4"])
def test_bf16_activations_over_packed_weights(kind: str) -> None:
    model = tiny.hf_llama()
    packed = {
        name: quant.get(kind).pack(tensor) if name.endswith("_proj.weight") else tensor
        for name, tensor in tiny.checkpoint(model).items()
    }
    config = tiny.model_config(model)
    expected = tiny.run_chunks(tiny.runner_of(config, packed), TOKEN_IDS, 120, list(range(8)))
    found = tiny.run_chunks(
        tiny.runner_of(config, packed, dtype=torch.bfloat16, device="cuda"), TOKEN_IDS, 50, list(range(8))
    )
    assert tiny.relative(found.cpu(), expected) < 0.06


@pytest.mark.parametrize(
    "spans",
    [
        [(0, 37)],
        [(37, 20)],
        [(31, 1), (30, 1), (45, 1)],
        [(40, 1), (9, 1), (0, 33), (16, 24), (5, 1)],
    ],
)
@pytest.mark.parametrize("window", [None, 23])
@pytest.mark.parametrize("has_sinks", [False, True])
def test_attention_in_float32(spans: list[tuple[int, int]], window: int | None, has_sinks: bool) -> None:
    case = make_case(spans, 6, 2, head_dim=64, dtype=torch.float32, device="cuda", window=window)
    sinks = torch.randn(6, generator=torch.Generator().manual_seed(6)).to("cuda") if has_sinks else None
    expected = reference.paged_attention(case.query, case.cache, case.batch, window, sinks)
    found = sdpa.paged_attention(case.query, case.cache, case.batch, window, sinks)
    assert tiny.relative(found, expected) < 1e-5


def test_a_store_on_the_card(tmp_path: Path) -> None:
    store = Store.open(resolve(str(write_checkpoint(tmp_path / "tiny")), "int4", tmp_path / "cache"))

    def load(device: DeviceConfig) -> Runner:
        return Runner.load(store, EngineConfig(model="tiny", device=device, scheduler=SchedulerConfig(max_num_seqs=2)))

    runner = load(DeviceConfig(device="auto"))
    assert runner.device_name == f"cuda ({torch.cuda.get_device_name(0)})"
    assert runner.num_blocks == 2 * 128 // 16
    batch = Batch((tiny.sequence(list(range(2, 40)), 0, 38, [3, 4, 5]),))
    expected = load(DeviceConfig(device="cpu")).run(batch).logits
    assert tiny.relative(runner.run(batch).logits.cpu(), expected) < 0.05
    with pytest.raises(HardwareError, match="cuda has not the memory for one sequence of max_model_len 128"):
        load(DeviceConfig(device="cuda", gpu_memory_utilization=1e-9))


@pytest.mark.parametrize(
    "settings", [{}, {"top_k": 9}, {"top_p": 0.8, "repetition_penalty": 1.2}, {"temperature": 0.0}]
)
def test_the_sampler_draws_as_on_a_cpu(settings: dict[str, float]) -> None:
    drawn = []
    for device in ("cpu", "cuda"):
        sampler = Sampler(1000, torch.device(device))
        params = SamplingParams(max_tokens=9, seed=5, **settings)  # type: ignore[arg-type]
        sampler.add("a", params, (1, 2))
        logits = torch.randn(60, 1, 1000, generator=torch.Generator().manual_seed(4)).to(device) * 2
        drawn.append([sampler.sample(row, ["a"]).token_ids[0] for row in logits])
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("experts", [{}, tiny_llama.EXPERTS], ids=["dense", "experts"])
def test_a_graph_gives_the_bits_that_a_step_without_it_gives(tmp_path: Path, experts: dict[str, Any]) -> None:
    """For batches of every captured size; lengths of all kinds, over the edges of blocks."""
    source = write_checkpoint(tmp_path / "tiny", **experts)
    store = Store.open(resolve(str(source), "int4", tmp_path / "cache"))

    def load(cuda_graphs: bool) -> Runner:
        device = DeviceConfig(device="cuda", cuda_graphs=cuda_graphs)
        return Runner.load(store, EngineConfig(model="tiny", device=device, scheduler=SchedulerConfig(max_num_seqs=4)))

    with_graphs, without = load(True), load(False)
    if not with_graphs.model.can_capture:
        pytest.skip("the kernels of this card cannot be captured")
    for num_seqs in (1, 2, 4):
        texts = [[(7 * i + n) % 90 + 2 for n in range(MAX_QUANTIZED_ROWS + 3 + 14 * i)] for i in range(num_seqs)]
        tables = [list(range(8 * i, 8 * i + 8)) for i in range(num_seqs)]
        start = [0] * num_seqs
        for _ in range(20):
            batch = Batch(
                tuple(
                    tiny.sequence(*step, str(i))
                    for i, step in enumerate(zip(texts, start, map(len, texts), tables, strict=True))
                )
            )
            found, expected = with_graphs.run(batch), without.run(batch)
            if start[0] == 0:
                # Filled up, and products over more rows add up in another order; a router that wavers may then choose
                # another expert for one of them. Both steps have too many tokens to round activations to 8 bits.
                errors = (found.logits - expected.logits).norm(dim=-1) / expected.logits.norm(dim=-1)
                assert errors.median() < 0.02
                with_graphs.caches.kv.tensor.copy_(without.caches.kv.tensor)
            else:
                assert torch.equal(found.logits, expected.logits)
                assert torch.equal(found.best, expected.best)
            start = list(map(len, texts))
            for text, token_id in zip(texts, expected.best.tolist(), strict=True):
                text.append(token_id)
