"""Rotary position embedding (RoPE): which of its scalings a checkpoint uses, with all numbers resolved."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from strata.config.keys import Keys
from strata.errors import CheckpointError, UnsupportedModelError

MAX_POSITIONS = 2**31 - 1  # whatever the factor


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Every position is divided by ``factor``."""

    factor: float


@dataclass(frozen=True, slots=True)
class DynamicScaling:
    """Beyond the positions of the training the base grows with the longest sequence, until ``factor`` times them."""

    factor: float
    original_positions: int


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Waves that turn less than ``low_freq_factor`` times within the original positions are stretched by ``factor``,
    those that turn more than ``high_freq_factor`` times stay, those between are blended."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_positions: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (https://arxiv.org/abs/2309.00071): as Llama 3's, but blended by the number of the dimension, between those
    that turn ``beta_fast`` and ``beta_slow`` times; queries and keys are multiplied by ``attention_factor``."""

    factor: float
    original_positions: int
    beta_fast: float
    beta_slow: float
    truncate: bool  # the dimensions between which is blended are rounded to whole ones
    attention_factor: float


Scaling: TypeAlias = LinearScaling | DynamicScaling | Llama3Scaling | YarnScaling


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """``theta`` is the base; ``scaling`` is None for the default, unscaled kind; ``part`` of each head's dimensions,
    the first ones, are turned."""

    theta: float = 10_000.0
    scaling: Scaling | None = None
    part: float = 1.0

    def reach(self, declared: int) -> int:
        """Positions that the scaling allows where the checkpoint declares ``declared``."""
        match self.scaling:
            case LinearScaling(factor) | DynamicScaling(factor):
                reached = factor * declared
            case YarnScaling(factor, original):
                reached = factor * original
            case _:
                return declared
        return max(declared, int(min(reached, MAX_POSITIONS)))


def read_rope(
    keys: Keys,
    default_theta: float,
    default_scaling: Mapping[str, Any] | None = None,
    default_part: float | None = None,
) -> RopeConfig:
    """RoPE of a ``config.json``; the defaults are those of its architecture.

    Newer configs keep all of it in one table, "rope_parameters"; older ones have theta beside "rope_scaling".
    ``default_part``: None where the architecture turns all of each head. Raises UnsupportedModelError for a scaling
    that is not known, or that turns a part of each head where the architecture has no such thing, CheckpointError for
    one that lacks a number.
    """
    table = keys.get("rope_scaling") or keys.get("rope_parameters") or default_scaling or {}
    if not isinstance(table, Mapping) or any(isinstance(value, dict) for value in table.values()):
        raise CheckpointError(f"{keys.origin}: RoPE's scaling is {table!r}; one flat table is needed")
    rope = Keys(table, f"{keys.origin}: RoPE's scaling")
    part = _part(rope, keys, default_part)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if not isinstance(kind, str) or kind not in _SCALINGS:
        raise UnsupportedModelError(
            f"{keys.origin}: RoPE scaling {kind!r} is not supported; supported are {', '.join(_SCALINGS)}: "
            "use another checkpoint"
        )
    theta = rope.number("rope_theta", keys.number("rope_theta", default_theta))
    if theta <= 1:
        raise CheckpointError(f"{keys.origin}: 'rope_theta' is {theta}; a number above 1 is needed")
    return RopeConfig(theta, _SCALINGS[kind](rope, keys), part)


def _part(rope: Keys, keys: Keys, default: float | None) -> float:
    """Of each head's dimensions, that are turned."""
    key = "partial_rotary_factor"
    if default is None:
        part = rope.get(key, keys.get(key, 1.0))
        if part != 1:
            raise UnsupportedModelError(
                f"{keys.origin}: RoPE turns {part!r} of each head's dimensions; models that turn all are supported"
            )
        return 1.0
    part = rope.number(key, keys.number(key, default))
    if part > 1:
        raise CheckpointError(f"{keys.origin}: {key!r} is {part}; a number above 0, 1 at most, is needed")
    return part


def _original_positions(rope: Keys, keys: Keys) -> int:
    key = "original_max_position_embeddings"
    return keys.whole(key, rope.whole(key, keys.whole("max_position_embeddings")))


def _linear(rope: Keys, _: Keys) -> LinearScaling:
    return LinearScaling(rope.number("factor"))


def _dynamic(rope: Keys, keys: Keys) -> DynamicScaling:
    return DynamicScaling(rope.number("factor"), keys.whole("max_position_embeddings"))


def _llama3(rope: Keys, keys: Keys) -> Llama3Scaling:
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if low >= high:
        raise CheckpointError(f"{rope.origin}: 'low_freq_factor' is {low}; 'high_freq_factor', {high}, must lie above")
    return Llama3Scaling(rope.number("factor"), low, high, _original_positions(rope, keys))


def _yarn(rope: Keys, keys: Keys) -> YarnScaling:
    original = _original_positions(rope, keys)
    factor = rope.number("factor", keys.whole("max_position_embeddings") / original)
    return YarnScaling(
        factor=factor,
        original_positions=original,
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        truncate=rope.flag("truncate", True),
        attention_factor=rope.number("attention_factor", _attention_factor(rope, factor)),
    )


def _attention_factor(rope: Keys, factor: float) -> float:
    """The paper's 0.1 ln(factor) + 1, or the ratio of two of them, weighted by DeepSeek's ``mscale`` keys."""

    def temperature(weight: float) -> float:
        return 0.1 * weight * math.log(max(1.0, factor)) + 1.0

    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return temperature(rope.number("mscale")) / temperature(rope.number("mscale_all_dim"))
    return temperature(1.0)


_SCALINGS: dict[str, Callable[[Keys, Keys], Scaling | None]] = {
    "default": lambda rope, keys: None,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
}
