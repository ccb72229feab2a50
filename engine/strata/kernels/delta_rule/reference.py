"""The gated delta rule in plain torch, token by token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from strata.kernels.attention.batch import StepBatch
from strata.kernels.delta_rule.net import DeltaNet
from strata.kernels.delta_rule.state import DeltaState

# (query, key, value, log_decay, beta, state) -> (out, state), as ``delta_rule``
DeltaRule = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
_Numbers: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]  # the first five


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
    num_before = weight.shape[1] - 1
    before = begins[:, None] + torch.arange(-num_before, 0, device=begins.device)
    known = ring[slots[:, None], before % ring.shape[1]].masked_fill((before < 0)[..., None], 0)
    seen = torch.cat([known, inputs], 1).transpose(1, 2)
    remember_(ring, slots, begins, inputs)
    return functional.silu(functional.conv1d(seen, weight[:, None], groups=weight.shape[0])).transpose(1, 2)


def remember_(ring: Tensor, slots: Tensor, begins: Tensor, inputs: Tensor) -> None:
    """Leave the last of ``inputs`` [seqs, tokens, ...], from the positions ``begins`` on, in ``ring``."""
    tokens, rows = inputs.shape[1], ring.shape[1]
    kept = begins[:, None] + torch.arange(max(0, tokens - rows), tokens, device=begins.device)
    ring[slots[:, None], kept % rows] = inputs[:, -rows:]


def recall(ring: Tensor, slots: Tensor, begins: Tensor, tokens: int) -> Tensor:
    """What ``remember_`` left of so many tokens from the positions ``begins`` on: [seqs, tokens, ...]."""
    positions = begins[:, None] + torch.arange(tokens, device=begins.device)
    return ring[slots[:, None], positions % ring.shape[1]]


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
    heads = torch.empty(len(projected), value_heads, net.value_dim, device=projected.device)
    for part in _parts(batch):
        slots = batch.states[part.first : part.first + part.seqs].long()
        begins = batch.positions[part.rows][:: part.tokens] - part.replayed
        inputs = projected[part.rows, :channels].unflatten(0, (part.seqs, part.tokens))
        opening = gates[part.rows].float().unflatten(0, (part.seqs, part.tokens))
        if state.gates is not None:
            inputs = torch.cat([recall(state.conv, slots, begins, part.replayed), inputs], 1)
            opening = torch.cat([recall(state.gates, slots, begins, part.replayed), opening], 1)
            remember_(state.gates, slots, begins, opening)
        mixed = convolve_(inputs, weight, state.conv, slots, begins)
        query, key, value = mixed.float().split([net.key_width, net.key_width, net.value_width], -1)
        softened = functional.softplus(opening[..., value_heads:] + net.dt_bias.float())
        numbers = (
            _unit_heads(net, query) * net.key_dim**-0.5,
            _unit_heads(net, key),
            value.unflatten(-1, (value_heads, net.value_dim)),
            -net.decay.float().exp() * softened,
            opening[..., :value_heads].sigmoid(),
        )
        sure = part.replayed + part.tokens - part.drafts
        before = state.recurrent[slots].masked_fill((begins == 0)[:, None, None, None], 0)
        out, after = rule(*_cut(numbers, slice(sure)), before)
        state.recurrent[slots] = after
        if part.drafts:
            out = torch.cat([out, rule(*_cut(numbers, slice(sure, None)), after)[0]], 1)
        heads[part.rows] = out[:, part.replayed :].flatten(0, 1)
    gate = projected[:, channels:].view_as(heads)
    return gated_norm(net, heads, gate).to(projected.dtype).flatten(1)


@dataclass(frozen=True, slots=True)
class _Part:
    """Neighbouring sequences from number ``first`` on, with as many tokens each in the step, and before it as in
    ``Drafted``."""

    first: int
    seqs: int
    tokens: int
    rows: slice
    replayed: int
    drafts: int


def _parts(batch: StepBatch) -> Iterator[_Part]:
    """Neighbours with one token each together, all others alone; a sequence without tokens is left out."""
    starts = batch.starts.tolist()
    replayed = drafts = [0] * (len(starts) - 1)
    if batch.drafted is not None:
        replayed, drafts = batch.drafted.replayed.tolist(), batch.drafted.drafts.tolist()

    def is_single(seq: int) -> bool:
        return seq < len(starts) - 1 and starts[seq + 1] - starts[seq] == 1 and not replayed[seq]

    first = 0
    while first < len(starts) - 1:
        last = first + 1
        while is_single(first) and is_single(last):
            last += 1
        tokens = starts[first + 1] - starts[first]
        if tokens:
            yield _Part(first, last - first, tokens, slice(starts[first], starts[last]), replayed[first], drafts[first])
        first = last


def _cut(numbers: _Numbers, tokens: slice) -> _Numbers:
    query, key, value, log_decay, beta = numbers
    return query[:, tokens], key[:, tokens], value[:, tokens], log_decay[:, tokens], beta[:, tokens]


def _unit_heads(net: DeltaNet, keys: Tensor) -> Tensor:
    """[..., key_width] -> [..., value_heads, key_dim] of length 1, each head for all value heads that share it."""
    heads = keys.unflatten(-1, (net.num_key_heads, net.key_dim))
    heads = heads * torch.rsqrt(heads.square().sum(-1, keepdim=True) + 1e-6)
    return heads.repeat_interleave(net.num_value_heads // net.num_key_heads, -2)
