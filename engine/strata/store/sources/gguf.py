"""A GGUF checkpoint under Hugging Face names.

GGUF files of the "llama" architecture store the rows of q and k in another order: each head's two RoPE halves are
interleaved. Here they are put back, so the models rotate halves as Hugging Face's do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from strata.errors import CheckpointError, UnsupportedModelError
from strata.quant.base import Tensor
from strata.store.files import write_json
from strata.store.sources.base import WHOLE, SourceTensor
from strata.store.sources.gguf_config import ARCHITECTURES, hf_config
from strata.store.sources.gguf_file import GGUFFile, TensorInfo

TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# RoPE's frequency factors: the config is made from them (gguf_config), the models compute them again.
_IN_CONFIG = {"rope_freqs.weight"}


class GGUFSource:
    """Implements ``strata.store.sources.base.Source``."""

    def __init__(self, path: Path, generation_config: Mapping[str, Any] = MappingProxyType({})) -> None:
        self._file = GGUFFile(path)
        self._generation_config = generation_config
        self.origin = str(path)
        metadata = self._file.metadata
        if any(key.startswith("split.") for key in metadata) and metadata.get("split.count", 1) > 1:
            raise UnsupportedModelError(f"{path} is one part of a split GGUF; merge the parts into one file first")
        architecture = metadata.get("general.architecture")
        if architecture not in ARCHITECTURES:
            raise UnsupportedModelError(
                f"{path}: GGUF architecture {architecture!r} is not supported; supported: {', '.join(ARCHITECTURES)}"
            )
        for name, info in self._file.tensors.items():
            if info.type not in TYPES:
                raise UnsupportedModelError(
                    f"{path}: tensor {name!r} has the type {info.type}; supported: {', '.join(TYPES)}"
                )
        self.config: Mapping[str, Any] = hf_config(self._file)
        self._stored = {hf_name(name): name for name in self._file.tensors if name not in _IN_CONFIG}
        self.tensors = {
            name: SourceTensor(self._file.tensors[stored].shape, self._file.tensors[stored].type)
            for name, stored in self._stored.items()
        }

    def read(self, name: str, rows: slice = WHOLE) -> Tensor:
        """See ``Source.read``."""
        info = self._file.tensors[self._stored[name]]
        heads = self._rope_heads(name)
        if heads is not None:  # these are small, and their rows are in another order
            return _halves(self._plain(info, WHOLE), heads)[rows]
        return self._plain(info, rows)

    def _plain(self, info: TensorInfo, rows: slice) -> Tensor:
        import torch

        raw = torch.frombuffer(self._file.read(info, rows), dtype=torch.uint8)
        plain = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}.get(info.type)
        tensor = _dequantised(raw, info.type) if plain is None else raw.view(plain)
        return tensor.view(-1, *info.shape[1:])

    def write_tokenizer(self, directory: Path) -> None:
        """See ``Source.write_tokenizer``."""
        from strata.store.sources.gguf_tokenizer import write

        write(self._file.metadata, directory, origin=self.origin)
        if self._generation_config:
            write_json(directory / "generation_config.json", self._generation_config)

    def _rope_heads(self, name: str) -> int | None:
        if ".self_attn.q_proj." in name:
            return int(self.config["num_attention_heads"])
        if ".self_attn.k_proj." in name:
            return int(self.config["num_key_value_heads"])
        return None


def hf_name(name: str) -> str:
    """The Hugging Face name of a GGUF tensor; one that has none keeps its own and is reported as unknown later."""
    layer = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if layer and layer[2] in _LAYER:
        return f"model.layers.{layer[1]}.{_LAYER[layer[2]]}.{layer[3]}"
    top = re.fullmatch(r"(\w+)\.(weight|bias)", name)
    if top and top[1] in _TOP:
        return f"{_TOP[top[1]]}.{top[2]}"
    return name


def _dequantised(raw: Tensor, kind: str) -> Tensor:
    import torch
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    return torch.from_numpy(dequantize(raw.numpy(), GGMLQuantizationType[kind]))


def _halves(tensor: Tensor, heads: int) -> Tensor:
    """Rows of each head from interleaved pairs (0, half, 1, half + 1, ...) to halves (0, 1, ..., half, ...)."""
    rows = tensor.shape[0]
    if rows % (2 * heads):
        raise CheckpointError(f"a q or k tensor of {rows} rows does not divide into {heads} heads")
    return tensor.view(heads, rows // heads // 2, 2, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)
