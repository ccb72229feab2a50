"""The shape of a model without its weights: a ``config.json`` is enough."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from strata.config import ModelConfig, read_hf_config
from strata.config.model_name import HubName, parse_name
from strata.config.public import SHAPES, find_shape
from strata.errors import CheckpointError, UnsupportedModelError
from strata.plan.known import PUBLISHED
from strata.plan.shape import Role, needed
from strata.store.files import is_file, read_json
from strata.store.manifest import KEY, Manifest
from strata.store.sources import open_source, source_path
from strata.store.sources.hub import fetch_shape

PACKED = "mxfp4"  # the bit format that is kept when a checkpoint is converted


@dataclass(frozen=True, slots=True)
class Peek:
    """``dtype``: of a store; None: it is to be converted yet. ``expert_format``: what the experts are packed in
    whatever the dtype; None: in the dtype."""

    model: ModelConfig
    dtype: str | None = None
    expert_format: str | None = None


def peek(source: str) -> Peek:
    """What the user names: a ``config.json`` or a directory with one (weights need not be there; a store is such a
    directory), a public shape by name, a .gguf file of which the header is read, ``builtin://NAME``, or a name on the
    Hub, from which only config.json is fetched unless it comes along; a GGUF on the Hub must be here already.

    Raises CheckpointError when it is none of these or is damaged, UnsupportedModelError for an architecture that Strata
    does not run, and what ``strata.store.sources.hub.fetch_shape`` raises.
    """
    shape = find_public(source)
    if shape is not None:
        return peek_at(shape)
    name = parse_name(source)
    try:
        path = fetch_shape(name) if isinstance(name, HubName) else source_path(name)
    except UnsupportedModelError:
        raise
    except CheckpointError as error:
        raise type(error)(f"{error}. Shapes that come along: {', '.join(SHAPES)}") from error
    return peek_at(path)


def find_public(source: str) -> Path | None:
    """The config.json that comes along for a shape's name, or for the model on the Hub that has this shape."""
    on_hub = isinstance(parse_name(source), HubName)
    return SHAPES[PUBLISHED[source]] if on_hub and source in PUBLISHED else find_shape(source)


def peek_at(path: Path) -> Peek:
    """As ``peek``, of what is here."""
    config = path if path.suffix == ".json" else path / "config.json"
    return _peek_at_config(config) if is_file(config) else _peek_at_checkpoint(path)


def _peek_at_config(path: Path) -> Peek:
    table = read_json(path)
    model = read_hf_config(table, origin=str(path))
    if KEY in table:
        manifest = Manifest.from_table(table[KEY], needed(model), origin=str(path))
        experts = manifest.contents.experts
        formats = {weight.format for weight in experts.weights.values()} if experts is not None else set()
        return Peek(model, manifest.dtype, PACKED if PACKED in formats else None)
    quantization = table.get("quantization_config")
    method = quantization.get("quant_method") if isinstance(quantization, dict) else None
    return Peek(model, None, PACKED if method == PACKED and model.experts is not None else None)


def _peek_at_checkpoint(path: Path) -> Peek:
    opened = open_source(path)
    experts = {spec.name for spec in needed(opened.model) if spec.role is Role.EXPERT}
    types = {tensor.dtype for name, tensor in opened.tensors.items() if name in experts}
    return Peek(opened.model, None, PACKED if types == {PACKED.upper()} else None)
