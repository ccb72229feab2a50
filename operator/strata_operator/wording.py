"""The engine's planner in the words of the spec: what it calls a setting is a field there; pure."""

from __future__ import annotations

import re

from strata.plan.memory import MORE_MEMORY

_FIELDS = {
    "max_model_len": "engine.maxModelLen",
    "max_num_seqs": "engine.maxNumSeqs",
    "max_num_batched_tokens": "engine.maxNumBatchedTokens",
    "num_kv_tokens": "engine.numKvTokens",
    "gpu_memory_utilization": "engine.gpuMemoryUtilization",
    "dtype": "quantization.format",
}
_SETTING = re.compile(rf"\b({'|'.join(_FIELDS)})\b")


def in_words_of_the_spec(message: str) -> str:
    """``message`` with fields of the spec where the planner names its settings."""
    named = _SETTING.sub(lambda found: _FIELDS[found[1]], message)
    return named.replace(f"more for Strata {MORE_MEMORY}", "more of spec.hardware.memory")
