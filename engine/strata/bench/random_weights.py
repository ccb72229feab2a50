"""Random weights of any size at the speed of a disk: parts of bit formats, out of a few pools of random bytes.

Nothing is packed. A pool holds some tens of megabytes of one part (codes, scales, ...), and a tensor is a walk around
it from a place of its own. Weights have a mean of zero and a standard deviation of about 1/sqrt(columns), so that a
product gives outputs about as large as its inputs; those of the embedding have sqrt(2 * layers), about what all layers
add to it. So hidden states, logits and the router's choices are finite, and a token's own more than its context's:
where attention's mean over the context weighs more, all tokens of a text take the same experts.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from strata.plan.shape import Role, TensorSpec, expert_name
from strata.quant.base import Tensor
from strata.store.layout import ExpertLayout, Weight, part_bytes
from strata.store.shard import bytes_of

if TYPE_CHECKING:
    import torch

_STEP = 64  # bytes: walks start at multiples of it
# A prime number of steps is no multiple of a row's: where a walk comes round again, it gives other rows.
_CODES = _STEP * 700_001
_SCALES = _STEP * 50_021

_SCALED = ("", "scales", "super")  # parts that the size of the weights changes
_UNIFORM4 = math.sqrt((16**2 - 1) / 12)  # standard deviation of codes 0 .. 15
_MIDDLE4 = 7.5  # and their mean
_UNIFORM8 = math.sqrt((255**2 - 1) / 12)  # of codes -127 .. 127
_E2M1 = math.sqrt(68.5 / 8)  # of all MXFP4 codes


class RandomWeights:
    """The bytes of any weight of a model; the same for the same ``seed``, whatever was asked for before."""

    def __init__(
        self,
        specs: tuple[TensorSpec, ...],
        *,
        zero_centred_norms: bool = False,
        router_skew: float = 0.0,
        seed: int = 0,
    ) -> None:
        """``router_skew`` S: an expert's row of the router is multiplied by 2^(S * (1 - (2r + 1) / n)), with r its rank
        of n, which each layer shuffles. The wider its logits lie, the oftener they are among the top k. 0: all experts
        are as likely. Of 128 experts with 8 a token, the likeliest quarter gets a share of 0.44, 0.60 and 0.78 of all
        choices with S = 0.5, 1 and 2. ``zero_centred_norms``: see ``ModelConfig``."""
        self._specs = {spec.name: spec for spec in specs}
        self._embedding_std = math.sqrt(2 * sum(spec.name.endswith("input_layernorm.weight") for spec in specs))
        self._zero_centred_norms = zero_centred_norms
        self._skew = router_skew
        self._seed = seed
        self._pools: dict[tuple[str, str, float], memoryview] = {}
        self._making = threading.Lock()

    def weight(self, name: str, weight: Weight) -> Iterator[bytes | memoryview]:
        """The stored tensors of a weight, one behind the other."""
        spec = self._specs[name]
        if spec.role is Role.ROUTER or name.endswith("norm.weight"):
            yield bytes_of(self._router(spec) if spec.role is Role.ROUTER else self._norm(spec))
            return
        for suffix, part in weight.tensors("").items():
            yield from self._part(spec, weight.format, suffix.removeprefix("."), part_bytes(part))

    def blob(self, layout: ExpertLayout, layer: int, expert: int) -> Iterator[bytes | memoryview]:
        """The blob of an expert."""
        at = 0
        for name, weight in layout.weights.items():
            spec = self._specs[f"{expert_name(layer, expert)}.{name}"]
            for suffix in weight.tensors(""):
                start, part = layout.parts[f"{name}{suffix}"]
                yield bytes(start - at)
                yield from self._part(spec, weight.format, suffix.removeprefix("."), part_bytes(part))
                at = start + part_bytes(part)
        yield bytes(layout.blob_bytes - at)

    def _part(self, spec: TensorSpec, kind: str, part: str, num_bytes: int) -> Iterator[memoryview]:
        std = self._embedding_std if spec.name == "model.embed_tokens.weight" else 1 / math.sqrt(spec.shape[-1])
        pool = self._pool(kind, part, std if part in _SCALED else 1.0)
        place = random.Random(f"{self._seed}/{spec.name}/{part}").randrange(len(pool) // _STEP) * _STEP
        while num_bytes:
            piece = pool[place : place + num_bytes]
            yield piece
            num_bytes -= len(piece)
            place = 0

    def _router(self, spec: TensorSpec) -> Tensor:
        import torch

        num_experts, hidden = spec.shape
        generator = self._generator(spec.name)
        ranks = torch.randperm(num_experts, generator=generator)
        wider = torch.exp2(self._skew * (1 - (2 * ranks + 1) / num_experts))
        rows = torch.randn(num_experts, hidden, generator=generator) / math.sqrt(hidden)
        return (rows * wider[:, None]).bfloat16()

    def _norm(self, spec: TensorSpec) -> Tensor:
        """Which multiplies by 1; the last norm by a random sign, or the head of a model that ties it to the embedding
        would repeat the token that it just read."""
        import torch

        signs = torch.randint(0, 2, spec.shape, generator=self._generator(spec.name)) * 2 - 1
        factors = signs if spec.name == "model.norm.weight" else torch.ones(spec.shape)
        is_centred = self._zero_centred_norms and not spec.name.endswith("linear_attn.norm.weight")
        return (factors - 1 if is_centred else factors).bfloat16()

    def _pool(self, kind: str, part: str, std: float) -> memoryview:
        key = kind, part, std
        with self._making:
            if key not in self._pools:
                self._pools[key] = self._make_pool(*key)
            return self._pools[key]

    def _make_pool(self, kind: str, part: str, std: float) -> memoryview:
        import torch

        generator = self._generator(f"{kind}/{part}")

        def bytes_up_to(low: int, high: int, size: int, dtype: torch.dtype = torch.uint8) -> Tensor:
            return torch.randint(low, high, (size,), generator=generator, dtype=dtype)

        def around(value: float) -> Tensor:
            """float16 within a tenth of ``value``."""
            return (value * (0.9 + 0.2 * torch.rand(_SCALES // 2, generator=generator))).half()

        match kind, part:
            case (("int4" | "mxfp4"), "codes"):
                pool = bytes_up_to(0, 256, _CODES)
            case "int4", ("scales" | "mins"):
                pool = bytes_up_to(128, 256, _SCALES)
            case "int4", "super":
                d = std / _UNIFORM4 / 192
                pool = torch.stack([around(d), around(_MIDDLE4 * d)], dim=-1).view(-1)
            case "int8", "codes":
                pool = bytes_up_to(-127, 128, _CODES, torch.int8)
            case "int8", "scales":
                pool = around(std / _UNIFORM8)
            case "mxfp4", "scales":  # powers of two above and below: half of them each
                exponent = math.floor(127 + math.log2(std / _E2M1))
                pool = bytes_up_to(exponent, exponent + 2, _SCALES)
            case _:
                pool = (std * torch.randn(_CODES // 2, generator=generator)).bfloat16()
        return bytes_of(pool)

    def _generator(self, name: str) -> torch.Generator:
        import torch

        return torch.Generator().manual_seed(random.Random(f"{self._seed}/{name}").getrandbits(63))
