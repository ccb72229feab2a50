"""A store with random weights of a public model's shape: what decides speed is there, and nothing has to be fetched."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import strata
from strata.bench.random_weights import RandomWeights
from strata.bench.word_tokenizer import write_word_tokenizer
from strata.config import ModelConfig, read_hf_config
from strata.config.engine import DTYPES, SHARD_SIZE
from strata.config.public import SHAPES, find_shape
from strata.errors import OptionError
from strata.plan.hardware import num_cpus
from strata.plan.shape import Role, TensorSpec, needed
from strata.store import manifest as manifests
from strata.store.directories import expanded
from strata.store.files import is_file, read_json
from strata.store.manifest import Contents, stored_tensors
from strata.store.plan import plan
from strata.store.progress import Phases
from strata.store.shard import Hole, encode_header
from strata.store.target import lock, partial, target_at
from strata.store.write import Bytes, write_store

PACKED = "mxfp4"
SHAPE_DTYPES = (*DTYPES, PACKED)
_PACKED_REST = "int4"  # what all but the experts of a store in ``PACKED`` are in


def write_shape(
    name: str,
    dtype: str,
    out_dir: Path | str,
    *,
    num_layers: int | None = None,
    router_skew: float = 0.0,
    progress: Phases,
) -> Path:
    """Write the store to ``out_dir`` and return that.

    name: a public shape or the path of a config.json. dtype: one of ``SHAPE_DTYPES``; in mxfp4 only experts are, the
    rest is int4, as in a conversion of gpt-oss to int4. num_layers: the first ones only. router_skew: see
    ``RandomWeights``. Tables of n-grams are zeros that take no room on the disk. progress: called with the bytes of the
    phases "wait", "write" and "verify". Raises OptionError for arguments out of range, UsageError for a target that
    exists, StorageError for one that cannot be written.
    """
    table = _read_table(name, num_layers)
    model = read_hf_config(table, origin=name)
    specs = needed(model)
    contents = _contents(specs, model, dtype, name)
    target = target_at(out_dir)
    facts = (strata.__version__, manifests.FORMAT_VERSION, table, dtype, router_skew)
    weights = RandomWeights(specs, zero_centred_norms=model.zero_centred_norms, router_skew=router_skew)
    with (
        lock(target, lambda num_bytes: progress("wait", num_bytes, 0)),
        partial(target, hashlib.sha256(repr(facts).encode()).hexdigest()) as (directory, journal),
    ):
        write_word_tokenizer(directory, model.vocab_size, model.eos_token_ids)
        write_store(
            directory,
            journal,
            contents,
            _shards(contents, weights),
            config=table,
            dtype=dtype if dtype in DTYPES else _PACKED_REST,
            progress=progress,
            making="write",
            num_threads=num_cpus(),
        )
    return target


def _read_table(name: str, num_layers: int | None) -> dict[str, Any]:
    """The keys of the config.json that the store is to have."""
    path = find_shape(name) or expanded(name)
    if not is_file(path):
        raise OptionError(f"{name!r} is no shape; give the path of a config.json, or one of {', '.join(SHAPES)}")
    # What the publisher's weights are packed in is not what these are in.
    table = {key: value for key, value in read_json(path).items() if key not in ("quantization_config", manifests.KEY)}
    if num_layers is not None:
        has = read_hf_config(table, origin=name).num_layers
        if num_layers > has:
            raise OptionError(f"{num_layers} layers are asked for; {name} has {has}")
        text = table.get("text_config", table)  # checked by read_hf_config
        text["num_hidden_layers"] = num_layers
        if isinstance(text.get("layer_types"), list):
            text["layer_types"] = text["layer_types"][:num_layers]
    return table


def _contents(specs: tuple[TensorSpec, ...], model: ModelConfig, dtype: str, name: str) -> Contents:
    if dtype not in SHAPE_DTYPES:
        raise OptionError(f"dtype is {dtype!r}; one of {', '.join(SHAPE_DTYPES)} is needed")
    if dtype == PACKED and model.experts is None:
        raise OptionError(f"{name} has no experts, which alone are kept in {PACKED}; give {', '.join(DTYPES)}")
    packed = {Role.EXPERT} if dtype == PACKED else set()
    types = {spec.name: PACKED.upper() if spec.role in packed else "BF16" for spec in specs}
    kept = dtype if dtype in DTYPES else _PACKED_REST
    return plan(specs, types, kept, SHARD_SIZE, origin=name, hollow_tables=True)


def _shards(contents: Contents, weights: RandomWeights) -> Iterator[Bytes]:
    """The bytes of each file."""
    for held in contents.shared:
        yield _shared(held, weights)
    layout = contents.experts
    if layout is not None:
        for index in range(len(layout.files)):
            yield (piece for expert in layout.held(index) for piece in weights.blob(layout, *expert))
    for table in contents.tables:
        for file in range(len(table.files)):
            yield (Hole(len(table.pages(file)) * table.page_bytes),)


def _shared(held: Any, weights: RandomWeights) -> Bytes:
    yield encode_header(stored_tensors(held))
    for name, weight in held.items():
        yield from weights.weight(name, weight)
