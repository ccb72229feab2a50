"""Many small lists of integers to the device in one copy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from strata.kernels.attention.batch import Drafted
from strata.scheduler.batch import Batch


class Packer:
    """Lists of integers that become views of one tensor; through pinned memory to a card, so that the host goes on."""

    def __init__(self) -> None:
        self._lists: list[tuple[torch.dtype, Sequence[int] | npt.NDArray[np.int64]]] = []

    def add(self, values: Sequence[int] | npt.NDArray[np.int64], dtype: torch.dtype = torch.int64) -> int:
        """Take a list of int64 or int32; returns its place in what ``to`` gives."""
        self._lists.append((dtype, values))
        return len(self._lists) - 1

    def to(self, device: torch.device) -> tuple[Tensor, ...]:
        """The lists on ``device``, in the order in which they came."""
        order = sorted(range(len(self._lists)), key=lambda i: -self._lists[i][0].itemsize)  # so that all are aligned
        sizes = [self._lists[i][0].itemsize * len(self._lists[i][1]) for i in order]
        packed = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=device.type == "cuda")
        for i, part in zip(order, packed.split(sizes), strict=True):
            dtype, values = self._lists[i]
            part.view(dtype).copy_(torch.as_tensor(values, dtype=dtype))
        moved = dict(zip(order, packed.to(device, non_blocking=True).split(sizes), strict=True))
        return tuple(moved[i].view(dtype) for i, (dtype, _) in enumerate(self._lists))


class PackedStates:
    """Where the states of linear attention are: first their integers for the packer, then the tensors that a
    ``StepBatch`` has of them."""

    def __init__(self, batch: Batch, packer: Packer, *, drafts: bool) -> None:
        """``drafts``: whether steps may have some."""
        sequences = batch.sequences
        slots = [sequence.state_slot for sequence in sequences if sequence.state_slot is not None]
        assert len(slots) in (0, len(sequences)), "some of the sequences have a state and some not"
        self._places: list[int] = []
        if slots:
            self._places.append(packer.add(slots, torch.int32))
        if slots and drafts:
            self._places.append(packer.add([sequence.num_replayed for sequence in sequences], torch.int32))
            self._places.append(packer.add([sequence.num_drafts for sequence in sequences], torch.int32))

    def build(self, tensors: Sequence[Tensor]) -> tuple[Tensor | None, Drafted | None]:
        """``tensors``: what the packer gave."""
        found = [tensors[place] for place in self._places]
        return found[0] if found else None, Drafted(*found[1:]) if found[1:] else None
