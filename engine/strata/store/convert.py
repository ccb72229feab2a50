"""A checkpoint becomes a store: planned from names and shapes alone, then streamed.

Peak memory is about one weight, or one expert, in the format of the store; large tensors of the source are read some
rows at a time. Nothing is seen at the target before the store is whole, and a conversion that was cut short goes on
with the shard at which it was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import strata
from strata import quant
from strata.config.engine import SHARD_SIZE
from strata.errors import CheckpointError, OptionError
from strata.plan.shape import check
from strata.store import manifest as manifests
from strata.store.encode import encode_blob, encode_pages, encode_shared
from strata.store.files import read_json
from strata.store.manifest import Contents
from strata.store.plan import plan
from strata.store.progress import Phases, silent
from strata.store.sources import Obtained, Source, obtain, open_source
from strata.store.target import discard, lock, partial, target_at
from strata.store.write import write_store

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
    target = target_at(out_dir)
    found = obtain(source, progress) if isinstance(source, str) else source
    path = found.path
    if is_store(path):
        raise CheckpointError(f"{path} is a store already; convert the checkpoint that it was made from")
    opened = open_source(path, found.generation_config)
    specs = check(opened.model, {name: tensor.shape for name, tensor in opened.tensors.items()}, origin=opened.origin)
    types = {name: tensor.dtype for name, tensor in opened.tensors.items()}
    contents = plan(specs, types, dtype, shard_size, origin=opened.origin)
    facts = (strata.__version__, manifests.FORMAT_VERSION, dtype, shard_size, found.identity, dict(opened.config))
    identity = hashlib.sha256(repr(facts).encode()).hexdigest()
    with lock(target, lambda num_bytes: progress("wait", num_bytes, 0)):
        if is_store(target):
            discard(target)
            if reuse:
                return target
        with partial(target, identity) as (directory, journal):
            opened.write_tokenizer(directory)
            shards = _shards(contents, opened)
            write_store(
                directory,
                journal,
                contents,
                shards,
                config=opened.config,
                dtype=dtype,
                progress=progress,
                making="convert",
            )
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


def _shards(contents: Contents, source: Source) -> Iterator[Iterator[bytes | memoryview]]:
    """The bytes of each shard, which are made as they are asked for."""
    for held in contents.shared:
        yield encode_shared(source, held)
    layout = contents.experts
    if layout is not None:
        for index in range(len(layout.files)):
            yield (encode_blob(source, layout, *expert) for expert in layout.held(index))
    for table in contents.tables:
        for file in range(len(table.files)):
            yield encode_pages(source, table, file)
