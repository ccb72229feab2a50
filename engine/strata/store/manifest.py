"""What a store holds: the "strata" table of its ``config.json``.

The table names the shards with their sizes and checksums, and says what lies in them: every weight of ``shared/`` with
its bit format and shape; of the routed experts in ``experts/`` only the formats, since all else follows from the
model's config (``strata.store.layout``), and of tables how many pages a file has (``strata.store.tables``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from strata import quant
from strata.errors import CheckpointError
from strata.plan.shape import TensorSpec, expert_name
from strata.quant.base import Part
from strata.store.layout import ExpertLayout, Weight
from strata.store.tables import TableLayout, table_layouts

FORMAT_VERSION = 2
KEY = "strata"  # of the table in config.json


@dataclass(frozen=True, slots=True)
class Contents:
    """What lies in which file; known before a byte is written."""

    shared: tuple[Mapping[str, Weight], ...]  # of each file of shared/, in the order in which they are stored
    experts: ExpertLayout | None  # where the model has any
    tables: tuple[TableLayout, ...] = ()  # of which rows are read as tokens need them

    @property
    def files(self) -> tuple[str, ...]:
        """Every shard's name: first those of shared/, then those of experts/, then those of tables/."""
        count = len(self.shared)
        shared = tuple(f"shared/{index + 1:05d}-of-{count:05d}.safetensors" for index in range(count))
        experts = self.experts.files if self.experts is not None else ()
        return shared + experts + tuple(file for table in self.tables for file in table.files)

    @property
    def weights(self) -> dict[str, Weight]:
        """The weights of shared/ by name, in order."""
        return {name: weight for held in self.shared for name, weight in held.items()}

    def weight(self, spec: TensorSpec) -> Weight:
        """How the tensor is stored, wherever it lies."""
        if spec.expert is None:
            return self.weights[spec.name]
        assert self.experts is not None, f"{spec.name} is an expert's, and there are none"
        return self.experts.weights[spec.name.removeprefix(f"{expert_name(*spec.expert)}.")]

    @property
    def num_bytes(self) -> int:
        """Bytes of all weights in memory, which tables are not: an expert's blob stays one there."""
        shared = sum(weight.num_bytes for weight in self.weights.values())
        return shared + (self.experts.num_bytes if self.experts is not None else 0)


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of weights. ``file`` is relative to the store; ``xxh3_128`` is the checksum of the whole file."""

    file: str
    bytes: int
    xxh3_128: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The whole table. ``shards`` are those of ``contents.files``, in that order."""

    dtype: str
    contents: Contents
    shards: tuple[Shard, ...]

    def to_table(self) -> dict[str, Any]:
        """As JSON; the inverse of ``from_table``."""
        experts = self.contents.experts
        return {
            "format_version": FORMAT_VERSION,
            "dtype": self.dtype,
            "shards": [asdict(shard) for shard in self.shards],
            "shared": [
                {name: {"format": weight.format, "shape": list(weight.shape)} for name, weight in held.items()}
                for held in self.contents.shared
            ],
            "experts": None
            if experts is None
            else {
                "formats": {name: weight.format for name, weight in experts.weights.items()},
                "blob_bytes": experts.blob_bytes,
                "blobs_per_shard": experts.blobs_per_shard,
            },
            "tables": {
                table.name: {"pages_per_shard": table.pages_per_shard, "hollow": table.is_hollow}
                for table in self.contents.tables
            },
        }

    @classmethod
    def from_table(cls, table: Any, specs: Sequence[TensorSpec], *, origin: str) -> Manifest:
        """Read the table. specs: what the model needs. Raises CheckpointError naming what is wrong in ``origin``."""
        if not isinstance(table, dict):
            raise CheckpointError(f"{origin}: {KEY!r} is not a table; convert the model again")
        version = table.get("format_version")
        if version != FORMAT_VERSION:
            raise CheckpointError(
                f"{origin}: the store has format version {version!r}; this Strata reads version {FORMAT_VERSION}. "
                "Convert the model again"
            )
        try:
            shared = tuple(
                {str(n): Weight(str(w["format"]), tuple(int(size) for size in w["shape"])) for n, w in held.items()}
                for held in table["shared"]
            )
            formats, blob_bytes, blobs_per_shard = {}, 0, 1
            if table["experts"] is not None:
                formats = {str(name): str(kind) for name, kind in table["experts"]["formats"].items()}
                blob_bytes = int(table["experts"]["blob_bytes"])
                blobs_per_shard = int(table["experts"]["blobs_per_shard"])
            kept = {
                str(name): (int(held["pages_per_shard"]), bool(held["hollow"]))
                for name, held in table.get("tables", {}).items()
            }
            shards = tuple(Shard(str(s["file"]), int(s["bytes"]), str(s["xxh3_128"])) for s in table["shards"])
            dtype = str(table["dtype"])
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise CheckpointError(
                f"{origin}: the {KEY!r} table is damaged ({type(error).__name__}: {error}); convert the model again"
            ) from error
        named = [item for held in shared for item in held.items()]
        for name, weight in named:
            _check_weight(name, weight, origin)
        twice = len(named) - len(dict(named))
        of_experts = {spec.name for spec in specs if spec.expert is not None} & set(dict(named))
        if twice or of_experts:
            raise CheckpointError(
                f"{origin}: the {KEY!r} table is damaged: a weight lies in two places; convert the model again"
            )
        layout = ExpertLayout.of(specs, formats, blobs_per_shard, origin=origin)
        if layout is not None and layout.blob_bytes != blob_bytes:
            raise CheckpointError(
                f"{origin}: an expert has {blob_bytes} bytes in the store, of this config it has {layout.blob_bytes}; "
                "convert the model again"
            )
        tables = tuple(
            replace(table, pages_per_shard=pages, is_hollow=hollow)
            for table in table_layouts(specs, 1)
            for pages, hollow in [kept.get(table.name, (0, False))]
        )
        if {table.name for table in tables} != set(kept) or not all(table.pages_per_shard > 0 for table in tables):
            raise CheckpointError(
                f"{origin}: the store has the tables {', '.join(kept) or 'none'}, of this config it has "
                f"{', '.join(table.name for table in tables) or 'none'}; convert the model again"
            )
        contents = Contents(shared, layout, tables)
        if tuple(shard.file for shard in shards) != contents.files:
            raise CheckpointError(
                f"{origin}: the table lists {len(shards)} shards that are not the {len(contents.files)} of its "
                "contents; convert the model again"
            )
        return cls(dtype, contents, shards)


def _check_weight(name: str, weight: Weight, origin: str) -> None:
    known = weight.is_plain or (weight.format in quant.FORMATS and len(weight.shape) == 2)
    if not known or min(weight.shape, default=0) < 1:
        raise CheckpointError(
            f"{origin}: weight {name!r} has the format {weight.format!r} and the shape {list(weight.shape)}"
        )


def stored_tensors(weights: Mapping[str, Weight]) -> dict[str, Part]:
    """All stored tensors of some weights by their names, in order."""
    return {part: spec for name, weight in weights.items() for part, spec in weight.tensors(name).items()}
