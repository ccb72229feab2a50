"""A model's files: are they whole, does Strata run them, is there room for them?"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from strata.config import EngineConfig, ModelConfig
from strata.config.model_name import HubName, parse_name
from strata.doctor.finding import Finding, Level, fail, ok, warn
from strata.doctor.host import check_disk
from strata.errors import HardwareError, StrataError, UnfetchedError
from strata.plan.budget import plan_memory
from strata.plan.estimate import KV_BYTES
from strata.plan.memory import DeviceMemory
from strata.plan.parts import loaded_parts, weight_parts
from strata.plan.shape import check
from strata.plan.units import format_bytes
from strata.store.convert import is_store
from strata.store.files import load_tokenizer, read_json_if_there
from strata.store.locate import converted
from strata.store.peek import peek_at
from strata.store.reader import Store
from strata.store.sources import Source, open_source, source_path
from strata.store.sources.hub import CONFIG, fetch_shape


def check_model(source: str, dtype: str, memory: DeviceMemory, cache: Path) -> Iterator[Finding]:
    """The model as ``strata serve SOURCE --dtype DTYPE`` would take it, without reading its weights.

    ``memory``: of what would run it. ``cache``: where it would be converted to.
    """
    try:
        name = parse_name(source)
        path = converted(name, dtype, cache) or fetch_shape(name) if isinstance(name, HubName) else source_path(name)
        if is_store(path):
            yield from _store(Store.open(path), memory)
            return
        found = peek_at(path)
        if isinstance(name, HubName) and path.name == CONFIG:
            yield ok("model", f"on the Hub, only {CONFIG} was looked at: {_about(found.model)}")
        else:
            yield from _checkpoint(open_source(path))
    except UnfetchedError as error:
        yield warn("model", f"not looked at: {error}", f"strata fetch {source}")
        return
    except StrataError as error:
        yield fail("model", str(error))
        return
    loaded = loaded_parts(found.model, dtype, memory.device, found.expert_format)
    yield _fit(found.model, dtype, int(loaded.total), memory)
    room = check_disk(cache, int(weight_parts(found.model, dtype, found.expert_format).total))
    if room.level is not Level.OK:
        yield room


def _store(store: Store, memory: DeviceMemory) -> Iterator[Finding]:
    model = store.model_config
    yield ok("model", f"a store of {store.dtype}, {format_bytes(store.num_bytes)}: {_about(model)}")
    yield from _tokenizer(store.path, model)
    loaded_bytes = store.prepared_bytes if memory.device == "cpu" else store.num_bytes
    yield _fit(model, store.dtype, loaded_bytes, memory)


def _checkpoint(opened: Source) -> Iterator[Finding]:
    model = opened.model
    check(model, {name: tensor.shape for name, tensor in opened.tensors.items()}, origin=opened.origin)
    yield ok("model", f"{len(opened.tensors)} tensors, all that are needed: {_about(model)}")
    with tempfile.TemporaryDirectory() as directory:
        opened.write_tokenizer(Path(directory))
        yield from _tokenizer(Path(directory), model)


def _about(model: ModelConfig) -> str:
    return f"{model.architecture}, {model.num_layers} layers, {model.max_position_embeddings} tokens of context"


def _tokenizer(directory: Path, model: ModelConfig) -> Iterator[Finding]:
    tokenizer = load_tokenizer(directory / "tokenizer.json")
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    if size > model.vocab_size:
        yield fail(
            "tokenizer",
            f"it has {size} tokens, and the model's embedding {model.vocab_size} rows",
            "they belong to different models: fetch the tokenizer's files of this one",
        )
    else:
        yield ok("tokenizer", f"{size} tokens")
    if read_json_if_there(directory / "tokenizer_config.json").get("chat_template"):
        yield ok("chat template", "there")
    else:
        yield warn(
            "chat template",
            "none: /v1/chat/completions will be refused, /v1/completions works",
            "take the instruct variant of the model, or add chat_template to tokenizer_config.json",
        )


def _fit(model: ModelConfig, dtype: str, weight_bytes: int, memory: DeviceMemory) -> Finding:
    """What ``strata serve`` would plan with its own settings."""
    config = EngineConfig(model="", dtype=dtype)  # type: ignore[arg-type]
    try:
        plan = plan_memory(model, config, memory=memory, weight_bytes=weight_bytes, element_bytes=KV_BYTES)
    except HardwareError as error:
        return warn(
            "fit", f"{dtype}: {error}", "serve it with such a setting, or elsewhere; strata plan shows each dtype"
        )
    where = "RAM" if memory.device == "cpu" else "VRAM"
    return ok(
        "fit",
        f"{dtype}: {format_bytes(weight_bytes)} of weights and {plan.num_kv_tokens} tokens of KV cache fit in {where}",
    )
