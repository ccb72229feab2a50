"""Opening a store and reading its weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strata.config import ModelConfig, read_hf_config, token_ids
from strata.errors import CheckpointError
from strata.plan.shape import check
from strata.quant import QuantizedTensor
from strata.quant.base import Tensor
from strata.store import manifest as manifests
from strata.store.files import read_json, read_json_if_there
from strata.store.manifest import Manifest
from strata.store.progress import Progress, counter
from strata.store.shard import altered, read_shard
from strata.store.sources import ACCEPTED

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
GENERATION_FILE = "generation_config.json"


@dataclass(frozen=True, slots=True)
class Store:
    """A converted model on disk. Opening imports no torch and reads no weights."""

    path: Path
    model_config: ModelConfig
    generation_config: Mapping[str, Any]  # the keys of generation_config.json; empty where there is none
    eos_token_ids: tuple[int, ...]  # of both configurations: chat models often name the end of a turn in the second
    manifest: Manifest

    @classmethod
    def open(cls, path: Path | str) -> Store:
        """Read the manifest and check that every file is there with its size.

        Raises CheckpointError naming the file that is missing, truncated or of an unknown version.
        """
        path = Path(path)
        origin = path / "config.json"
        if not origin.is_file():
            raise CheckpointError(f"{path} is not a store: it has no config.json. A model is {ACCEPTED}")
        table = read_json(origin)
        if manifests.KEY not in table:
            raise CheckpointError(
                f"{path} is not a store: its config.json has no {manifests.KEY!r} table; convert it first"
            )
        manifest = Manifest.from_table(table[manifests.KEY], origin=str(origin))
        config = read_hf_config(table, origin=str(origin))
        check(config, {name: weight.shape for name, weight in manifest.weights.items()}, origin=str(path))
        for file in TOKENIZER_FILES:
            if not (path / file).is_file():
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
        return cls(path, config, generation_config, eos_token_ids, manifest)

    @property
    def dtype(self) -> str:
        """The bit format that the store was converted to."""
        return self.manifest.dtype

    @property
    def num_bytes(self) -> int:
        """Bytes of all weights in memory."""
        return sum(weight.num_bytes for weight in self.manifest.weights.values())

    @property
    def names(self) -> tuple[str, ...]:
        """The weights' Hugging Face names in the order in which ``load`` yields them."""
        return tuple(self.manifest.weights)

    def load(self, device: Any = "cpu", progress: Progress | None = None) -> Iterator[tuple[str, Tensor]]:
        """Every weight by name: a QuantizedTensor in the formats int8, int4 and mxfp4, a plain tensor otherwise.

        Each file is read once and its checksum compared at its end, so use no weight before the iterator ends.
        progress: called with the bytes read and those of all files. Raises CheckpointError naming a damaged file.
        """
        read = counter(sum(shard.bytes for shard in self.manifest.shards), progress)
        for shard, weights in zip(self.manifest.shards, self.manifest.by_shard(), strict=True):
            tensors = read_shard(self.path, shard, manifests.stored_tensors(weights), read)
            for name, weight in weights.items():
                parts = {part: next(tensors)[1].to(device) for part in weight.tensors(name)}
                if weight.format in manifests.PLAIN_DTYPES:
                    yield name, parts[name]
                else:
                    rows, cols = weight.shape
                    named = {part.removeprefix(f"{name}."): tensor for part, tensor in parts.items()}
                    yield name, QuantizedTensor(weight.format, (rows, cols), named)
            for _ in tensors:  # runs the checks at the end of the file
                raise AssertionError("a shard yields no more than its weights")
