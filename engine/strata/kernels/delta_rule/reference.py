"""The gated delta rule in plain torch, token by token."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional

from strata.kernels.attention.batch import StepBatch
from strata.kernels.delta_rule.net import DeltaNet
from strata.kernels.delta_rule.state import DeltaState

# (query, key, value, log_decay, beta, state) -> (out, state), as ``delta_rule``
DeltaRule = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def delta_rule(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """query and key float32 [seqs, tokens, value_heads, key_dim], value float32 [seqs, tokens, value_heads, value_dim],
    log_decay and beta float32 [seqs, tokens, value_heads], state float32 [seqs, value_heads, key_dim, value_dim]
    -> what the tokens read, as ``value``, and the state behind the last."""
    out = torch.empty_like(value)
    for token in range(value.shape[1]):
        state = state * log_decay[:, token, :, None, None].exp()
        known = torch.einsum("shkv,shk->shv", state, key[:, token])
        new = beta[:, token, :, None] * (value[:, token] - known)
        state = state + key[:, token, :, :, None] * new[:, :, None, :]
        out[:, token] = torch.einsum("shkv,shk->shv", state, query[:, token])
    return out, state


def convolve_(inputs: Tensor, weight: Tensor, ring: Tensor, slots: Tensor, begins: Tensor) -> Tensor:
    """silu of the causal convolution of each channel. inputs [seqs, tokens, channels] from the positions ``begins``
    int64 [seqs] on, weight [channels, kernel], ring [slots, rows, channels] as ``DeltaState.conv``, which takes the
    inputs -> as ``inputs``."""
    tokens, num_before = inputs.shape[1], weight.shape[1] - 1
    before = begins[:, None] + torch.arange(-num_before, 0, device=begins.device)
    known = ring[slots[:, None], before % ring.shape[1]].masked_fill((before < 0)[..., None], 0)
    seen = torch.cat([known, inputs], 1).transpose(1, 2)
    kept = begins[:, None] + torch.arange(max(0, tokens - ring.shape[1]), tokens, device=begins.device)
    ring[slots[:, None], kept % ring.shape[1]] = inputs[:, -ring.shape[1] :]
    return functional.silu(functional.conv1d(seen, weight[:, None], groups=weight.shape[0])).transpose(1, 2)


def gated_norm(net: DeltaNet, heads: Tensor, gate: Tensor) -> Tensor:
    """heads float32 and gate [tokens, value_heads, value_dim] -> weight * heads / sqrt(mean(heads^2) + eps) *
    activation(gate), in float32."""
    scale = torch.rsqrt(heads.square().mean(-1, keepdim=True) + net.norm.eps)
    opened = gate.float()
    opened = torch.sigmoid(opened) if net.sigmoid_gate else functional.silu(opened)
    return heads * scale * net.norm.weight.float() * opened


def step(
    net: DeltaNet, rule: DeltaRule, projected: Tensor, gates: Tensor, state: DeltaState, batch: StepBatch
) -> Tensor:
    """As ``Kernels.delta_net``, with ``rule`` for the recurrence."""
    assert batch.states is not None, "a step of linear attention says where its sequences' states are"
    channels, value_heads, weight = net.channels, net.num_value_heads, net.conv.to(projected.dtype)
    softened = functional.softplus(gates[:, value_heads:].float() + net.dt_bias.float())
    log_decay, beta = -net.decay.float().exp() * softened, gates[:, :value_heads].float().sigmoid()
    heads = torch.empty(len(projected), value_heads, net.value_dim, device=projected.device)
    for first, seqs, tokens, rows in _parts(batch.starts.tolist()):
        slots = batch.states[first : first + seqs].long()
        begins = batch.positions[rows][::tokens]
        inputs = projected[rows, :channels].unflatten(0, (seqs, tokens))
        mixed = convolve_(inputs, weight, state.conv, slots, begins)
        query, key, value = mixed.float().split([net.key_width, net.key_width, net.value_width], -1)
        out, state.recurrent[slots] = rule(
            _unit_heads(net, query) * net.key_dim**-0.5,
            _unit_heads(net, key),
            value.unflatten(-1, (value_heads, net.value_dim)),
            log_decay[rows].unflatten(0, (seqs, tokens)),
            beta[rows].unflatten(0, (seqs, tokens)),
            state.recurrent[slots].masked_fill((begins == 0)[:, None, None, None], 0),
        )
        heads[rows] = out.flatten(0, 1)
    gate = projected[:, channels:].view_as(heads)
    return gated_norm(net, heads, gate).to(projected.dtype).flatten(1)


def _parts(starts: list[int]) -> Iterator[tuple[int, int, int, slice]]:
    """(first sequence, sequences, tokens of each, rows): neighbours with one token each together, every chunk alone; a
    sequence without tokens is left out."""
    first = 0
    while first < len(starts) - 1:
        last = first + 1
        tokens = starts[last] - starts[first]
        while tokens == 1 and last < len(starts) - 1 and starts[last + 1] - starts[last] == 1:
            last += 1
        if tokens:
            yield first, last - first, tokens, slice(starts[first], starts[last])
        first = last


def _unit_heads(net: DeltaNet, keys: Tensor) -> Tensor:
    """[..., key_width] -> [..., value_heads, key_dim] of length 1, each head for all value heads that share it."""
    heads = keys.unflatten(-1, (net.num_key_heads, net.key_dim))
    heads = heads * torch.rsqrt(heads.square().sum(-1, keepdim=True) + 1e-6)
    return heads.repeat_interleave(net.num_value_heads // net.num_key_heads, -2)
