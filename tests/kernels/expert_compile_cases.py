"""What is compiled of the router, the experts and the gather: ``test_compile``."""

from __future__ import annotations

from collections.abc import Callable

import torch

from strata.kernels.experts import blobs
from strata.kernels.gather.triton import gather
from strata.kernels.layer import Routed
from strata.kernels.matrix import SILU, Activation
from strata.kernels.own.triton import own
from strata.kernels.router.triton import choose, score
from strata.kernels.rows import empty_rows
from tests.kernels.compilation import Case
from tests.kernels.expert_cases import Shape, make_layout

CPU = torch.device("cpu")


def _experts(shape: Shape, tokens: int, top_k: int, activation: Activation) -> Callable[[], torch.Tensor]:
    def launch() -> torch.Tensor:
        step = blobs.prepare(make_layout(shape), torch.empty(shape.experts, dtype=torch.int64), activation)
        quantized = tokens <= blobs.MAX_FEW
        inner = empty_rows(tokens, shape.hidden, CPU) if quantized else torch.empty(tokens, shape.hidden).bfloat16()
        routed = Routed(torch.empty(tokens, top_k, dtype=torch.int32), torch.empty(tokens, top_k), inner)
        return step(routed, torch.empty(tokens, shape.hidden))

    return launch


QWEN3 = Shape("int4", 2048, 768, 128)
GPT_OSS = Shape("mxfp4", 2880, 2880, 128, "BF16")
# Kernels for few tokens are written out for all columns, so narrow matrices compile in a tenth of a model's time. There
# are pieces of down for two rounds of each format.
MXFP4 = Shape("mxfp4", 928, 928, 128, "BF16")  # columns fill no piece, as gpt-oss'
INT8 = Shape("int8", 1024, 768, 8)
BF16 = Shape("bf16", 1024, 768, 60)
PAIRED = frozenset({"gate_up_kernel", "down_kernel"})

CASES = [
    Case(
        "route, Qwen3-30B-A3B",
        lambda: choose(
            score(torch.empty(1, 2048), torch.empty(2048), 1e-6, torch.empty(128, 2048).bfloat16(), None)[0], 8, True
        ),
        frozenset({"score_kernel"}),
    ),
    Case("which experts are a rank's own", lambda: own(torch.empty(16, 8, dtype=torch.int32), 1, 3, 43)),
    Case("experts, Qwen3-30B-A3B, 1 token", _experts(QWEN3, 1, 8, SILU), PAIRED),
    Case("experts, Qwen3-30B-A3B, 32 tokens", _experts(QWEN3, 32, 8, SILU), PAIRED),
    Case("experts, Qwen3-30B-A3B, 64 tokens", _experts(QWEN3, 64, 8, SILU), frozenset({"combine_kernel"})),
    Case("experts, Qwen3-30B-A3B, 2048 tokens", _experts(QWEN3, 2048, 8, SILU), frozenset({"combine_kernel"})),
    Case("experts, mxfp4, 1 token", _experts(MXFP4, 1, 4, Activation(7.0)), PAIRED),
    Case("experts, gpt-oss-120b, 2048 tokens", _experts(GPT_OSS, 2048, 4, Activation(7.0))),
    Case("experts, int8, 1 token", _experts(INT8, 1, 8, SILU), PAIRED),
    Case("experts, Mixtral, int8, 512 tokens", _experts(Shape("int8", 4096, 14336, 8), 512, 2, SILU)),
    Case("experts, bf16, 1 token", _experts(BF16, 1, 4, SILU), PAIRED),
    Case("experts, Qwen1.5-MoE, bf16, 96 tokens", _experts(Shape("bf16", 2048, 1408, 60), 96, 4, SILU)),
    Case("experts, Qwen1.5-MoE, bf16, 4096 tokens", _experts(Shape("bf16", 2048, 1408, 60), 4096, 4, SILU)),
    Case(
        "gather",
        lambda: gather(
            torch.empty(8, dtype=torch.int64),
            torch.empty(8, dtype=torch.int64),
            torch.empty(1, dtype=torch.int32),
            1 << 21,
        ),
        frozenset({"gather_kernel"}),
    ),
]
