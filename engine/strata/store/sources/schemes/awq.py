"""AWQ, 4 bits, as AutoAWQ's "gemm" layout packs it.

A module's weight, transposed: ``qweight`` int32 [inputs, outputs/8], ``qzeros`` int32 [groups, outputs/8], ``scales``
[groups, outputs]; w = (code - zero) * scale, and groups are equal runs of inputs. Within a word, the nibbles from the
lowest up are the outputs 0, 2, 4, 6, 1, 3, 5, 7 of eight.
"""

from __future__ import annotations

from strata.quant.base import Tensor
from strata.store.sources.safetensors_files import SafetensorsFiles
from strata.store.sources.schemes.base import (
    PLAIN_TYPES,
    Settings,
    StoredWeight,
    check_even,
    dequantized,
    modules,
    unpack,
)

_NIBBLE = [0, 4, 1, 5, 2, 6, 3, 7]  # of each of eight outputs


def weights(files: SafetensorsFiles, settings: Settings) -> dict[str, StoredWeight]:
    """The weights of all modules with a ``qweight``; raises as ``schemes.stored_weights``."""
    settings.only("bits", (4,), settings.table.get("w_bit", 4))
    settings.only("format", ("gemm",), "gemm")
    settings.only("version", ("gemm", "GEMM"), "gemm")  # the older key
    settings.only("zero_point", (True,), True)
    return {f"{module}.weight": _weight(files, module) for module in modules(files, ".qweight")}


def _weight(files: SafetensorsFiles, module: str) -> StoredWeight:
    codes, zeros, scales = names = tuple(f"{module}.{part}" for part in ("qweight", "qzeros", "scales"))
    inputs, words = files.expect(codes, ("I32",), (None, None), whose=codes)
    groups, _ = files.expect(scales, PLAIN_TYPES, (None, 8 * words), whose=codes)
    files.expect(zeros, ("I32",), (groups, words), whose=codes)
    check_even(files, scales, inputs, groups)

    def read(_: int | None, rows: slice) -> Tensor:
        return dequantized(
            _unpack(files.read(codes), rows), _unpack(files.read(zeros), rows), files.read(scales).T[rows]
        )

    return StoredWeight((8 * words, inputs), "AWQ 4 bit", names, read)


def _unpack(words: Tensor, rows: slice) -> Tensor:
    """int32 [n, outputs/8] -> uint8 [outputs, n], of which ``rows``: no other words are unpacked."""
    first, last, step = rows.indices(8 * words.shape[1])
    held = first // 8
    codes = unpack(words[:, held : -(-last // 8)], 4)
    outputs = codes.view(len(codes), -1, 8)[..., _NIBBLE].view(codes.shape).T
    return outputs[first - 8 * held : last - 8 * held : step].contiguous()
