"""The files of a store: shards from the bytes that a maker gives, read back once, and the manifest that names them."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from strata.errors import CheckpointError, StorageError
from strata.store import manifest as manifests
from strata.store.files import write_json
from strata.store.journal import Journal
from strata.store.manifest import Contents, Manifest, Shard
from strata.store.progress import Phases, counter, phase
from strata.store.shard import Hole, encode_header, verify, write_shard
from strata.store.threads import each

Bytes = Iterable[bytes | memoryview | Hole]  # of a shard, in pieces that are made as they are asked for


def write_store(
    directory: Path,
    journal: Journal,
    contents: Contents,
    shards: Iterable[Bytes],
    *,
    config: Mapping[str, Any],
    dtype: str,
    progress: Phases,
    making: str,
    num_threads: int = 1,
) -> None:
    """Write everything but the tokenizer into ``directory``. What ``journal`` says is finished is not made again.

    shards: the bytes of each of ``contents.files``. config: the keys of the model's config.json. making: the phase in
    which the shards are written. num_threads: shards made at a time; 1: in the caller's thread. Raises StorageError
    for a disk that has no room, or that does not give back what was written; what making the bytes raises.
    """
    sizes = _sizes(contents)
    kept = {file: shard for file in sizes if (shard := journal.finished(directory, file)) is not None}
    done = sum(shard.bytes for shard in kept.values())
    hollow = sum(table.num_bytes for table in contents.tables if table.is_hollow)
    _check_room(directory.parents[1], sum(sizes.values()) - hollow - done)
    wrote = counter(sum(sizes.values()), phase(making, progress), done=done)

    def make(item: tuple[str, Bytes]) -> Shard:
        file, pieces = item
        return write_shard(directory, file, pieces, wrote)

    missing = [(file, pieces) for file, pieces in zip(contents.files, shards, strict=True) if file not in kept]
    for shard in each(num_threads, make, missing):
        assert shard.bytes == sizes[shard.file], f"{shard.file} has not the size that was planned"
        journal.add(shard)
        kept[shard.file] = shard
    ordered = tuple(kept[file] for file in contents.files)
    _verify(directory, ordered, progress, num_threads)
    write_json(directory / "config.json", {**config, manifests.KEY: Manifest(dtype, contents, ordered).to_table()})


def _sizes(contents: Contents) -> dict[str, int]:
    """Bytes of every shard."""
    tensors = [manifests.stored_tensors(held) for held in contents.shared]
    weights = [sum(weight.num_bytes for weight in held.values()) for held in contents.shared]
    sizes = [len(encode_header(parts)) + size for parts, size in zip(tensors, weights, strict=True)]
    layout = contents.experts
    if layout is not None:
        sizes += [len(layout.held(index)) * layout.blob_bytes for index in range(len(layout.files))]
    for table in contents.tables:
        sizes += [len(table.pages(file)) * table.page_bytes for file in range(len(table.files))]
    return dict(zip(contents.files, sizes, strict=True))


def _verify(directory: Path, shards: tuple[Shard, ...], progress: Phases, num_threads: int) -> None:
    """Read everything back. What the disk does not give back as it was written is removed, to be made again."""
    read = counter(sum(shard.bytes for shard in shards), phase("verify", progress))

    def check(shard: Shard) -> None:
        try:
            verify(directory, shard, read)
        except CheckpointError as error:
            (directory / shard.file).unlink(missing_ok=True)
            raise StorageError(
                f"{directory / shard.file} does not read back as it was written; check the disk, then run the same "
                "command again: only this file is made anew"
            ) from error

    for _ in each(num_threads, check, shards):
        pass


def _check_room(directory: Path, needed: int) -> None:
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise StorageError(f"{directory} has {free / 1e9:.2f} GB free; the store needs {needed / 1e9:.2f} GB")
