"""Slots of states: one a sequence, the same in every layer."""

from __future__ import annotations

from dataclasses import replace

import torch

from strata.config import LinearAttentionConfig
from strata.memory.states import StatePool
from tests.plan.configs import hybrid

LINEAR = LinearAttentionConfig(
    num_key_heads=2, num_value_heads=4, key_head_dim=8, value_head_dim=16, conv_kernel_size=4
)
MODEL = replace(hybrid(), num_layers=4, linear_attention=LINEAR, linear_layers=(True, True, False, True))


def pool() -> StatePool:
    return StatePool(MODEL, 5, torch.bfloat16, torch.device("cpu"))


def test_each_layer_has_zeros_for_every_slot() -> None:
    made = pool()
    assert len(made.layers) == 3
    for layer in made.layers:
        assert (layer.conv.shape, layer.conv.dtype) == ((5, 4, 2 * 16 + 64), torch.bfloat16)
        assert (layer.recurrent.shape, layer.recurrent.dtype) == ((5, 4, 8, 16), torch.float32)
        assert not layer.conv.any()
        assert not layer.recurrent.any()
    assert made.num_bytes == 3 * 5 * (LINEAR.ring_bytes(0, 2) + LINEAR.recurrent_elements * 4)


def test_a_state_that_waits_for_drafts_has_a_longer_ring_and_gates() -> None:
    made = StatePool(MODEL, 5, torch.bfloat16, torch.device("cpu"), max_draft=7)
    for layer in made.layers:
        assert layer.gates is not None
        assert (layer.conv.shape, layer.gates.shape) == ((5, 18, 96), (5, 18, 8))
        assert layer.most_at_once(LINEAR.conv_kernel_size) == 8
    assert made.num_bytes == 3 * 5 * (LINEAR.ring_bytes(7, 2) + LINEAR.recurrent_elements * 4)
    assert all(layer.gates is None for layer in pool().layers)


def test_a_copy_is_of_one_slot_in_all_layers() -> None:
    made = pool()
    for number, layer in enumerate(made.layers, start=1):
        layer.conv[1], layer.recurrent[1] = number, 10 * number
    made.copy([(1, 4), (4, 2)])
    for number, layer in enumerate(made.layers, start=1):
        for tensor, value in ((layer.conv, number), (layer.recurrent, 10 * number)):
            assert [bool((tensor[slot] == value).all()) for slot in range(5)] == [False, True, True, False, True]
            assert not tensor[[0, 3]].any()
