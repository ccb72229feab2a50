"""MXFP4 as gpt-oss is published in: the format that ``strata.quant.mxfp4`` keeps, packed in another order.

A tensor ``NAME_blocks`` uint8 [experts, rows, groups, 16] holds two numbers a byte, the first in the low half;
``NAME_scales`` uint8 [experts, rows, groups] the exponents. The weight is called by the name of its blocks.
"""

from __future__ import annotations

from strata.errors import CheckpointError
from strata.quant.base import GROUP, QuantizedTensor, Tensor
from strata.quant.mxfp4 import MAX_SCALE
from strata.quant.nibbles import pack_nibbles
from strata.store.sources.safetensors_files import SafetensorsFiles
from strata.store.sources.schemes.base import Settings, StoredWeight, modules, unpack

DTYPE = "MXFP4"  # of weights that come in that format, as sources call it


def weights(files: SafetensorsFiles, settings: Settings) -> dict[str, StoredWeight]:
    """The weights of all tensors ``NAME_blocks``; raises as ``schemes.stored_weights``."""
    return {f"{name}_blocks": _weight(files, name) for name in modules(files, "_blocks")}


def _weight(files: SafetensorsFiles, name: str) -> StoredWeight:
    blocks, scales = parts = (f"{name}_blocks", f"{name}_scales")
    experts, rows, groups, _ = files.expect(blocks, ("U8",), (None, None, None, GROUP // 2), whose=blocks)
    files.expect(scales, ("U8",), (experts, rows, groups), whose=blocks)

    def read(expert: int | None, part: slice) -> QuantizedTensor:
        codes = unpack(files.read(blocks, expert, part).flatten(1), 4)
        return quantized(codes, files.read(scales, expert, part), f"{files.path_of(scales)}: tensor {scales!r}")

    return StoredWeight((experts, rows, groups * GROUP), DTYPE, parts, read)


def quantized(codes: Tensor, scales: Tensor, what: str) -> QuantizedTensor:
    """A matrix from its codes uint8 [rows, cols], a number each, and its exponents uint8 [rows, cols/32].

    Raises CheckpointError naming ``what`` where an exponent is not finite.
    """
    rows, cols = codes.shape
    if int(scales.max()) > MAX_SCALE:
        raise CheckpointError(f"{what} holds NaN or infinite values; fetch it again")
    return QuantizedTensor("mxfp4", (rows, cols), {"codes": pack_nibbles(codes), "scales": scales.contiguous()})
