"""SmolLM2 in ``transformers``, from the GGUF's own numbers, read by the gguf package without any of Strata's code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.quants import dequantize

NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def smollm2(path: Path) -> Any:
    """The model in float32, with dequantised weights."""
    from transformers import LlamaConfig, LlamaForCausalLM  # these take seconds
    from transformers.initialization import no_init_weights

    reader = gguf.GGUFReader(str(path))

    def field(key: str) -> Any:
        return reader.fields[f"llama.{key}"].contents()

    heads, kv_heads = field("attention.head_count"), field("attention.head_count_kv")
    config = LlamaConfig(
        vocab_size=field("vocab_size"),
        hidden_size=field("embedding_length"),
        intermediate_size=field("feed_forward_length"),
        num_hidden_layers=field("block_count"),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=field("context_length"),
        rms_norm_eps=field("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": field("rope.freq_base")},
        tie_word_embeddings=True,
    )
    tensors = {}
    for tensor in reader.tensors:
        weight = dequantize(tensor.data, tensor.tensor_type).reshape(tuple(int(n) for n in reversed(tensor.shape)))
        kind = tensor.name.split(".")[-2]
        if kind in ("attn_q", "attn_k"):
            # GGUF keeps the two halves of a head interleaved.
            count = heads if kind == "attn_q" else kv_heads
            weight = weight.reshape(count, -1, 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)
        tensors[_name(tensor.name)] = torch.from_numpy(np.array(weight))
    with no_init_weights():  # of 135 million numbers that are replaced at once
        model = LlamaForCausalLM(config).eval()
    model.load_state_dict({**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"]}, strict=True)
    return model


def _name(name: str) -> str:
    if not name.startswith("blk."):
        return {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}[name]
    _, layer, kind, _ = name.split(".")
    return f"model.layers.{layer}.{NAMES[kind]}.weight"
