"""Opening a store and reading its weights."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

from strata.config import ModelConfig, read_hf_config, token_ids
from strata.config.model_name import ACCEPTED
from strata.errors import CheckpointError
from strata.plan.hardware import num_cpus
from strata.plan.parts import prepared_parts
from strata.plan.shape import Role, TensorSpec, check, expert_name, needed
from strata.plan.units import format_bytes
from strata.quant import QuantizedTensor
from strata.quant.base import Tensor
from strata.store import manifest as manifests
from strata.store.files import is_file, read_json, read_json_if_there
from strata.store.layout import ExpertLayout, Weight, part_bytes
from strata.store.lease import Lease
from strata.store.manifest import Manifest
from strata.store.progress import Progress, counter
from strata.store.shard import PIECE_BYTES, Count, altered, copied, read_blobs, read_shared, torch_dtype
from strata.store.threads import each

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
GENERATION_FILE = "generation_config.json"

_BUFFER_BYTES = 512 << 20  # of all threads that load, together

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Store:
    """A converted model on disk. Opening imports no torch and reads no weights; an open one is not removed."""

    path: Path
    model_config: ModelConfig
    generation_config: Mapping[str, Any]  # the keys of generation_config.json; empty where there is none
    eos_token_ids: tuple[int, ...]  # of both configurations: chat models often name the end of a turn in the second
    manifest: Manifest
    _lease: Lease = field(repr=False, compare=False)

    @classmethod
    def open(cls, path: Path | str) -> Store:
        """Read the manifest and check that every file is there with its size.

        Raises CheckpointError naming the file that is missing, truncated or of an unknown version.
        """
        path = Path(path)
        lease = Lease(path)
        origin = path / "config.json"
        if not is_file(origin):
            raise CheckpointError(f"{path} is not a store: it has no config.json. A model is {ACCEPTED}")
        table = read_json(origin)
        if manifests.KEY not in table:
            raise CheckpointError(
                f"{path} is not a store: its config.json has no {manifests.KEY!r} table; convert it first"
            )
        config = read_hf_config(table, origin=str(origin))
        specs = needed(config)
        manifest = Manifest.from_table(table[manifests.KEY], specs, origin=str(origin))
        shapes = {name: weight.shape for name, weight in manifest.contents.weights.items()}
        shapes |= {spec.name: spec.shape for spec in specs if spec.expert is not None or spec.role is Role.NGRAMS}
        check(config, shapes, origin=str(path))
        for file in TOKENIZER_FILES:
            if not is_file(path / file):
                raise altered(path, file, "the file is missing")
        for shard in manifest.shards:
            try:
                size = (path / shard.file).stat().st_size
            except OSError as error:
                raise altered(path, shard.file, "the shard is missing") from error
            if size != shard.bytes:
                what = "truncated" if size < shard.bytes else "altered"
                raise altered(path, shard.file, f"the shard is {what}: it has {size} bytes, written were {shard.bytes}")
        generation_config = read_json_if_there(path / GENERATION_FILE)
        more = token_ids(generation_config, "eos_token_id", origin=str(path / GENERATION_FILE))
        eos_token_ids = tuple(dict.fromkeys(config.eos_token_ids + more))
        return cls(path, config, generation_config, eos_token_ids, manifest, lease)

    @property
    def dtype(self) -> str:
        """The bit format that the store was converted to."""
        return self.manifest.dtype

    @property
    def num_bytes(self) -> int:
        """Bytes of all weights in memory."""
        return self.manifest.contents.num_bytes

    @property
    def prepared_bytes(self) -> int:
        """Of all weights, once the CPU's kernels have re-ordered them."""

        def bit_format(spec: TensorSpec) -> str | None:
            if spec.role is Role.NGRAMS:
                return None
            weight = self.manifest.contents.weight(spec)
            return None if weight.is_plain else weight.format

        return ceil(prepared_parts(self.model_config, bit_format).total)

    def load(
        self,
        device: Any = "cpu",
        progress: Progress | None = None,
        put_expert: Callable[[tuple[int, int], Tensor], None] | None = None,
    ) -> Iterator[tuple[str, Tensor]]:
        """Every weight by name, but tables: a QuantizedTensor in the formats int8, int4 and mxfp4, a plain tensor
        otherwise.

        Each file is read once and its checksum compared at its end, so use no weight before the iterator ends. The
        weights of one expert are views of one buffer, its blob; ``put_expert`` takes (layer, expert) and the blob on
        the CPU instead, and the weights in it do not come. It is called by several threads, each time for another
        expert, and the blob is overwritten afterwards. progress: called with the bytes read and those of all files.
        Raises CheckpointError naming a damaged file.
        """
        import torch

        loaded = self._loaded
        total = sum(shard.bytes for shard in self.manifest.shards[:loaded])
        read, began = counter(total, progress), time.monotonic()
        inference = torch.is_inference_mode_enabled()  # of this thread, which the others are to follow

        def load_shard(index: int) -> dict[str, Tensor]:
            with torch.inference_mode(inference):
                return self._load_shard(index, device, read, put_expert)

        files = range(loaded)
        num_threads = self.num_loading_threads
        for weights in each(num_threads, load_shard, files, in_order=True):
            yield from weights.items()
        seconds = time.monotonic() - began
        logger.info(
            "read %s in %.1f s, %.2f GiB/s with %d threads",
            format_bytes(total),
            seconds,
            total / seconds / (1 << 30),
            num_threads,
        )

    @property
    def num_loading_threads(self) -> int:
        """Twice as many as there are CPUs: one part waits for the disk while the other computes. Each has a buffer."""
        layout = self.manifest.contents.experts
        buffers = _BUFFER_BYTES // (PIECE_BYTES if layout is None else max(PIECE_BYTES, layout.blob_bytes))
        return max(1, min(self._loaded, 2 * num_cpus(), buffers))

    @property
    def _loaded(self) -> int:
        """The files before those of tables."""
        return len(self.manifest.shards) - sum(len(table.files) for table in self.manifest.contents.tables)

    def _load_shard(
        self, index: int, device: Any, read: Count, put_expert: Callable[[tuple[int, int], Tensor], None] | None
    ) -> dict[str, Tensor]:
        """The weights of one file, but for experts that ``put_expert`` takes."""
        contents, shard = self.manifest.contents, self.manifest.shards[index]
        found: dict[str, Tensor] = {}
        if index < len(contents.shared):
            held = contents.shared[index]
            tensors = read_shared(self.path, shard, manifests.stored_tensors(held), read)
            for name, weight in held.items():
                parts = {part: next(tensors)[1].to(device) for part in weight.tensors(name)}
                found[name] = _weight(name, weight, parts)
            _end(tensors)
            return found
        layout = contents.experts
        assert layout is not None, "what is not shared holds experts"
        experts = layout.held(index - len(contents.shared))
        blobs = read_blobs(self.path, shard, len(experts), layout.blob_bytes, read)
        for expert in experts:
            blob = next(blobs)
            if put_expert is None:
                found |= _expert(layout, copied(blob).to(device), f"{expert_name(*expert)}.")
            else:
                put_expert(expert, blob)
        _end(blobs)
        return found


def _expert(layout: ExpertLayout, blob: Tensor, prefix: str) -> dict[str, Tensor]:
    """The weights in a blob, as views of it."""
    views = {}
    for part, (at, spec) in layout.parts.items():
        data = blob[at : at + part_bytes(spec)]
        views[part] = data.view(torch_dtype(spec.dtype)).view(spec.shape)
    return {f"{prefix}{name}": _weight(name, weight, views) for name, weight in layout.weights.items()}


def _weight(name: str, weight: Weight, tensors: Mapping[str, Tensor]) -> Tensor:
    """A weight from its stored tensors; there may be others among them."""
    if weight.is_plain:
        return tensors[name]
    rows, cols = weight.shape
    parts = {part.removeprefix(f"{name}."): tensors[part] for part in weight.tensors(name)}
    return QuantizedTensor(weight.format, (rows, cols), parts)


def _end(pieces: Iterator[Any]) -> None:
    """Run the checks at the end of a file."""
    for _ in pieces:
        raise AssertionError("a shard yields no more than its weights")
