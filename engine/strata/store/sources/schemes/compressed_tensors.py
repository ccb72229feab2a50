"""compressed-tensors, as llm-compressor writes it: packed integers of 4 and 8 bits, plain ones, 8-bit floats.

A module's weight [outputs, inputs] is one of
- "pack-quantized": ``weight_packed`` int32 [outputs, ceil(inputs * bits/32)], codes from the lowest bits up, each more
  by half its range than the signed number; ``weight_shape``; with a minimum also ``weight_zero_point``, packed the
  same way along the outputs; with act-order ``weight_g_idx``, the group of each input;
- "int-quantized": ``weight`` int8, and ``weight_zero_point`` int8 where there is a minimum;
- "float-quantized": ``weight`` in 8-bit floats (see fp8).
w = (code - zero) * ``weight_scale`` [outputs, groups], [outputs, 1] or [1].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from strata.errors import CheckpointError, UnsupportedModelError
from strata.quant.base import Tensor
from strata.store.sources.safetensors_files import SafetensorsFiles
from strata.store.sources.schemes import fp8
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

_FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision")


def weights(files: SafetensorsFiles, settings: Settings) -> dict[str, StoredWeight]:
    """The weights of all modules that are compressed; raises as ``schemes.stored_weights``."""
    settings.only("format", _FORMATS, None)
    sparsity = Settings(_table(settings, "sparsity_config"), f"{settings.origin}: sparsity_config")
    sparsity.only("format", ("dense",), "dense")
    settings.refuse("transform_config")
    blocks = []
    for group in _groups(settings):
        group.only("format", _FORMATS, settings.table["format"])
        scheme = Settings(_table(group, "weights"), group.origin)
        bits = (8,) if scheme.only("type", ("int", "float"), "int") == "float" else (4, 8)
        scheme.only("num_bits", bits, None)
        if scheme.table.get("block_structure") is not None:
            blocks.append(scheme.table["block_structure"])
    if any(block != blocks[0] for block in blocks):
        raise UnsupportedModelError(
            f"{settings.origin}: FP8 blocks of several sizes ({blocks[0]!r}, {blocks[-1]!r}) in one checkpoint are not "
            "supported"
        )
    found = fp8.scaled_weights(files, blocks[0] if blocks else None, settings.origin)
    for module in modules(files, ".weight_packed"):
        found[f"{module}.weight"] = _packed(files, module)
    for module in modules(files, ".weight"):
        if files.tensors[f"{module}.weight"].dtype == "I8":
            found[f"{module}.weight"] = _integers(files, module)
    return found


def _groups(settings: Settings) -> Iterator[Settings]:
    groups = _table(settings, "config_groups")
    for name, group in groups.items():
        if not isinstance(group, dict):
            raise CheckpointError(f"{settings.origin}: 'config_groups' has {name!r} = {group!r}; a table is needed")
        yield Settings(group, f"{settings.origin}: {name!r}")


def _table(settings: Settings, key: str) -> Mapping[str, Any]:
    value = settings.table.get(key) or {}
    if not isinstance(value, dict):
        raise CheckpointError(f"{settings.origin}: {key!r} is {value!r}; a table is needed")
    return value


def _packed(files: SafetensorsFiles, module: str) -> StoredWeight:
    codes, size, scales, zeros, order = (
        f"{module}.weight_{part}" for part in ("packed", "shape", "scale", "zero_point", "g_idx")
    )
    outputs, words = files.expect(codes, ("I32",), (None, None), whose=codes)
    files.expect(size, ("I64", "I32"), (2,), whose=codes)
    shape = tuple(files.read(size).tolist())
    inputs = shape[1]
    bits = next((bits for bits in (4, 8) if words == -(-inputs * bits // 32)), None)
    if shape[0] != outputs or inputs < 1 or bits is None:
        raise CheckpointError(
            f"{files.path_of(size)}: tensor {size!r} is {list(shape)}, but {codes!r} is {[outputs, words]}; "
            "fetch it again"
        )
    groups = _scale_groups(files, scales, outputs, whose=codes)
    if zeros in files.tensors:
        files.expect(zeros, ("I32",), (-(-outputs * bits // 32), groups), whose=codes)
    if order in files.tensors:
        files.expect(order, ("I32", "I64"), (inputs,), whose=codes)
    else:
        check_even(files, scales, inputs, groups)

    def read(_: int | None, rows: slice) -> Tensor:
        zero = unpack(files.read(zeros).T, bits).T[:outputs][rows] if zeros in files.tensors else 1 << (bits - 1)
        group_of = read_groups(files, order, groups) if order in files.tensors else None
        plain = unpack(files.read(codes, rows=rows), bits)[:, :inputs].contiguous()
        return dequantized(plain, zero, _read_scales(files, scales, rows), group_of)

    parts = tuple(name for name in (codes, size, scales, zeros, order) if name in files.tensors)
    return StoredWeight((outputs, inputs), f"compressed-tensors int{bits}", parts, read)


def _integers(files: SafetensorsFiles, module: str) -> StoredWeight:
    codes, scales, zeros = (f"{module}.{part}" for part in ("weight", "weight_scale", "weight_zero_point"))
    outputs, inputs = files.expect(codes, ("I8",), (None, None), whose=codes)
    groups = _scale_groups(files, scales, outputs, whose=codes)
    check_even(files, scales, inputs, groups)
    if zeros in files.tensors:
        files.expect(zeros, ("I8",), files.tensors[scales].shape, whose=codes)

    def read(_: int | None, rows: slice) -> Tensor:
        zero = _read_scales(files, zeros, rows) if zeros in files.tensors else 0
        return dequantized(files.read(codes, rows=rows), zero, _read_scales(files, scales, rows))

    parts = tuple(name for name in (codes, scales, zeros) if name in files.tensors)
    return StoredWeight((outputs, inputs), "compressed-tensors int8", parts, read)


def _scale_groups(files: SafetensorsFiles, scales: str, outputs: int, *, whose: str) -> int:
    """Groups along a row: the scales are one of all, one a row, or one a row and group."""
    shape = files.expect(scales, PLAIN_TYPES, (1,), (outputs, None), whose=whose)
    return shape[1] if len(shape) == 2 else 1


def _read_scales(files: SafetensorsFiles, name: str, rows: slice) -> Tensor:
    """[rows, groups], or [1, 1] where there is one for all."""
    return files.read(name, rows=rows) if len(files.tensors[name].shape) == 2 else files.read(name).view(1, 1)
