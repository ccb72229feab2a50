"""How fast a GPU multiplies with a model's dense matrices, beside how fast it reads its memory at all.

Decoding reads each matrix once, so for few tokens a product is as good as the share of the memory's bandwidth that it
reaches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from strata.bench.gpu_time import Measurement, Work, copies, measure
from strata.errors import OptionError
from strata.store.shard import torch_dtype

if TYPE_CHECKING:
    from strata.kernels.matrix import Matrix

OPERATIONS = ("product", "add", "gated")
DTYPES = ("int4", "int8", "mxfp4", "bf16")
_MXFP4_SCALES = (118, 122)  # 2^-9 to 2^-6


@dataclass(frozen=True, slots=True)
class Product:
    """x [tokens, cols] times a matrix [rows, cols] in ``dtype``; ``operation``: what follows. "gated": the first half
    of the rows is the gate of the second."""

    operation: str
    dtype: str
    rows: int
    cols: int

    @classmethod
    def parse(cls, text: str) -> Product:
        """``OPERATION:DTYPE:ROWSxCOLS``. Raises OptionError."""
        try:
            operation, dtype, size = text.split(":")
            rows, cols = map(int, size.split("x"))
        except ValueError:
            raise OptionError(f"a product is written OPERATION:DTYPE:ROWSxCOLS, not {text!r}") from None
        if operation not in OPERATIONS or dtype not in DTYPES:
            raise OptionError(f"{text!r}: operations are {', '.join(OPERATIONS)}, dtypes {', '.join(DTYPES)}")
        if rows < 1 or cols < 1 or cols % 32 or (operation == "gated" and rows % 64):
            raise OptionError(f"{text!r}: columns come in groups of 32, the rows of a gated product in groups of 64")
        return cls(operation, dtype, rows, cols)

    def __str__(self) -> str:
        return f"{self.operation}:{self.dtype}:{self.rows}x{self.cols}"


QWEN3_8B = (
    Product("product", "int4", 6144, 4096),  # q, k and v
    Product("add", "int4", 4096, 4096),  # o
    Product("gated", "int4", 24576, 4096),  # gate and up
    Product("add", "int4", 4096, 12288),  # down
    Product("product", "int8", 151936, 4096),  # head
)


def run(products: Sequence[Product], tokens: Sequence[int]) -> Iterator[Measurement]:
    """Measure each with each, one after another, on the current GPU. Raises HardwareError without one."""
    return measure(lambda device: _works(products, tokens, device))


def _works(products: Sequence[Product], tokens: Sequence[int], device: Any) -> Iterator[Work]:
    for product in products:
        matrices = _matrices(product, device)
        num_bytes = sum(part.nbytes for part in matrices[0].parts.values())
        steps = [_step(product, matrix) for matrix in matrices]
        for count in tokens:
            operations = 2 * count * product.rows * product.cols
            yield Work(str(product), count, num_bytes, operations, steps, _inputs(product, count, device))


def _matrices(product: Product, device: Any) -> list[Matrix]:
    """Copies with other random codes: enough to be read from memory every time."""
    import torch

    from strata import quant
    from strata.kernels.matrix import Matrix

    parts = quant.get(product.dtype).parts(product.rows, product.cols)
    num_bytes = quant.get(product.dtype).num_bytes(product.rows, product.cols)

    def random(name: str) -> Any:
        dtype = torch_dtype(parts[name].dtype)
        if dtype.is_floating_point:
            return (torch.rand(parts[name].shape, device=device) * 1e-3).to(dtype)
        low, high = _MXFP4_SCALES if (product.dtype, name) == ("mxfp4", "scales") else (0, 127)
        return torch.randint(low, high, parts[name].shape, device=device, dtype=dtype)

    return [Matrix(product.dtype, {name: random(name) for name in parts}) for _ in range(copies(num_bytes, device))]


def _step(product: Product, matrix: Matrix) -> Callable[..., Any]:
    import torch

    from strata.kernels.linear.dense import Dense
    from strata.kernels.matrix import SILU

    dense = Dense([matrix])
    if product.operation == "add":
        return lambda x, residual: dense.add_(x, residual, None)
    if product.operation == "gated":
        return lambda x, _: dense.gated(x, SILU)
    return lambda x, _: dense(x, torch.bfloat16)


def _inputs(product: Product, tokens: int, device: Any) -> tuple[Any, Any]:
    import torch

    from strata.kernels.rows import quantize_rows, wants_quantized

    x = torch.randn(tokens, product.cols, device=device)
    rounded = wants_quantized(tokens) and product.dtype != "bf16"
    return quantize_rows(x) if rounded else x.bfloat16(), torch.zeros(tokens, product.rows, device=device)
