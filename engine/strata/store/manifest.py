"""What a store holds: the "strata" table of its ``config.json``.

The table names the shards with their sizes and checksums, and every weight with its bit format, shape and shard. A
weight in the format "int8", "int4" or "mxfp4" is stored as the tensors ``NAME.PART``; any other under its own name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from strata import quant
from strata.errors import CheckpointError
from strata.quant.base import Part

FORMAT_VERSION = 1
KEY = "strata"  # of the table in config.json

ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "I8": 1, "U8": 1}  # safetensors' type names
PLAIN_DTYPES = {"bf16": "BF16", "fp32": "F32"}  # formats of a single tensor, which keep the weight's own name


@dataclass(frozen=True, slots=True)
class Weight:
    """One weight of the model. ``format`` is a bit format's name or "fp32"; ``shard`` indexes the shards."""

    format: str
    shape: tuple[int, ...]
    shard: int

    def tensors(self, name: str) -> dict[str, Part]:
        """The stored tensors by their names, in order."""
        if self.format in PLAIN_DTYPES:
            return {name: Part(PLAIN_DTYPES[self.format], self.shape)}
        rows, cols = self.shape
        return {f"{name}.{part}": spec for part, spec in quant.get(self.format).parts(rows, cols).items()}

    @property
    def num_bytes(self) -> int:
        """Bytes of the stored tensors together."""
        return sum(part_bytes(part) for part in self.tensors("").values())


@dataclass(frozen=True, slots=True)
class Shard:
    """One safetensors file. ``file`` is relative to the store; ``xxh3_128`` is the checksum of the whole file."""

    file: str
    bytes: int
    xxh3_128: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The whole table."""

    dtype: str
    shards: tuple[Shard, ...]
    weights: Mapping[str, Weight]

    def by_shard(self) -> list[dict[str, Weight]]:
        """The weights of each shard, in the order in which they are stored."""
        return by_shard(self.weights, len(self.shards))

    def to_table(self) -> dict[str, Any]:
        """As JSON; the inverse of ``from_table``."""
        return {
            "format_version": FORMAT_VERSION,
            "dtype": self.dtype,
            "shards": [asdict(shard) for shard in self.shards],
            "weights": {
                name: {"format": weight.format, "shape": list(weight.shape), "shard": weight.shard}
                for name, weight in self.weights.items()
            },
        }

    @classmethod
    def from_table(cls, table: Any, *, origin: str) -> Manifest:
        """Read the table; raises CheckpointError naming what is wrong in ``origin``."""
        if not isinstance(table, dict):
            raise CheckpointError(f"{origin}: {KEY!r} is not a table; convert the model again")
        version = table.get("format_version")
        if version != FORMAT_VERSION:
            raise CheckpointError(
                f"{origin}: the store has format version {version!r}; this Strata reads version {FORMAT_VERSION}. "
                "Convert the model again"
            )
        try:
            shards = tuple(Shard(str(s["file"]), int(s["bytes"]), str(s["xxh3_128"])) for s in table["shards"])
            weights = {
                str(name): Weight(str(w["format"]), tuple(int(n) for n in w["shape"]), int(w["shard"]))
                for name, w in table["weights"].items()
            }
            manifest = cls(str(table["dtype"]), shards, weights)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(
                f"{origin}: the {KEY!r} table is damaged ({type(error).__name__}: {error}); convert the model again"
            ) from error
        for shard in shards:
            if not re.fullmatch(r"shared/[\w.-]+\.safetensors", shard.file):
                raise CheckpointError(f"{origin}: {shard.file!r} is no shard of a store; convert the model again")
        formats = {"fp32", *quant.FORMATS}
        for name, weight in weights.items():
            plain = weight.format in PLAIN_DTYPES
            if (
                weight.format not in formats
                or (not plain and len(weight.shape) != 2)
                or min(weight.shape, default=0) < 1
            ):
                raise CheckpointError(
                    f"{origin}: weight {name!r} has the format {weight.format!r} and the shape {list(weight.shape)}"
                )
            if not 0 <= weight.shard < len(shards):
                raise CheckpointError(f"{origin}: weight {name!r} is in shard {weight.shard} of {len(shards)}")
        return manifest


def by_shard(weights: Mapping[str, Weight], num_shards: int) -> list[dict[str, Weight]]:
    """Weights, in their order, shard by shard."""
    shards: list[dict[str, Weight]] = [{} for _ in range(num_shards)]
    for name, weight in weights.items():
        shards[weight.shard][name] = weight
    return shards


def stored_tensors(weights: Mapping[str, Weight]) -> dict[str, Part]:
    """All stored tensors of some weights by their names, in order."""
    return {part: spec for name, weight in weights.items() for part, spec in weight.tensors(name).items()}


def part_bytes(part: Part) -> int:
    """Bytes of one stored tensor."""
    return ITEM_BYTES[part.dtype] * prod(part.shape)
