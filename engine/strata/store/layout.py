"""How weights lie in a store: the tensors of one weight, and the blobs of the routed experts.

All routed experts of a model are alike, so one layout describes every blob, and where an expert lies follows from its
layer and number by arithmetic. A blob starts at a multiple of 4 KiB, so that it can be read past the page cache, pinned
and moved as a whole; the tensors in it start at multiples of 128 bytes, a cache line of a GPU and two of a CPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from strata import quant
from strata.errors import CheckpointError
from strata.plan.shape import TensorSpec, expert_name
from strata.quant.base import Part

BLOB_ALIGNMENT = 4096  # bytes: a page
PART_ALIGNMENT = 128  # bytes

ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "I8": 1, "U8": 1}  # safetensors' type names
PLAIN_DTYPES = {"bf16": "BF16", "fp32": "F32"}  # formats of a single tensor, which keep the weight's own name


@dataclass(frozen=True, slots=True)
class Weight:
    """One weight of the model. ``format`` is a bit format's name or "fp32"."""

    format: str
    shape: tuple[int, ...]

    @property
    def is_plain(self) -> bool:
        """Whether it is stored as one tensor under its own name; otherwise as the tensors ``NAME.PART``."""
        return self.format in PLAIN_DTYPES

    def tensors(self, name: str) -> dict[str, Part]:
        """The stored tensors by their names, in order."""
        if self.is_plain:
            return {name: Part(PLAIN_DTYPES[self.format], self.shape)}
        rows, cols = self.shape
        return {f"{name}.{part}": spec for part, spec in quant.get(self.format).parts(rows, cols).items()}

    @property
    def num_bytes(self) -> int:
        """Bytes of the stored tensors together."""
        return sum(part_bytes(part) for part in self.tensors("").values())


@dataclass(frozen=True)
class ExpertLayout:
    """Where each routed expert's blob lies, and what is in it."""

    layers: tuple[int, ...]  # those that have experts, in order
    num_experts: int  # of each
    weights: Mapping[str, Weight]  # of one expert, by name behind ``expert_name``: gate, up, down with their biases
    blobs_per_shard: int

    @classmethod
    def of(
        cls, specs: Iterable[TensorSpec], formats: Mapping[str, str], blobs_per_shard: int, *, origin: str
    ) -> ExpertLayout | None:
        """The layout of the experts among ``specs``, whose weights have these formats by their names within an expert.

        None where there are no experts. Raises CheckpointError naming ``origin`` when the formats do not fit them.
        """
        weights: dict[str, Weight] = {}
        experts: dict[tuple[int, int], None] = {}
        for spec in specs:
            if spec.expert is None:
                continue
            experts[spec.expert] = None
            name = spec.name.removeprefix(f"{expert_name(*spec.expert)}.")
            weight = weights.setdefault(name, Weight(formats.get(name, ""), spec.shape))
            assert weight.shape == spec.shape, f"{spec.name} is {spec.shape}, other experts' is {weight.shape}"
        if not all(_fits(weight) for weight in weights.values()) or set(formats) != set(weights):
            raise CheckpointError(
                f"{origin}: the experts have the formats {dict(formats)}, which do not fit the config's "
                f"{', '.join(weights) or 'model without experts'}; convert the model again"
            )
        if blobs_per_shard < 1:
            raise CheckpointError(f"{origin}: a shard has {blobs_per_shard} experts; convert the model again")
        if not experts:
            return None
        layers = tuple(dict.fromkeys(layer for layer, _ in experts))
        return cls(layers, len(experts) // len(layers), weights, blobs_per_shard)

    @cached_property
    def parts(self) -> dict[str, tuple[int, Part]]:
        """Every stored tensor of an expert: where it starts in the blob, and what it is."""
        found: dict[str, tuple[int, Part]] = {}
        at = 0
        for name, weight in self.weights.items():
            for part, spec in weight.tensors(name).items():
                found[part] = (at, spec)
                at += _up(part_bytes(spec), PART_ALIGNMENT)
        return found

    @cached_property
    def blob_bytes(self) -> int:
        """Bytes of an expert's blob, padding included."""
        last, part = list(self.parts.values())[-1]
        return _up(last + part_bytes(part), BLOB_ALIGNMENT)

    @property
    def num_blobs(self) -> int:
        return len(self.layers) * self.num_experts

    @property
    def num_bytes(self) -> int:
        """Bytes of all blobs."""
        return self.num_blobs * self.blob_bytes

    @property
    def files(self) -> tuple[str, ...]:
        """The shards' names."""
        count = -(-self.num_blobs // self.blobs_per_shard)
        return tuple(f"experts/{index + 1:05d}-of-{count:05d}.bin" for index in range(count))

    @cached_property
    def experts(self) -> tuple[tuple[int, int], ...]:
        """(layer, expert) of every blob, in order."""
        return tuple((layer, expert) for layer in self.layers for expert in range(self.num_experts))

    def held(self, file: int) -> tuple[tuple[int, int], ...]:
        """(layer, expert) of each blob of a file, in order."""
        return self.experts[file * self.blobs_per_shard : (file + 1) * self.blobs_per_shard]

    def place(self, layer: int, expert: int) -> tuple[int, int]:
        """The file (an index of ``files``) and the offset in it at which the expert's blob starts."""
        blob = self.layers.index(layer) * self.num_experts + expert
        return blob // self.blobs_per_shard, blob % self.blobs_per_shard * self.blob_bytes


def part_bytes(part: Part) -> int:
    """Bytes of one stored tensor."""
    return ITEM_BYTES[part.dtype] * prod(part.shape)


def _fits(weight: Weight) -> bool:
    if weight.is_plain:
        return True
    return weight.format in quant.FORMATS and len(weight.shape) == 2 and quant.get(weight.format).accepts(*weight.shape)


def _up(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment
