"""Which files of a Hub repository are the model: pure functions over its list of files."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from strata.errors import CheckpointError
from strata.store.sources.base import INDEX, SINGLE

_NEEDED = ("config.json", "tokenizer.json")
_TAKEN = ("tokenizer_config.json", "chat_template.jinja", "generation_config.json")
_PART = re.compile(r"-(\d{5})-of-(\d{5})(?=\.gguf$)")


def small_files(files: Collection[str], origin: str) -> list[str]:
    """Everything of a safetensors checkpoint but the weights: what must be there, and what there is of the rest.

    Raises CheckpointError naming what is missing, before a byte of weights has been fetched.
    """
    missing = [file for file in _NEEDED if file not in files]
    if missing:
        raise CheckpointError(
            f"{origin} has no {' and no '.join(missing)}; choose a repository that was made for Hugging Face's "
            "transformers and has a fast tokenizer, or one with a GGUF"
        )
    index = [INDEX] if INDEX in files and SINGLE not in files else []
    return [*_NEEDED, *(file for file in _TAKEN if file in files), *index]


def weight_files(files: Collection[str], index: Mapping[str, Any], origin: str) -> list[str]:
    """The safetensors files. ``index``: the content of INDEX; empty where ``small_files`` does not name it."""
    if index:
        table = index.get("weight_map")
        named = sorted(set(table.values())) if isinstance(table, dict) and _are_texts(table.values()) else []
        lost = [file for file in named if file not in files]
        if not named or lost:
            raise CheckpointError(
                f"{origin}: {INDEX} names files that are not there: {', '.join(lost) or 'none at all'}"
            )
        return named
    if SINGLE in files:
        return [SINGLE]
    found = [file for file in files if is_weights(file)]
    if len(found) > 1:
        raise CheckpointError(f"{origin} has {', '.join(sorted(found)[:8])}, but no {INDEX} that says what is in them")
    return found


def is_weights(file: str) -> bool:
    """Whether this is a safetensors file of the checkpoint; those in folders are other editions of it."""
    return file.endswith(".safetensors") and "/" not in file


def gguf_files(files: Collection[str], wanted: str | None, origin: str) -> list[str]:
    """The parts, in order, of the one GGUF that is meant.

    wanted: its name, or the name of its quantisation ("Q4_K_M"); None where there is only one. Raises CheckpointError
    with the list to choose from.
    """
    models: dict[str, list[str]] = {}  # name without the number of the part: the parts
    for file in sorted(files):
        if file.endswith(".gguf") and not file.rsplit("/", 1)[-1].startswith("mmproj"):  # that one encodes pictures
            models.setdefault(_PART.sub("", file), []).append(file)
    if not models:
        raise CheckpointError(f"{origin} has no .gguf file; leave ':{wanted}' out, or choose another repository")
    if wanted is None:
        found = list(models)
    else:
        found = [name for name in models if name == _PART.sub("", wanted)] or [
            name for name in models if _has_quantisation(name, wanted)
        ]
    if len(found) != 1:
        what = f"{len(found)} GGUFs" if found else "no GGUF"
        asked = f" that {wanted!r} names" if wanted is not None else ""
        choice = ", ".join(f"{origin}:{name}" for name in found or models)
        raise CheckpointError(f"{origin} has {what}{asked}; choose one of {choice}")
    parts = models[found[0]]
    numbered = _PART.search(parts[0])
    if numbered and len(parts) != int(numbered[2]):
        raise CheckpointError(f"{origin}: of the {int(numbered[2])} parts of {found[0]} there are only {len(parts)}")
    return parts


def _has_quantisation(name: str, wanted: str) -> bool:
    return re.search(rf"(?<![A-Za-z0-9]){re.escape(wanted)}(?![A-Za-z0-9_])", name, re.IGNORECASE) is not None


def _are_texts(values: Collection[object]) -> bool:
    return all(isinstance(value, str) for value in values)
