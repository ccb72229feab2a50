"""Kernels for the CPU that read experts' blobs at their addresses, as a card's do."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from strata.kernels.experts.blob import BlobLayout, MatrixPlace
from strata.kernels.layer import Expert, ExpertsFn, Kernels, Routed, Router, Scored
from strata.kernels.matrix import Activation, Matrix
from strata.kernels.misses import reference
from strata.kernels.misses.table import COMPUTE, DONE_OFFSET, ROUTE, Counter, Mailbox, MissSteps, MissTable
from strata.kernels.operations import REFERENCE
from strata.kernels.prefetch import reference as prefetch
from strata.native.layout import TileLayout
from strata.native.tiles import untile_expert
from strata.quant.base import Part
from strata.store.layout import Weight, part_bytes
from strata.store.shard import torch_dtype


class BlobKernels(Kernels):
    """Reads the table of addresses, and the blobs, anew at every call; an expert at address 0 adds nothing."""

    def __init__(self) -> None:
        super().__init__(REFERENCE, torch.float32)

    def reads_blobs(self, layout: BlobLayout) -> bool:
        return True

    def blob_experts(self, layout: BlobLayout, addresses: Tensor, activation: Activation) -> ExpertsFn:
        def run(routed: Routed, x: Tensor) -> Tensor:
            places = addresses.tolist()
            used = [expert for expert in routed.ids.unique().tolist() if places[expert]]
            if not used:
                return x
            blobs = [bytes_at(places[expert], layout.num_bytes) for expert in used]
            experts = [
                Expert((_matrix(blob, layout.gate), _matrix(blob, layout.up)), _matrix(blob, layout.down))
                for blob in blobs
            ]
            # Those that are used, by their new numbers; of the others none is taken.
            numbers = torch.zeros(len(places), dtype=torch.int64)
            numbers[used] = torch.arange(len(used))
            there = addresses[routed.ids] != 0
            mine = Routed(numbers[routed.ids], routed.shares * there, routed.inner)
            return self.experts(experts, activation)(mine, x)

        return run


def bytes_at(address: int, size: int) -> Tensor:
    return torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)


def _matrix(blob: Tensor, place: MatrixPlace) -> Matrix:
    parts = {
        name.removeprefix("weight."): _view(blob, place.offsets[name.removeprefix("weight.")], part)
        for name, part in Weight(place.kind, (place.rows, place.cols)).tensors("weight").items()
    }
    bias = None if place.bias is None else _view(blob, place.bias, Part(place.bias_dtype, (place.rows,)))
    return Matrix(place.kind, parts, bias)


def _view(blob: Tensor, at: int, part: Part) -> Tensor:
    return blob[at : at + part_bytes(part)].view(torch_dtype(part.dtype)).view(part.shape)


def as_router(choose: Callable[[Tensor], Routed]) -> Router:
    """That gives whatever ``choose`` says."""
    chosen: list[Routed] = []

    def score(x: Tensor) -> Scored:
        chosen.append(choose(x))
        return Scored(x, chosen[-1].inner)

    return Router(score, lambda scores: (chosen[-1].ids, chosen[-1].shares), normalize=True)


class CachedKernels(BlobKernels):
    """Leaves misses to the CPU's threads, and takes their answers, through the mailbox as a card does."""

    @property
    def misses(self) -> MissSteps:
        return MissSteps(
            lambda x: x,
            _ask_route,
            _take_choice,
            _share_out,
            _add_answer,
            _untile,
            prefetch.guess_routed,
            prefetch.guess_recent,
            prefetch.admit,
        )


def _ask_route(scores: Tensor, inner: Tensor | None, mailbox: Mailbox, layer: int) -> None:
    mailbox.sent[0] += 1
    slot = slot_of(mailbox)
    numbers_at(slot + mailbox.scores, ctypes.c_float, scores.numel()).copy_(scores.flatten())
    if inner is not None:
        numbers_at(slot + mailbox.x, ctypes.c_float, inner.numel()).copy_(inner.flatten())
    _send(mailbox, layer, len(scores), ROUTE if inner is None else ROUTE | COMPUTE)


def _take_choice(mailbox: Mailbox, tokens: int, top_k: int, counters: Tensor) -> tuple[Tensor, Tensor]:
    _await(mailbox, counters)
    slot, pairs = slot_of(mailbox), tokens * top_k
    ids = numbers_at(slot + mailbox.answer, ctypes.c_int32, pairs).view(tokens, top_k).long()
    return ids, numbers_at(slot + mailbox.answer + 4 * pairs, ctypes.c_float, pairs).view(tokens, top_k).clone()


def _share_out(
    ids: Tensor, shares: Tensor, inner: Tensor, table: MissTable, mailbox: Mailbox | None, layer: int, closes: bool
) -> None:
    cpu_ids = reference.share_out(ids.int(), table)
    if mailbox is None:
        return
    if not closes and bool((cpu_ids < 0).all()):
        mailbox.sent[1] += 1
        mailbox.sent[2] = 0
        return
    mailbox.sent[0] += 1
    slot = slot_of(mailbox)
    numbers_at(slot + mailbox.ids, ctypes.c_int32, cpu_ids.numel()).copy_(cpu_ids.flatten())
    numbers_at(slot + mailbox.shares, ctypes.c_float, shares.numel()).copy_(shares.flatten())
    numbers_at(slot + mailbox.x, ctypes.c_float, inner.numel()).copy_(inner.flatten())
    _send(mailbox, layer, len(ids), COMPUTE)


def slot_of(mailbox: Mailbox) -> int:
    """Address of the last request's slot."""
    return mailbox.ring + int(mailbox.sent[0]) % mailbox.depth * mailbox.stride


def _send(mailbox: Mailbox, layer: int, tokens: int, kind: int) -> None:
    head = numbers_at(slot_of(mailbox), ctypes.c_int32, 5)
    head[1:] = torch.tensor([layer, tokens, kind, int(mailbox.sent[1])])
    head[0] = mailbox.sent[0]
    mailbox.sent[1:] = torch.tensor([0, 1])


def _await(mailbox: Mailbox, counters: Tensor) -> None:
    done = numbers_at(slot_of(mailbox) + DONE_OFFSET, ctypes.c_int32, 1)
    began = time.monotonic()
    while int(done) != int(mailbox.sent[0]):
        assert time.monotonic() < began + 30, "the CPU's threads do not answer"
        os.sched_yield()  # to them
    counters[Counter.WAITED_NS] += int(1e9 * (time.monotonic() - began))


def _add_answer(x: Tensor, mailbox: Mailbox, counters: Tensor) -> Tensor:
    if not mailbox.sent[2]:
        return x
    _await(mailbox, counters)
    return x + numbers_at(slot_of(mailbox) + mailbox.answer, ctypes.c_float, x.numel()).view(x.shape)


def _untile(sources: Tensor, targets: Tensor, count: Tensor, layout: BlobLayout) -> None:
    place = layout.gate
    tiles = TileLayout(place.kind, place.cols, place.rows, place.bias is not None)
    offsets: dict[str, int] = {}
    for name, matrix in (("gate_proj", layout.gate), ("up_proj", layout.up), ("down_proj", layout.down)):
        offsets |= {
            f"{name}.weight" + ("" if part == "weight" else f".{part}"): offset
            for part, offset in matrix.offsets.items()
        }
        offsets[f"{name}.bias"] = matrix.bias or 0
    for source, target in list(zip(sources.tolist(), targets.tolist(), strict=True))[: int(count)]:
        parts = {part: target + offsets[part] for part in tiles.parts}
        untile_expert(tiles, source, parts, narrow_biases=place.bias_dtype == "BF16")


def numbers_at(address: int, kind: Any, count: int) -> Tensor:
    """A tensor over memory that somebody else has."""
    dtype = torch.int32 if kind is ctypes.c_int32 else torch.float32
    return torch.frombuffer((kind * count).from_address(address), dtype=dtype)
