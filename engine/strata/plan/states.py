"""Bytes of linear attention: what it keeps of a sequence, and what a step takes for it."""

from __future__ import annotations

from strata.config import ModelConfig

FLOAT_BYTES = 4  # recurrent states, and heads on the way through the delta rule
# States of one layer that a CPU's step has at a time of each sequence: what it read, with the sequences that begin
# cleared, decayed, what is added, the new ones.
STEP_COPIES = 5


def state_bytes(model: ModelConfig, element_bytes: int) -> int:
    """What the layers with linear attention keep of one sequence, however long it is; 0 where there are none."""
    linear = model.linear_attention
    if linear is None:
        return 0
    of_layer = linear.conv_elements * element_bytes + linear.recurrent_elements * FLOAT_BYTES
    return sum(model.linear_layers) * of_layer


def step_token_bytes(model: ModelConfig, element_bytes: int) -> int:
    """What a token takes in a layer between its two projections: the projected row, the convolution's inputs and
    results; in float32 these once more, queries and keys for each value head, what is read, and its norm and gate."""
    linear = model.linear_attention
    if linear is None:
        return 0
    keys = linear.num_value_heads * linear.key_head_dim
    values = linear.num_value_heads * linear.value_head_dim
    in_float = linear.channels + 2 * values + max(2 * keys, 3 * values)
    return (4 * linear.channels + values) * element_bytes + in_float * FLOAT_BYTES


def step_states_bytes(model: ModelConfig, num_seqs: int, device: str) -> int:
    """Copies of a layer's states that a step of so many sequences makes. A card changes them where they lie."""
    linear = model.linear_attention
    if linear is None or device == "cuda":
        return 0
    return STEP_COPIES * num_seqs * linear.recurrent_elements * FLOAT_BYTES
