"""A GGUF checkpoint under canonical names.

GGUF files of the "llama" architecture store the rows of q and k in another order: each head's two RoPE halves are
interleaved. Here they are put back, so the models rotate halves as Hugging Face's do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from strata.config import read_hf_config
from strata.errors import CheckpointError, UnsupportedModelError
from strata.quant.base import GROUP, QuantizedTensor, Tensor
from strata.store.files import write_json
from strata.store.sources import names
from strata.store.sources.base import WHOLE, SourceTensor
from strata.store.sources.gguf_config import ARCHITECTURES, hf_config
from strata.store.sources.gguf_parts import GGUFParts
from strata.store.sources.schemes.mxfp4 import DTYPE as MXFP4
from strata.store.sources.schemes.mxfp4 import quantized

TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", MXFP4)

# RoPE's frequency factors: the config is made from them (gguf_config), the models compute them again.
_IN_CONFIG = {"rope_freqs.weight"}


class GGUFSource:
    """Implements ``strata.store.sources.base.Source``."""

    def __init__(self, path: Path, generation_config: Mapping[str, Any] = MappingProxyType({})) -> None:
        self._file = GGUFParts(path)
        self._generation_config = generation_config
        self.origin = str(path)
        architecture = self._file.metadata.get("general.architecture")
        if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
            raise UnsupportedModelError(
                f"{path}: GGUF architecture {architecture!r} is not supported; supported: {', '.join(ARCHITECTURES)}"
            )
        for name, info in self._file.tensors.items():
            if info.type not in TYPES:
                raise UnsupportedModelError(
                    f"{self._file.path_of(name)}: tensor {name!r} has the type {info.type}; "
                    f"supported: {', '.join(TYPES)}"
                )
        self.config: Mapping[str, Any] = hf_config(self._file)
        self.model = read_hf_config(self.config, origin=self.origin)
        shapes = {name: info.shape for name, info in self._file.tensors.items() if name not in _IN_CONFIG}
        self._places = names.gguf(shapes, origin=self.origin)
        self._interleaved = architecture == "llama"
        self.tensors = {
            name: SourceTensor(place.shape(shapes[place.name]), self._file.tensors[place.name].type)
            for name, place in self._places.items()
        }

    def read(self, name: str, rows: slice = WHOLE) -> Tensor | QuantizedTensor:
        """See ``Source.read``."""
        place = self._places[name]
        heads = self._rope_heads(name)
        if heads is not None:
            return self._read_halves(name, heads, rows)
        return place.read(lambda expert, part: self._decoded(place.name, expert, part), rows)

    def write_tokenizer(self, directory: Path) -> None:
        """See ``Source.write_tokenizer``."""
        from strata.store.sources.gguf_tokenizer import write

        write(self._file.metadata, directory, origin=self.origin)
        if self._generation_config:
            write_json(directory / "generation_config.json", self._generation_config)

    def _read_halves(self, name: str, heads: int, rows: slice) -> Tensor | QuantizedTensor:
        """Rows of q or k. Whole heads are read; a head's rows are stored as pairs (0, half, 1, half + 1, ...)."""
        import torch

        stored, num_rows = self._places[name].name, self.tensors[name].shape[0]
        if num_rows % (2 * heads):
            raise CheckpointError(
                f"{self._file.path_of(stored)}: tensor {stored!r} of {num_rows} rows does not divide into {heads} heads"
            )
        head_rows = num_rows // heads
        start, stop, _ = rows.indices(num_rows)
        first, last = start - start % head_rows, stop + -stop % head_rows
        read = self._decoded(stored, None, slice(first, last))
        order = torch.arange(last - first).view(-1, head_rows // 2, 2).transpose(1, 2).flatten()
        order = order[start - first : stop - first]
        if isinstance(read, QuantizedTensor):
            parts = {part: tensor[order] for part, tensor in read.parts.items()}
            return replace(read, shape=(len(order), read.shape[1]), parts=parts)
        return read[order]

    def _decoded(self, stored: str, expert: int | None, rows: slice) -> Tensor | QuantizedTensor:
        import torch

        is_vector = len(self._file.tensors[stored].shape) == (1 if expert is None else 2)
        # The blocks of a vector hold several of its numbers.
        data, info = self._file.read(stored, expert, WHOLE if is_vector else rows)
        raw = torch.frombuffer(data, dtype=torch.uint8)
        if info.type == MXFP4 and len(info.shape) == 2:
            return _mxfp4(
                raw.view(-1, info.shape[1] // GROUP, 1 + GROUP // 2), f"{self._file.path_of(stored)}: tensor {stored!r}"
            )
        plain = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}.get(info.type)
        tensor = _dequantised(raw, info.type) if plain is None else raw.view(plain)
        return tensor[rows] if is_vector else tensor.view(-1, *info.shape[1:])

    def _rope_heads(self, name: str) -> int | None:
        if self._interleaved and ".self_attn.q_proj." in name:
            return int(self.config["num_attention_heads"])
        if self._interleaved and ".self_attn.k_proj." in name:
            return int(self.config["num_key_value_heads"])
        return None


def _dequantised(raw: Tensor, kind: str) -> Tensor:
    import numpy as np
    import torch
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    with np.errstate(over="ignore", invalid="ignore"):  # whoever uses the numbers checks that they are finite
        return torch.from_numpy(dequantize(raw.numpy(), GGMLQuantizationType[kind]))


def _mxfp4(blocks: Tensor, what: str) -> QuantizedTensor:
    """uint8 [rows, groups, 17], an exponent and 16 bytes of two numbers each, the second of which is 16 further on."""
    import torch

    octets = blocks[..., 1:]
    return quantized(torch.cat([octets & 15, octets >> 4], -1).flatten(1), blocks[..., 0], what)
