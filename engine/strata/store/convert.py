"""A checkpoint becomes a store: planned from names and shapes alone, then streamed.

Peak memory is about one weight, or one expert, in the format of the store; large tensors of the source are read some
rows at a time. Nothing is seen at the target before the store is whole, and a conversion that was cut short goes on
with the shard at which it was.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import strata
from strata import quant
from strata.config import read_hf_config
from strata.config.engine import SHARD_SIZE
from strata.errors import CheckpointError, OptionError, StorageError, UsageError
from strata.plan.shape import check
from strata.store import manifest as manifests
from strata.store.encode import encode_blob, encode_shared
from strata.store.files import read_json, write_json
from strata.store.journal import Journal
from strata.store.manifest import Contents, Manifest, Shard
from strata.store.plan import plan
from strata.store.progress import Phases, counter, phase, silent
from strata.store.shard import ShardWriter, encode_header, verify
from strata.store.sources import Obtained, Source, obtain, open_source
from strata.store.target import discard, lock, partial

MIN_SHARD_SIZE = 1 << 20  # bytes


def convert(
    source: str | Obtained,
    out_dir: Path | str,
    dtype: str,
    *,
    shard_size: int = SHARD_SIZE,
    progress: Phases = silent,
    reuse: bool = False,
) -> Path:
    """Convert ``source`` (whatever ``obtain`` takes) to a store at ``out_dir``.

    shard_size: bytes of a file at most; a weight or an expert that is larger has a file of its own. progress: called
    with the bytes of each phase: "wait" for another process with the same target, "download" from the Hub, "convert",
    "verify". reuse: a store that is at ``out_dir`` already, made by another process meanwhile, is kept; otherwise a
    target that exists is refused. Returns ``out_dir``. Raises OptionError for arguments out of range, CheckpointError
    for a source that is unsound, UsageError for a target that exists, StorageError for one that cannot be written.
    """
    quant.target(dtype)
    if shard_size < MIN_SHARD_SIZE:
        raise OptionError(f"shard size is {shard_size} bytes; at least {MIN_SHARD_SIZE} are needed")
    target = Path(out_dir).expanduser().absolute()
    found = obtain(source, progress) if isinstance(source, str) else source
    path = found.path
    if is_store(path):
        raise CheckpointError(f"{path} is a store already; convert the checkpoint that it was made from")
    opened = open_source(path, found.generation_config)
    config = read_hf_config(opened.config, origin=str(path if path.is_file() else path / "config.json"))
    specs = check(config, {name: tensor.shape for name, tensor in opened.tensors.items()}, origin=opened.origin)
    contents = plan(specs, opened, dtype, shard_size)
    facts = (strata.__version__, manifests.FORMAT_VERSION, dtype, shard_size, found.identity, dict(opened.config))
    identity = hashlib.sha256(repr(facts).encode()).hexdigest()
    with lock(target, lambda num_bytes: progress("wait", num_bytes, 0)):
        if is_store(target):
            discard(target)
            if reuse:
                return target
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise UsageError(f"{target} exists and is not empty; give another directory, or remove it")
        with partial(target, identity) as (directory, journal):
            _write(directory, journal, opened, dtype, contents, progress)
    return target


def is_store(path: Path) -> bool:
    """Whether the directory says that it is a store; it may still be damaged."""
    return _manifest_table(path) is not None


def is_current_store(path: Path) -> bool:
    """Whether it also says that this Strata can read it."""
    table = _manifest_table(path)
    return isinstance(table, dict) and table.get("format_version") == manifests.FORMAT_VERSION


def _manifest_table(path: Path) -> Any:
    try:
        return read_json(path / "config.json").get(manifests.KEY)
    except CheckpointError:
        return None


def _write(directory: Path, journal: Journal, source: Source, dtype: str, contents: Contents, progress: Phases) -> None:
    source.write_tokenizer(directory)
    sizes = _sizes(contents)
    kept = {file: shard for file in sizes if (shard := journal.finished(directory, file)) is not None}
    done = sum(shard.bytes for shard in kept.values())
    _check_room(directory.parents[1], sum(sizes.values()) - done)
    wrote = counter(sum(sizes.values()), phase("convert", progress), done=done)
    for file, pieces in _files(contents, source):
        if file not in kept:
            with ShardWriter(directory, file, wrote) as writer:
                for piece in pieces:
                    writer.write(piece)
                kept[file] = writer.close()
            assert kept[file].bytes == sizes[file], f"{file} has not the size that was planned"
            journal.add(kept[file])
    shards = tuple(kept[file] for file in contents.files)
    _verify(directory, shards, progress)
    table = dict(source.config)
    table[manifests.KEY] = Manifest(dtype, contents, shards).to_table()
    write_json(directory / "config.json", table)


def _files(contents: Contents, source: Source) -> Iterator[tuple[str, Iterator[bytes | memoryview]]]:
    """Each shard's name with its bytes, which are made as they are asked for."""
    names = iter(contents.files)
    for held in contents.shared:
        yield next(names), encode_shared(source, held)
    layout = contents.experts
    if layout is not None:
        for index, file in enumerate(layout.files):
            yield file, (encode_blob(source, layout, *expert) for expert in layout.held(index))


def _sizes(contents: Contents) -> dict[str, int]:
    """Bytes of every shard."""
    tensors = [manifests.stored_tensors(held) for held in contents.shared]
    weights = [sum(weight.num_bytes for weight in held.values()) for held in contents.shared]
    sizes = [len(encode_header(parts)) + size for parts, size in zip(tensors, weights, strict=True)]
    layout = contents.experts
    if layout is not None:
        sizes += [len(layout.held(index)) * layout.blob_bytes for index in range(len(layout.files))]
    return dict(zip(contents.files, sizes, strict=True))


def _verify(directory: Path, shards: tuple[Shard, ...], progress: Phases) -> None:
    """Read everything back. What the disk does not give back as it was written is removed, to be made again."""
    read = counter(sum(shard.bytes for shard in shards), phase("verify", progress))
    for shard in shards:
        try:
            verify(directory, shard, read)
        except CheckpointError as error:
            (directory / shard.file).unlink(missing_ok=True)
            raise StorageError(
                f"{directory / shard.file} does not read back as it was written; check the disk, then run the same "
                "command again: only this file is made anew"
            ) from error


def _check_room(directory: Path, needed: int) -> None:
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise StorageError(f"{directory} has {free / 1e9:.2f} GB free; the store needs {needed / 1e9:.2f} GB")
