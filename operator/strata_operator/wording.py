"""What the engine tells in words for conditions: its planner in those of the spec, and how far its start is; pure."""

from __future__ import annotations

import re

from strata.plan.budget import MORE_MEMORY
from strata.plan.units import format_bytes
from strata_operator.api.figures import IN_BYTES, Loading

_FIELDS = {
    "max_model_len": "engine.maxModelLen",
    "max_num_seqs": "engine.maxNumSeqs",
    "max_num_batched_tokens": "engine.maxNumBatchedTokens",
    "num_kv_tokens": "engine.numKvTokens",
    "gpu_memory_utilization": "engine.gpuMemoryUtilization",
    "dtype": "quantization.format",
}
_SETTING = re.compile(rf"\b({'|'.join(_FIELDS)})\b")
_MORE = re.compile(rf"\S+ \S+ more for Strata {re.escape(MORE_MEMORY)}")


_SECONDS = ((3600, "h"), (60, "min"), (1, "s"))


def progress(loading: Loading) -> str:
    """How far a start is: the phase, what there is of it, the rate, and the time that is left at that rate."""
    if not loading.total:
        return loading.phase
    size = format_bytes if loading.phase in IN_BYTES else "{} tokens".format
    words = f"{loading.phase}, {10 * loading.tenths} % of {size(loading.total)}"
    if loading.per_second is None or loading.tenths == 10:
        return words
    seconds = loading.total * (10 - loading.tenths) / 10 / loading.per_second
    step, unit = next((one for one in _SECONDS if seconds >= 2 * one[0]), _SECONDS[-1])
    return f"{words} at {size(loading.per_second)}/s, about {max(1, round(seconds / step))} {unit} left"


def in_words_of_the_spec(message: str, *, memory: str = "") -> str:
    """``message`` with fields of the spec where the planner names its settings.

    ``memory``: the quantity that would do, where the planner says how much more of it would.
    """
    named = _SETTING.sub(lambda found: _FIELDS[found[1]], message)
    return _MORE.sub(f"spec.hardware.memory {memory}", named)
