"""GPTQ, 4 and 8 bits, as AutoGPTQ and GPTQModel store it.

A module's weight, transposed and packed along its inputs: ``qweight`` int32 [inputs * bits/32, outputs], ``qzeros``
int32 [groups, outputs * bits/32], ``scales`` [groups, outputs], ``g_idx`` int32 [inputs], the group of each input;
w = (code - zero) * scale. Words hold their codes from the lowest bits up. Zeros are stored less one, except in the
format "gptq_v2"; a zero of 0 is then the largest code, so adding the one wraps around.
"""

from __future__ import annotations

from strata.errors import UnsupportedModelError
from strata.quant.base import Tensor
from strata.store.sources.safetensors_files import SafetensorsFiles
from strata.store.sources.schemes.base import (
    PLAIN_TYPES,
    Settings,
    StoredWeight,
    check_even,
    dequantized,
    modules,
    read_groups,
    unpack,
)

_BITS = (4, 8)
_FORMATS = ("gptq", "gptq_v2")


def weights(files: SafetensorsFiles, settings: Settings) -> dict[str, StoredWeight]:
    """The weights of all modules with a ``qweight``; raises as ``schemes.stored_weights``."""
    settings.only("bits", _BITS, None)
    settings.refuse("is_marlin_format")
    newer = settings.only("format", _FORMATS, "gptq")
    offset = 1 if settings.only("checkpoint_format", _FORMATS, newer) == "gptq" else 0
    return {f"{module}.weight": _weight(files, module, settings, offset) for module in modules(files, ".qweight")}


def _weight(files: SafetensorsFiles, module: str, settings: Settings, offset: int) -> StoredWeight:
    codes, zeros, scales, order = (f"{module}.{part}" for part in ("qweight", "qzeros", "scales", "g_idx"))
    words, outputs = files.expect(codes, ("I32",), (None, None), whose=codes)
    bits, act_order = settings.table["bits"], settings.table.get("desc_act")
    if order in files.tensors or act_order is True:
        # Its length tells the bits of a module that has others than most ("dynamic").
        inputs = files.expect(order, ("I32",), (None,), whose=codes)[0]
        bits = 32 * words // inputs
        if bits not in _BITS or 32 * words != bits * inputs:
            raise UnsupportedModelError(
                f"{files.path_of(codes)}: tensor {codes!r} holds {32 * words / inputs:g} bits for each of the {inputs} "
                f"inputs of {order!r}; supported: {' and '.join(map(str, _BITS))}"
            )
    inputs = 32 * words // bits
    groups, _ = files.expect(scales, PLAIN_TYPES, (None, outputs), whose=codes)
    files.expect(zeros, ("I32",), (groups, outputs * bits // 32), whose=codes)
    # Without act-order, groups are runs of inputs, whatever an unused g_idx says.
    ordered = order in files.tensors and act_order is not False
    if not ordered:
        check_even(files, scales, inputs, groups)

    def read(_: int | None, rows: slice) -> Tensor:
        plain = unpack(files.read(codes).T[rows], bits)
        zero = (unpack(files.read(zeros), bits).T[rows] + offset) & ((1 << bits) - 1)
        group_of = read_groups(files, order, groups) if ordered else None
        return dequantized(plain, zero, files.read(scales).T[rows], group_of)

    parts = (codes, zeros, scales, order) if order in files.tensors else (codes, zeros, scales)
    return StoredWeight((outputs, inputs), f"GPTQ {bits} bit", parts, read)
