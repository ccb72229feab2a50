"""Tables that a checkpoint has in parts, ``NAME.shard_0.weight``, ``NAME.shard_1.weight`` ...: rows of one weight."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import accumulate

from strata.errors import CheckpointError
from strata.quant.base import QuantizedTensor, Tensor
from strata.store.sources.schemes.base import StoredWeight

_PART = re.compile(r"(.+\.ngram_embedding)\.shard_(\d{1,6})\.weight")


def joined(weights: Mapping[str, StoredWeight], *, origin: str) -> dict[str, StoredWeight]:
    """The weights with each such table as one, ``NAME.weight``. Raises CheckpointError naming a part that is missing
    or does not fit the others."""
    found: dict[str, StoredWeight] = {}
    parts: dict[str, dict[int, StoredWeight]] = {}
    for name, weight in weights.items():
        match = _PART.fullmatch(name)
        if match is None:
            found[name] = weight
        else:
            parts.setdefault(match[1], {})[int(match[2])] = weight
    for name, numbered in parts.items():
        if f"{name}.weight" in found:
            raise CheckpointError(f"{origin}: tensor '{name}.weight' and '{name}.shard_*.weight' are both there")
        missing = next((number for number in range(len(numbered)) if number not in numbered), None)
        if missing is not None:
            raise CheckpointError(f"{origin}: tensor '{name}.shard_{missing}.weight' is missing beside the others")
        found[f"{name}.weight"] = _joined(name, [numbered[number] for number in range(len(numbered))], origin)
    return found


def _joined(name: str, parts: list[StoredWeight], origin: str) -> StoredWeight:
    kinds = {(part.dtype, part.shape[1:]) for part in parts}
    if len(kinds) > 1 or any(len(part.shape) != 2 for part in parts):
        raise CheckpointError(f"{origin}: the tensors '{name}.shard_*.weight' are not rows of one matrix")
    begins = list(accumulate((part.shape[0] for part in parts), initial=0))

    def read(expert: int | None, rows: slice) -> Tensor | QuantizedTensor:
        import torch

        first, last, step = rows.indices(begins[-1])
        pieces = []
        for begin, end, part in zip(begins, begins[1:], parts, strict=False):
            if begin < last and first < end:
                pieces.append(part.read(expert, slice(max(first - begin, 0), min(last, end) - begin)))
        return torch.cat(pieces)[::step]

    names = tuple(stored for part in parts for stored in part.parts)
    return StoredWeight((begins[-1], *parts[0].shape[1:]), parts[0].dtype, names, read)
