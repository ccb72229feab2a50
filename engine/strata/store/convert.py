"""A checkpoint becomes a store: planned from names and shapes alone, then streamed tensor by tensor.

Peak memory is about one tensor of the source in float32. Nothing is seen at the target before the store is whole.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from strata import quant
from strata.config import read_hf_config
from strata.errors import CheckpointError, OptionError, StorageError, UsageError
from strata.plan.shape import Role, TensorSpec, check, stored_format
from strata.quant.base import QuantizedTensor, Tensor
from strata.store import manifest as manifests
from strata.store.files import write_json
from strata.store.manifest import Manifest, Shard, Weight
from strata.store.progress import Progress, counter
from strata.store.shard import ShardWriter, encode_header, header_bound
from strata.store.sources import Source, open_source, recommended, source_path
from strata.store.target import lock, partial

DEFAULT_SHARD_SIZE = 128 << 20  # bytes
MIN_SHARD_SIZE = 1 << 20  # bytes


def convert(
    source: str,
    out_dir: Path | str,
    dtype: str,
    *,
    shard_size: int = DEFAULT_SHARD_SIZE,
    progress: Progress | None = None,
    reuse: bool = False,
) -> Path:
    """Convert ``source`` (a checkpoint directory, a .gguf file or builtin://NAME) to a store at ``out_dir``.

    shard_size: bytes of a file at most; a weight that is larger has a file of its own. progress: called with the bytes
    written and those of all shards. reuse: a store that is at ``out_dir`` already, made by another process meanwhile,
    is kept; otherwise a target that exists is refused. Returns ``out_dir``. Raises OptionError for arguments out of
    range, CheckpointError for a source that is unsound, UsageError for a target that exists, StorageError for one
    that cannot be written.
    """
    quant.target(dtype)
    if shard_size < MIN_SHARD_SIZE:
        raise OptionError(f"shard size is {shard_size} bytes; at least {MIN_SHARD_SIZE} are needed")
    target = Path(out_dir).expanduser().absolute()
    path = source_path(source)
    if is_store(path):
        raise CheckpointError(f"{path} is a store already; convert the checkpoint that it was made from")
    opened = open_source(path, recommended(source))
    config = read_hf_config(opened.config, origin=str(path if path.is_file() else path / "config.json"))
    specs = check(config, {name: tensor.shape for name, tensor in opened.tensors.items()}, origin=opened.origin)
    weights = plan(specs, opened, dtype, shard_size)
    with lock(target):
        if reuse and is_store(target):
            return target
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise UsageError(f"{target} exists and is not empty; give another directory, or remove it")
        _check_room(target.parent, sum(weight.num_bytes for weight in weights.values()))
        with partial(target) as directory:
            opened.write_tokenizer(directory)
            shards = _write_shards(directory, opened, weights, progress)
            table = dict(opened.config)
            table[manifests.KEY] = Manifest(dtype, shards, weights).to_table()
            write_json(directory / "config.json", table)
    return target


def is_store(path: Path) -> bool:
    """Whether the directory says that it is a store; it may still be damaged."""
    try:
        return manifests.KEY in json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError, RecursionError):
        return False


def plan(specs: Iterable[TensorSpec], source: Source, dtype: str, shard_size: int) -> dict[str, Weight]:
    """Format and shard of every weight, in the order of ``specs``: pure arithmetic over names and shapes."""
    weights: dict[str, Weight] = {}
    shard, size = 0, 0
    for spec in specs:
        weight = Weight(_format(spec, source.tensors[spec.name].dtype, dtype), spec.shape, shard)
        added = weight.num_bytes + header_bound(weight.tensors(spec.name))
        if size and size + added > shard_size:
            shard, size = shard + 1, 0
            weight = Weight(weight.format, weight.shape, shard)
        size += added + (0 if size else 128)  # length field, braces and padding of the header
        weights[spec.name] = weight
    return weights


def _format(spec: TensorSpec, source_dtype: str, dtype: str) -> str:
    """The format in which a store of ``dtype`` keeps a weight that its source has as ``source_dtype``."""
    if source_dtype == "MXFP4" and spec.role in (Role.MATRIX, Role.EXPERT):
        return "mxfp4"  # trained to it: any other format would take more bits or lose some
    return stored_format(spec, dtype) or ("bf16" if source_dtype == "BF16" else "fp32")


def _write_shards(
    directory: Path, source: Source, weights: Mapping[str, Weight], progress: Progress | None
) -> tuple[Shard, ...]:
    count = max(weight.shard for weight in weights.values()) + 1
    planned = [(held, manifests.stored_tensors(held)) for held in manifests.by_shard(weights, count)]
    num_bytes = sum(weight.num_bytes for weight in weights.values())
    wrote = counter(num_bytes + sum(len(encode_header(tensors)) for _, tensors in planned), progress)
    shards = []
    for index, (held, tensors) in enumerate(planned):
        file = f"shared/{index + 1:05d}-of-{count:05d}.safetensors"
        with ShardWriter(directory, file, tensors, wrote) as writer:
            for name, weight in held.items():
                for part, tensor in _encoded(source, name, weight).items():
                    writer.add(part, tensor)
            shards.append(writer.close())
    return tuple(shards)


def _encoded(source: Source, name: str, weight: Weight) -> dict[str, Tensor]:
    import torch

    tensor = source.read(name)
    if isinstance(tensor, QuantizedTensor):
        if tensor.format == weight.format:
            return {f"{name}.{part}": value for part, value in tensor.parts.items()}
        tensor = quant.get(tensor.format).unpack(tensor)
    if not torch.stack(torch.aminmax(tensor)).isfinite().all():
        raise CheckpointError(f"{source.origin}: tensor {name!r} holds NaN or infinite values")
    if weight.format in manifests.PLAIN_DTYPES:
        return {name: tensor.to(torch.bfloat16 if weight.format == "bf16" else torch.float32)}
    packed = quant.get(weight.format).pack(tensor)
    return {f"{name}.{part}": value for part, value in packed.parts.items()}


def _check_room(directory: Path, needed: int) -> None:
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise StorageError(f"{directory} has {free / 1e9:.2f} GB free; the store needs {needed / 1e9:.2f} GB")
