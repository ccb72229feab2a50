"""Bytes of linear attention and of n-grams: what they keep of a sequence, and what a step takes for them."""

from __future__ import annotations

from strata.config import EngineConfig, LinearAttentionConfig, ModelConfig

TOKEN_BYTES = 8  # of a token's number
FLOAT_BYTES = 4  # recurrent states, and heads on the way through the delta rule
# States of one layer that a CPU's step has at a time of each sequence: what it read, with the sequences that begin
# cleared, decayed, what is added, the new ones.
STEP_COPIES = 5
CHUNK = 64  # tokens that kernels take at a time; a test holds it to theirs


def max_draft(model: ModelConfig, config: EngineConfig) -> int:
    """Tokens of one draft; 0 where there are none, as for models with n-grams or an index, where a wrong draft would
    leave something."""
    return 0 if model.ngrams is not None or model.indexer is not None else config.scheduler.max_draft


def state_bytes(model: ModelConfig, element_bytes: int, max_draft: int = 0) -> int:
    """What the layers with linear attention keep of one sequence, however long it is; 0 where there are none. Those
    with n-grams keep the last tokens, too, and what their convolution was given. ``max_draft``:
    tokens of a draft."""
    linear = model.linear_attention
    if linear is None:
        return 0
    of_layer = linear.ring_bytes(max_draft, element_bytes) + linear.recurrent_elements * FLOAT_BYTES
    return sum(model.linear_layers) * of_layer + _ngram_bytes(model, element_bytes)


def step_token_bytes(model: ModelConfig, element_bytes: int, device: str) -> int:
    """What a token takes in a layer between its two projections. On a card the projected row, what the convolution
    makes of it, its part of a chunk, and what is read. On a CPU the projected row, the convolution's inputs and
    results; in float32 these once more, queries, keys and values of each value head as they are and in chunks, a system
    of equations in each chunk and its solution, and what is read.

    A layer of Qwen3-Next (32 heads of 128) took 355 kB of a CPU's memory for each of 512 tokens in bf16; this is 418 (a
    Zen 4 core, torch 2.10, 2026-12-01)."""
    linear = model.linear_attention
    if linear is None:
        return 0
    keys = linear.num_value_heads * linear.key_head_dim
    values = linear.num_value_heads * linear.value_head_dim
    if device == "cuda":
        return (2 * linear.channels + 2 * values) * element_bytes + _chunk_token_bytes(linear, element_bytes)
    within = linear.num_value_heads * CHUNK
    in_float = linear.channels + 8 * keys + 6 * values + 10 * within
    return (4 * linear.channels + values) * element_bytes + in_float * FLOAT_BYTES


def step_seqs_bytes(model: ModelConfig, num_seqs: int, element_bytes: int, device: str) -> int:
    """What a step of so many sequences takes beside that. A card changes states where they lie, but each sequence may
    leave a chunk unfilled; a CPU copies a layer's states."""
    linear = model.linear_attention
    if linear is None:
        return 0
    if device == "cuda":
        return num_seqs * CHUNK * _chunk_token_bytes(linear, element_bytes)
    return STEP_COPIES * num_seqs * linear.recurrent_elements * FLOAT_BYTES


def _chunk_token_bytes(linear: LinearAttentionConfig, element_bytes: int) -> int:
    """A token's rows of U, W, P and G (``kernels.delta_rule.prefill``)."""
    of_head = (linear.value_head_dim + linear.key_head_dim + CHUNK) * element_bytes + FLOAT_BYTES
    return linear.num_value_heads * of_head


def _ngram_bytes(model: ModelConfig, element_bytes: int) -> int:
    ngrams = model.ngrams
    if ngrams is None:
        return 0
    inputs = (model.ngram_conv_reach + 1) * model.stream_width * element_bytes
    return len(ngrams.layers) * (ngrams.ngram_size * TOKEN_BYTES + inputs)
