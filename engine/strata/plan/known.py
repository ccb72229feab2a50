"""Models whose shape is known without their files, so that a plan can be made before anything is fetched."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache

from strata.config import ModelConfig, read_hf_config
from strata.config.public import SHAPES

PUBLISHED = {
    "builtin://smollm2-135m": "smollm2-135m",
    "Qwen/Qwen3-8B": "qwen3-8b",
    "Qwen/Qwen3-30B-A3B": "qwen3-30b-a3b",
    "Qwen/Qwen3-235B-A22B": "qwen3-235b-a22b",
    "Qwen/Qwen3-Next-80B-A3B-Instruct": "qwen3-next-80b-a3b",
    "Qwen/Qwen3-Next-80B-A3B-Thinking": "qwen3-next-80b-a3b",
    "Qwen/Qwen3.8-Flash-Next": "qwen3.8-flash-next",
    "mistralai/Mixtral-8x7B-v0.1": "mixtral-8x7b",
    "mistralai/Mixtral-8x7B-Instruct-v0.1": "mixtral-8x7b",
    "openai/gpt-oss-20b": "gpt-oss-20b",
    "openai/gpt-oss-120b": "gpt-oss-120b",
}
BUILTINS = tuple(name for name in PUBLISHED if name.startswith("builtin://"))  # all that the engine has
_PACKED = {"openai/gpt-oss-20b": "mxfp4", "openai/gpt-oss-120b": "mxfp4"}


@dataclass(frozen=True, slots=True)
class Shape:
    """``expert_format``: what the experts are packed in whatever they are converted to; None: in that."""

    config: ModelConfig
    expert_format: str | None = None


@cache
def known(model: str) -> Shape | None:
    """The shape of ``builtin://NAME`` or of ``ORG/NAME`` on the Hub; None where it has to be looked up."""
    name = PUBLISHED.get(model)
    if name is None:
        return None
    return Shape(read_hf_config(json.loads(SHAPES[name].read_text()), origin=model), _PACKED.get(model))
