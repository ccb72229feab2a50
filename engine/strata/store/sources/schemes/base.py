"""What the schemes share: how they hand out a weight, check their settings, and turn integer codes to numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from strata.errors import CheckpointError, UnsupportedModelError
from strata.quant.base import Tensor
from strata.store.sources.base import Read
from strata.store.sources.safetensors_files import SafetensorsFiles

PLAIN_TYPES = ("BF16", "F16", "F32")


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A weight as a checkpoint has it, in one tensor or several.

    ``shape`` is that of the decoded weight, ``dtype`` the source's name of its type, ``parts`` the tensors that hold
    it. ``read`` decodes it: of a weight that is stacked over experts the part of one, and of that some rows.
    """

    shape: tuple[int, ...]
    dtype: str
    parts: tuple[str, ...]
    read: Read


@dataclass(frozen=True, slots=True)
class Settings:
    """A ``quantization_config``, each setting checked where it is read; ``origin`` is the file that holds it."""

    table: Mapping[str, Any]
    origin: str

    def only(self, key: str, allowed: tuple[Any, ...], default: Any) -> Any:
        """The value of ``key``; raises UnsupportedModelError with those that are supported for any other."""
        value = default if self.table.get(key) is None else self.table[key]
        if not any(type(value) is type(item) and value == item for item in allowed):
            supported = ", ".join(repr(item) for item in allowed)
            raise UnsupportedModelError(
                f"{self.origin}: quantization_config has {key!r} = {value!r}; supported: {supported}"
            )
        return value

    def refuse(self, *keys: str) -> None:
        """Raise UnsupportedModelError naming a key that is set (to anything but null, false and empty)."""
        for key in keys:
            if self.table.get(key):
                raise UnsupportedModelError(
                    f"{self.origin}: quantization_config has {key!r} = {self.table[key]!r}; only checkpoints without "
                    "it are supported"
                )


def modules(files: SafetensorsFiles, suffix: str) -> Iterator[str]:
    """The modules that have a tensor of that suffix."""
    return (name.removesuffix(suffix) for name in files.tensors if name.endswith(suffix))


def unpack(words: Tensor, bits: int) -> Tensor:
    """int32 [rows, words] -> uint8 [rows, words * 32/bits]: codes of 4 or 8 bits, from the lowest bits of a word up."""
    import torch

    octets = words.contiguous().view(torch.uint8)  # the lowest first: every CPU that Strata runs on is little-endian
    return octets if bits == 8 else torch.stack([octets & 15, octets >> 4], -1).flatten(1)


def dequantized(codes: Tensor, zeros: Tensor | int, scales: Tensor, groups: Tensor | None = None) -> Tensor:
    """(code - zero) * scale as float32 [rows, cols].

    codes: integers [rows, cols]. zeros, scales: [rows, groups], or [1, groups] for all rows. groups: the group of each
    column, int64 [cols]; without it, groups are equal runs of columns.
    """
    scales = scales.float()
    zeros = zeros if isinstance(zeros, int) else zeros.float()
    if groups is not None:
        zeros = zeros if isinstance(zeros, int) else zeros[:, groups]
        return (codes.float() - zeros).mul_(scales[:, groups])
    runs = codes.float().view(codes.shape[0], scales.shape[1], -1)
    zeros = zeros if isinstance(zeros, int) else zeros[..., None]
    return (runs - zeros).mul_(scales[..., None]).view(codes.shape)


def check_even(files: SafetensorsFiles, name: str, cols: int, groups: int) -> None:
    """Raise CheckpointError unless ``cols`` columns are as many equal runs as tensor ``name`` has groups."""
    if cols % groups:
        raise CheckpointError(
            f"{files.path_of(name)}: tensor {name!r} has {groups} groups, into which {cols} inputs do not divide"
        )


def read_groups(files: SafetensorsFiles, name: str, count: int) -> Tensor:
    """The group of each column from the tensor ``name``; raises CheckpointError where one is not below ``count``."""
    groups = files.read(name).long()
    if int(groups.min()) < 0 or int(groups.max()) >= count:
        raise CheckpointError(
            f"{files.path_of(name)}: tensor {name!r} is damaged: it holds groups from {int(groups.min())} to "
            f"{int(groups.max())}, but there are {count}; fetch it again"
        )
    return groups
