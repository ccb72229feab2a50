"""What is compiled of the dense products: ``test_compile``."""

from __future__ import annotations

import torch

from strata import quant
from strata.kernels.embedding.triton import prepare as prepare_embedding
from strata.kernels.linear.dense import Dense
from strata.kernels.matrix import SILU, Activation, Matrix
from strata.kernels.quantize.triton import dequantize
from strata.kernels.rms_norm.triton import norm_quantize, norm_rows
from strata.kernels.rows import QuantizedRows, empty_rows, wants_quantized
from tests.kernels.compilation import Case

TYPES = {"U8": torch.uint8, "I8": torch.int8, "F16": torch.float16, "BF16": torch.bfloat16}


def _matrix(kind: str, rows: int, cols: int) -> Matrix:
    parts = quant.get(kind).parts(rows, cols)
    return Matrix(kind, {name: torch.empty(part.shape, dtype=TYPES[part.dtype]) for name, part in parts.items()})


def _x(tokens: int, cols: int) -> torch.Tensor | QuantizedRows:
    if wants_quantized(tokens):
        return empty_rows(tokens, cols, torch.device("cpu"))
    return torch.empty(tokens, cols, dtype=torch.bfloat16)


def _product(kind: str, rows: int, cols: int, tokens: int) -> Case:
    def launch() -> None:
        Dense([_matrix(kind, rows, cols)])(_x(tokens, cols), torch.bfloat16)

    return Case(f"{kind} {rows} x {cols}, {tokens} rows", launch, _wide(tokens))


def _add(kind: str, rows: int, cols: int, tokens: int) -> Case:
    def launch() -> None:
        share = torch.empty(tokens, 1)
        Dense([_matrix(kind, rows, cols)]).add_(_x(tokens, cols), torch.empty(tokens, rows), share)

    return Case(f"added {kind} {rows} x {cols}, {tokens} rows", launch, _wide(tokens))


def _gated(kind: str, rows: int, cols: int, tokens: int, activation: Activation) -> Case:
    def launch() -> None:
        Dense([_matrix(kind, rows, cols)] * 2).gated(_x(tokens, cols), activation)

    return Case(f"gated {kind} {rows} x {cols}, {tokens} rows", launch, _wide(tokens))


def _wide(tokens: int) -> frozenset[str]:
    return frozenset({"few_rows_kernel"} if wants_quantized(tokens) else ())


def _residual(tokens: int, hidden: int) -> tuple[torch.Tensor, torch.Tensor, float]:
    return torch.empty(tokens, hidden), torch.empty(hidden), 1e-6


def _embed(kind: str) -> Case:
    ids = torch.empty(4, dtype=torch.int64)
    return Case(f"embedding, {kind}", lambda: prepare_embedding(_matrix(kind, 4096, 2880))(ids))


CASES = [
    Case("norm, Qwen3-8B", lambda: norm_rows(*_residual(64, 4096)), frozenset({"norm_kernel"})),
    Case("norm, gpt-oss", lambda: norm_quantize(*_residual(1, 2880)), frozenset({"norm_kernel"})),
    Case("rounded rows back", lambda: dequantize(empty_rows(2, 2880, torch.device("cpu")))),
    _embed("int8"),
    # Rows that are rounded: the shapes of Qwen3-8B and of Qwen3-0.6B, and where columns fill no tile.
    _product("int4", 6144, 4096, 1),
    _gated("int4", 3072, 1024, 1, SILU),
    _add("int4", 1024, 3072, 2),
    _product("int8", 151936, 4096, 1),
    _gated("mxfp4", 2880, 2880, 2, Activation(7.0)),
    # Rows in bf16: weights unpacked within, and before.
    _product("int8", 6144, 4096, 16),
    _gated("int4", 12288, 4096, 32, SILU),
    _add("int4", 4096, 12288, 64),
    _product("mxfp4", 2880, 2880, 128),
    _product("int4", 64, 2880, 200),
]
ROUNDED = [  # whose kernel sums up whole rows of W
    _product("int4", 6144, 4096, 1),
    _add("int4", 1024, 3072, 2),
    _product("int8", 151936, 4096, 1),
    _product("mxfp4", 2880, 2880, 1),
]
