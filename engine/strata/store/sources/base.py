"""What the converter needs of a foreign checkpoint, whatever its file format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from strata.config import ModelConfig
from strata.quant.base import QuantizedTensor, Tensor

WHOLE = slice(None)

# The weights of a Hugging Face checkpoint: all of them, or which file has which.
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

# Reads a stored tensor: of one that is stacked over experts the part of one, and of that some rows.
Read = Callable[[int | None, slice], Tensor | QuantizedTensor]


@dataclass(frozen=True, slots=True)
class SourceTensor:
    """A stored tensor. ``dtype`` is the source's own name of its type: "BF16", "F32", "Q4_1"."""

    shape: tuple[int, ...]
    dtype: str


class Source(Protocol):
    """A checkpoint whose tensors are read one at a time, by their Hugging Face names."""

    @property
    def origin(self) -> str:
        """The file or directory, as errors name it."""

    @property
    def config(self) -> Mapping[str, Any]:
        """The keys of a Hugging Face ``config.json``."""

    @property
    def model(self) -> ModelConfig:
        """What those keys mean."""

    @property
    def tensors(self) -> Mapping[str, SourceTensor]:
        """Every tensor that the checkpoint holds."""

    def read(self, name: str, rows: slice = WHOLE) -> Tensor | QuantizedTensor:
        """The tensor on the CPU as bfloat16, float16 or float32; one whose type is a bit format of Strata's (mxfp4) in
        that format, other quantised ones as float32.

        rows: of a plain tensor that is too large to be held as a whole, only these. What has been read must not stay in
        memory (nor mapped) once the caller drops it: a checkpoint may be larger than the machine's memory.
        """

    def write_tokenizer(self, directory: Path) -> None:
        """Write tokenizer.json, tokenizer_config.json and, where there is one, generation_config.json."""
