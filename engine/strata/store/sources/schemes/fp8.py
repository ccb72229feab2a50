"""8-bit floats (E4M3) with scales in float: "fp8" and "fbgemm_fp8" of Hugging Face, and a part of compressed-tensors.

w = number * scale. A weight ``NAME`` [rows, cols], or [experts, rows, cols], has its scales beside it as
``NAME_scale_inv`` (which is multiplied all the same) or ``NAME_scale``: one of all, one a row, or one of each block,
[ceil(rows / block), ceil(cols / block)].
"""

from __future__ import annotations

from typing import Any

from strata.errors import CheckpointError
from strata.quant.base import Tensor
from strata.store.sources.safetensors_files import SafetensorsFiles
from strata.store.sources.schemes.base import PLAIN_TYPES, Settings, StoredWeight

TYPE = "F8_E4M3"
_SCALE_TYPES = (*PLAIN_TYPES, "F8_E8M0")


def weights(files: SafetensorsFiles, settings: Settings) -> dict[str, StoredWeight]:
    """Every tensor of 8-bit floats; raises as ``schemes.stored_weights``."""
    return scaled_weights(files, settings.table.get("weight_block_size"), settings.origin)


def scaled_weights(files: SafetensorsFiles, block: Any, origin: str) -> dict[str, StoredWeight]:
    """Every tensor of 8-bit floats with its scales. block: [rows, cols] of one scale, as ``origin`` has it, or None."""
    if block is not None and not (
        isinstance(block, list) and len(block) == 2 and all(type(length) is int and length > 0 for length in block)
    ):
        raise CheckpointError(f"{origin}: the block size is {block!r}; a list of rows and columns is needed")
    names = [name for name, tensor in files.tensors.items() if tensor.dtype == TYPE]
    return {name: _weight(files, name, block) for name in names}


def _weight(files: SafetensorsFiles, name: str, block: list[int] | None) -> StoredWeight:
    lengths = len(files.tensors[name].shape)
    shape = files.expect(name, (TYPE,), (None,) * (3 if lengths == 3 else 2), whose=name)
    *stack, rows, cols = shape
    scale = f"{name}_scale_inv" if f"{name}_scale_inv" in files.tensors else f"{name}_scale"
    allowed: list[tuple[int, ...]] = [(), (1,), (rows,), (rows, 1), (1, 1)]
    if block is not None:
        allowed.append((-(-rows // block[0]), -(-cols // block[1])))
    if stack:
        allowed = [(*stack, *each) for each in allowed if each != (rows,)]
    files.expect(scale, _SCALE_TYPES, *allowed, whose=name)

    def read(expert: int | None, part: slice) -> Tensor:
        numbers, scales = files.read(name, expert, part).float(), files.read(scale, expert).float()
        if scales.numel() == 1:
            return numbers.mul_(scales.view(()))
        if scales.shape in ((rows,), (rows, 1)):
            return numbers.mul_(scales.view(rows, 1)[part])
        assert block is not None, "scales of blocks are accepted with a block size only"
        spread = scales.repeat_interleave(block[0], 0)[:rows][part]
        return numbers.mul_(spread.repeat_interleave(block[1], 1)[:, :cols])

    return StoredWeight(shape, "FP8", (name, scale), read)
