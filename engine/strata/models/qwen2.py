"""Qwen2 and 2.5, and the first Qwen mixtures of experts."""

from __future__ import annotations

from strata.models.mistral import Mistral


class Qwen2(Mistral):
    """Biases for q, k and v; a sliding window in some layers, in most checkpoints in none. A mixture has experts
    beside a shared one, in all layers or in some."""
