"""Kernels for the CPU that read experts' blobs at their addresses, as a card's do."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from strata.kernels.experts.blob import BlobLayout, MatrixPlace
from strata.kernels.layer import Expert, ExpertsFn, Kernels
from strata.kernels.matrix import Activation, Matrix
from strata.kernels.operations import REFERENCE
from strata.quant.base import Part
from strata.store.layout import Weight, part_bytes
from strata.store.shard import torch_dtype


class BlobKernels(Kernels):
    """Reads the table of addresses, and the blobs, anew at every call."""

    def __init__(self) -> None:
        super().__init__(REFERENCE, torch.float32)

    def reads_blobs(self, layout: BlobLayout) -> bool:
        return True

    def blob_experts(self, layout: BlobLayout, addresses: Tensor, activation: Activation) -> ExpertsFn:
        def run(routed, x):  # type: ignore[no-untyped-def]
            blobs = [bytes_at(address, layout.num_bytes) for address in addresses.tolist()]
            experts = [
                Expert((_matrix(blob, layout.gate), _matrix(blob, layout.up)), _matrix(blob, layout.down))
                for blob in blobs
            ]
            return self.experts(experts, activation)(routed, x)

        return run


def bytes_at(address: int, size: int) -> Tensor:
    return torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)


def _matrix(blob: Tensor, place: MatrixPlace) -> Matrix:
    parts = {
        name.removeprefix("weight."): _view(blob, place.offsets[name.removeprefix("weight.")], part)
        for name, part in Weight(place.kind, (place.rows, place.cols)).tensors("weight").items()
    }
    bias = None if place.bias is None else _view(blob, place.bias, Part(place.bias_dtype, (place.rows,)))
    return Matrix(place.kind, parts, bias)


def _view(blob: Tensor, at: int, part: Part) -> Tensor:
    return blob[at : at + part_bytes(part)].view(torch_dtype(part.dtype)).view(part.shape)
