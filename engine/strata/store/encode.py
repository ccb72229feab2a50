"""A source's tensors as the bytes of a shard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from strata import quant
from strata.errors import CheckpointError
from strata.plan.ngrams import CHECKSUM_BYTES
from strata.plan.shape import expert_name
from strata.quant.base import QuantizedTensor, Tensor
from strata.store.layout import PLAIN_DTYPES, ExpertLayout, Weight
from strata.store.manifest import stored_tensors
from strata.store.shard import PIECE_BYTES, bytes_of, encode_header, torch_dtype
from strata.store.sources import Source
from strata.store.sources.base import WHOLE
from strata.store.tables import TableLayout

# Weights read at a time: 16 MiB in float32. An embedding of 150,000 tokens has a hundred times that and more.
_READ_WEIGHTS = 4 << 20


def encode_shared(source: Source, weights: Mapping[str, Weight]) -> Iterator[bytes | memoryview]:
    """The bytes of a safetensors file with these weights, in pieces. Raises CheckpointError for NaN and infinity."""
    yield encode_header(stored_tensors(weights))
    for name, weight in weights.items():
        for _, _, tensor in _stored(source, name, weight):
            yield bytes_of(tensor)


def encode_blob(source: Source, layout: ExpertLayout, layer: int, expert: int) -> memoryview:
    """The blob of an expert; otherwise as ``encode_shared``."""
    blob = bytearray(layout.blob_bytes)  # padding is zero
    for name, weight in layout.weights.items():
        for part, offset, tensor in _stored(source, f"{expert_name(layer, expert)}.{name}", weight):
            data = bytes_of(tensor)
            start = layout.parts[f"{name}{part}"][0] + offset
            blob[start : start + len(data)] = data
    return memoryview(blob)


def encode_pages(source: Source, table: TableLayout, file: int) -> Iterator[memoryview]:
    """The pages of a file of a table, in pieces; otherwise as ``encode_shared``."""
    import numpy
    import torch
    from xxhash import xxh3_64_intdigest

    pages, step = table.pages(file), max(1, PIECE_BYTES // table.page_bytes)
    for begin in range(pages.start, pages.stop, step):
        numbers = range(begin, min(begin + step, pages.stop))
        rows = slice(begin * table.rows_per_page, min(numbers.stop * table.rows_per_page, table.num_rows))
        tensor = source.read(table.name, rows)
        assert not isinstance(tensor, QuantizedTensor), "rows of n-grams are plain numbers"
        _check_finite(source, table.name, tensor)
        of_rows = numpy.zeros((len(numbers), table.rows_per_page * table.row_bytes), numpy.uint8)
        data = bytes_of(tensor.to(torch.bfloat16).contiguous())
        of_rows.reshape(-1)[: len(data)] = data
        piece = numpy.zeros((len(numbers), table.page_bytes), numpy.uint8)
        piece[:, : of_rows.shape[1]] = of_rows
        sums = [
            xxh3_64_intdigest(page[:-CHECKSUM_BYTES].data, seed=number)
            for number, page in zip(numbers, piece, strict=True)
        ]
        piece[:, -CHECKSUM_BYTES:] = numpy.array(sums, "<u8").view(numpy.uint8).reshape(len(numbers), -1)
        yield piece.reshape(-1).data


def _stored(source: Source, name: str, weight: Weight) -> Iterator[tuple[str, int, Tensor]]:
    """The stored tensors of a weight in order, each behind its suffix ("", ".codes") and the byte of it with which this
    piece begins: a plain weight comes in several pieces."""
    import torch

    if weight.is_plain:
        offset = 0
        for _, plain in _read(source, name, weight):
            assert not isinstance(plain, QuantizedTensor), "no bit format is plain"
            piece = plain.to(torch_dtype(PLAIN_DTYPES[weight.format])).contiguous()
            yield "", offset, piece
            offset += piece.numel() * piece.element_size()
        return
    planned = {part: (spec.shape, torch_dtype(spec.dtype)) for part, spec in weight.tensors("").items()}
    parts: dict[str, Tensor] = {}
    for rows, tensor in _read(source, name, weight):
        packed = tensor if isinstance(tensor, QuantizedTensor) else quant.get(weight.format).pack(tensor)
        if rows == WHOLE:
            parts = {f".{part}": value.contiguous() for part, value in packed.parts.items()}
            continue
        parts = parts or {part: torch.empty(shape, dtype=dtype) for part, (shape, dtype) in planned.items()}
        for part, value in packed.parts.items():
            parts[f".{part}"][rows] = value
    for part, (shape, dtype) in planned.items():
        whole = parts[part]
        assert (tuple(whole.shape), whole.dtype) == (tuple(shape), dtype), f"{name}{part} is not as it was planned"
        yield part, 0, whole


def _read(source: Source, name: str, weight: Weight) -> Iterator[tuple[slice, Tensor | QuantizedTensor]]:
    """A weight as its source has it, some rows at a time; a QuantizedTensor only in the weight's own format."""
    num_rows, num_cols = weight.shape if len(weight.shape) == 2 else (1, 1)
    step = max(1, _READ_WEIGHTS // num_cols)
    in_pieces = num_rows > step and source.tensors[name].dtype != "MXFP4"
    for rows in [slice(at, min(at + step, num_rows)) for at in range(0, num_rows, step)] if in_pieces else [WHOLE]:
        tensor = source.read(name, rows)
        if isinstance(tensor, QuantizedTensor):
            if tensor.format == weight.format:
                yield rows, tensor
                continue
            tensor = quant.get(tensor.format).unpack(tensor)
        _check_finite(source, name, tensor)
        yield rows, tensor


def _check_finite(source: Source, name: str, tensor: Tensor) -> None:
    import torch

    if not torch.stack(torch.aminmax(tensor)).isfinite().all():
        raise CheckpointError(f"{source.origin}: tensor {name!r} holds NaN or infinite values")
