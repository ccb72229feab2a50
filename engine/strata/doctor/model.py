"""A model's files: are they whole, does Strata run them, is there room for them?"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from strata.config import EngineConfig, ModelConfig, SchedulerConfig, read_hf_config
from strata.doctor.finding import Finding, Level, fail, ok, warn
from strata.doctor.host import check_disk
from strata.errors import StrataError
from strata.plan.estimate import estimate
from strata.plan.fit import Machine
from strata.plan.memory import format_bytes
from strata.plan.parts import weight_parts
from strata.plan.shape import check
from strata.plan.speed import Rates
from strata.store.convert import is_store
from strata.store.files import load_tokenizer, read_json_if_there
from strata.store.peek import peek
from strata.store.reader import Store
from strata.store.sources import open_source, recommended, source_path
from strata.store.sources.hub import HubName

CHECKPOINT_ADVICE = (
    "fetch or copy the files again, and give a store, a checkpoint directory, a .gguf file or builtin://"
)


def check_model(source: str, dtype: str, *, vram_bytes: int | None, ram_bytes: int, cache: Path) -> Iterator[Finding]:
    """The model as ``strata serve SOURCE --dtype DTYPE`` would take it, without reading its weights.

    ``vram_bytes``: of the card that would run it; None: the CPU.
    """
    try:
        if HubName.parse(source) is not None:
            yield from _on_hub(source, dtype, vram_bytes, ram_bytes, cache)
            return
        path = source_path(source)
        if is_store(path):
            store = Store.open(path)
            yield ok(
                "model",
                f"a store of {store.manifest.dtype}, {format_bytes(store.num_bytes)}: {_about(store.model_config)}",
            )
            yield from _tokenizer(path, store.model_config)
            yield _fit(store.model_config, store.manifest.dtype, vram_bytes, ram_bytes)
            return
        opened = open_source(path, recommended(source))
        model = read_hf_config(opened.config, origin=opened.origin)
        check(model, {name: tensor.shape for name, tensor in opened.tensors.items()}, origin=opened.origin)
        yield ok("model", f"{len(opened.tensors)} tensors, all that are needed: {_about(model)}")
        with tempfile.TemporaryDirectory() as directory:
            opened.write_tokenizer(Path(directory))
            yield from _tokenizer(Path(directory), model)
    except StrataError as error:
        yield fail("model", str(error), CHECKPOINT_ADVICE)
        return
    yield _fit(model, dtype, vram_bytes, ram_bytes)
    yield from _room(model, dtype, cache)


def _on_hub(source: str, dtype: str, vram_bytes: int | None, ram_bytes: int, cache: Path) -> Iterator[Finding]:
    """By its config.json; its files are not fetched to be looked at."""
    model = peek(source).model
    yield ok("model", f"on the Hub, only config.json was looked at: {_about(model)}")
    yield _fit(model, dtype, vram_bytes, ram_bytes)
    yield from _room(model, dtype, cache)


def _room(model: ModelConfig, dtype: str, cache: Path) -> Iterator[Finding]:
    found = check_disk(cache, int(weight_parts(model, dtype).total))
    if found.level is not Level.OK:
        yield found


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


def _fit(model: ModelConfig, dtype: str, vram_bytes: int | None, ram_bytes: int) -> Finding:
    config = EngineConfig(model="", dtype=dtype, scheduler=SchedulerConfig(max_num_seqs=1))  # type: ignore[arg-type]
    machine = Machine(vram_bytes, ram_bytes, Rates(device=1.0))
    found = estimate(model, config, machine)
    where = "RAM" if vram_bytes is None else "VRAM"
    if found.fit.problem is not None:
        advice = (
            "serve it with such a --max-model-len, a smaller --dtype, or on a larger machine (strata plan shows each)"
        )
        return warn("fit", f"{dtype} for one sequence of full length: {found.fit.problem}", advice)
    if found.fit.slots < found.fit.num_experts:
        return warn(
            "fit",
            f"{dtype}: {found.fit.slots} of {found.fit.num_experts} experts fit in {where}",
            "a smaller --dtype or a larger card holds more; strata plan shows each",
        )
    return ok(
        "fit",
        f"{dtype}: {format_bytes(int(found.parts.total))} of weights and one sequence of full length fit in {where}",
    )
