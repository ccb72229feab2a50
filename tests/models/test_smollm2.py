"""SmolLM2-135M itself: logits against ``transformers`` on the dequantised source, perplexity in every dtype."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from torch.nn import functional

from strata.config import DeviceConfig, EngineConfig, SchedulerConfig
from strata.config.model_name import BuiltinName
from strata.runner.runner import Runner
from strata.scheduler.batch import Batch, ScheduledSequence
from strata.store.locate import resolve
from strata.store.reader import Store
from strata.store.sources.builtin import builtin_path
from tests.models import tiny
from tests.models.gguf_reference import smollm2

pytestmark = pytest.mark.real

SOURCE = "builtin://smollm2-135m"
TEXT = Path(__file__).parents[1] / "data" / "alice.txt"
TOKENS = 256
FORMATS = ("bf16", "int8", "int4")


@pytest.fixture(scope="module")
def token_ids() -> list[int]:
    tokenizer = Tokenizer.from_file(str(resolve(SOURCE, "bf16") / "tokenizer.json"))
    return list(tokenizer.encode(TEXT.read_text("utf-8")).ids[:TOKENS])


@pytest.fixture(scope="module")
def reference() -> Any:
    return smollm2(builtin_path(BuiltinName("smollm2-135m")))


@pytest.fixture(scope="module")
def expected(reference: Any, token_ids: list[int]) -> torch.Tensor:
    """float32 [tokens, vocab], of the dequantised source."""
    return tiny.reference_logits(reference, token_ids)


def run(token_ids: list[int], dtype: str, compute_dtype: torch.dtype) -> torch.Tensor:
    """All logits of the store of ``dtype``."""
    scheduler = SchedulerConfig(max_model_len=TOKENS, max_num_seqs=1)
    config = EngineConfig(model=SOURCE, device=DeviceConfig(device="cpu"), scheduler=scheduler)
    runner = Runner.load(Store.open(resolve(SOURCE, dtype)), config, compute_dtype=compute_dtype)
    blocks = tuple(range(len(token_ids) // runner.block_size))
    return runner.run_all(Batch((ScheduledSequence("a", tuple(token_ids), 0, blocks, samples=True),)))


@pytest.fixture(scope="module")
def served(token_ids: list[int]) -> Callable[[str], torch.Tensor]:
    """All logits of the store of a format, with activations in bf16."""
    return cache(lambda dtype: run(token_ids, dtype, torch.bfloat16))


def compare(what: str, found: torch.Tensor, expected: torch.Tensor) -> tuple[float, float]:
    """Relative norm of the difference, and the share of tokens whose likeliest successor is the same."""
    relative = tiny.relative(found, expected)
    same = float((found.argmax(-1) == expected.argmax(-1)).float().mean())
    print(
        f"SmolLM2 {what}, against transformers: largest difference {float((found - expected).abs().max()):.4f} "
        f"(logits reach {float(expected.abs().max()):.1f}), relative {relative:.2e}, "
        f"top-1 agreement {same:.3f} over {len(found)} tokens"
    )
    return relative, same


@pytest.mark.parametrize("dtype", FORMATS)
def test_logits_as_served(served: Callable[[str], torch.Tensor], expected: torch.Tensor, dtype: str) -> None:
    relative, same = compare(f"{dtype}, bf16 activations", served(dtype), expected)
    assert relative < 0.04
    assert same > 0.94


def test_logits_exactly(token_ids: list[int], reference: Any) -> None:
    """The bf16 store in float32 against the source rounded to bf16: the same numbers, so nothing but the order of sums.

    Last, because it rounds the reference's weights.
    """
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.copy_(parameter.bfloat16())
    some = token_ids[:64]
    expected = tiny.reference_logits(reference, some)
    relative, same = compare("bf16, float32 activations", run(some, "bf16", torch.float32), expected)
    assert relative < 1e-4
    assert same == 1


def test_perplexity(served: Callable[[str], torch.Tensor], token_ids: list[int]) -> None:
    """Within 1 % of the source, which is the bf16 store: the source's own 4 and 5 bits, dequantised."""
    targets = torch.tensor(token_ids[1:])
    found = {dtype: math.exp(functional.cross_entropy(served(dtype)[:-1].float(), targets)) for dtype in FORMATS}
    print(f"SmolLM2's perplexity over {len(targets)} tokens: {found}")
    assert 15 < found["bf16"] < 30
    assert found["int8"] == pytest.approx(found["bf16"], rel=0.01)
    assert found["int4"] == pytest.approx(found["bf16"], rel=0.01)
