"""Miss tables for tests, and calls that return all that a kernel wrote."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TypeVar
from unittest import mock

import torch
from torch import Tensor

from strata import quant
from strata.kernels.experts.blob import BlobLayout, MatrixPlace
from strata.kernels.misses import triton as triton_misses
from strata.kernels.misses.routing import ask_route, take_choice
from strata.kernels.misses.table import Counter, Mailbox, MissTable
from strata.kernels.misses.triton import add_answer, share_out
from strata.kernels.misses.untile import untile
from strata.kernels.prefetch.ahead import Ahead
from strata.kernels.rows import QuantizedRows, quantize_rows
from strata.native.mailbox import DONE, MailboxLayout
from tests.kernels.compilation import Case

T = TypeVar("T", MissTable, Ahead)


def make_table(num_experts: int, num_slots: int, split: list[int], device: str = "cpu") -> MissTable:
    """Experts 0, 1 ... are in slots 0, 1 ...; all are alike hot."""
    slots = 4096 * torch.arange(1, num_slots + 1)
    owned = min(num_slots, num_experts)
    addresses = torch.zeros(num_experts, dtype=torch.int64)
    addresses[:owned] = slots[:owned]
    owners = torch.full((num_slots,), -1, dtype=torch.int32)
    owners[:owned] = torch.arange(owned)
    table = MissTable(
        addresses=addresses,
        sources=(1 << 40) + 64 * torch.arange(num_experts),
        heat=torch.zeros(num_experts),
        slots=slots,
        owners=owners,
        split=torch.tensor(split, dtype=torch.int32),
        counters=torch.zeros(len(Counter), dtype=torch.int64),
        recent=torch.zeros(num_experts, dtype=torch.int32),
        copy_sources=torch.zeros(num_slots, dtype=torch.int64),
        copy_targets=torch.zeros(num_slots, dtype=torch.int64),
        count=torch.zeros(1, dtype=torch.int32),
        scratch=torch.zeros(2 * num_experts, dtype=torch.int32),
    )
    return to(table, device)


def to(table: T, device: str) -> T:
    """A copy on ``device``."""
    return replace(table, **{field.name: getattr(table, field.name).to(device, copy=True) for field in fields(table)})


@dataclass(frozen=True, slots=True)
class Ring:
    """Slots of 0x77 bytes, and what ``Mailbox.sent`` has."""

    memory: Tensor
    sent: Tensor
    late: Tensor
    layout: MailboxLayout

    @classmethod
    def make(
        cls,
        tokens: int,
        top_k: int,
        hidden: int,
        device: torch.device,
        number: int = 0,
        depth: int = 1,
        *,
        experts: int = 0,
        pinned: bool = False,
        skipped: int = 0,
        waits: bool = True,
    ) -> Ring:
        """``number``: of the last request; ``skipped``: layers that asked nothing since. ``waits``: whether the last
        layer does. ``pinned``: in host memory that the device reads."""
        layout = MailboxLayout(tokens, top_k, hidden, "float32", experts, depth)
        where = torch.device("cpu") if pinned else device
        memory = torch.full((layout.num_bytes,), 0x77, dtype=torch.uint8, device=where, pin_memory=pinned)
        sent = torch.tensor([number, skipped, waits], dtype=torch.int32, device=device)
        return cls(memory, sent, torch.zeros(1, dtype=torch.int32, device=device), layout)

    @property
    def mailbox(self) -> Mailbox:
        places = self.layout
        return Mailbox(
            sent=self.sent,
            ring=self.memory.data_ptr(),
            depth=places.depth,
            stride=places.stride,
            late=self.late.data_ptr(),
            ids=places.ids_offset,
            shares=places.weights_offset,
            scores=places.scores_offset,
            x=places.x_offset,
            answer=places.y_offset,
        )

    def array(self, slot: int, offset: int, count: int, dtype: torch.dtype = torch.float32) -> Tensor:
        at = slot * self.layout.stride + offset
        return self.memory[at : at + 4 * count].view(dtype)


def call_share_out(
    ids: Tensor,
    shares: Tensor,
    inner: QuantizedRows | Tensor,
    table: MissTable,
    layer: int,
    number: int = 0,
    depth: int = 1,
    skipped: int = 0,
    closes: bool = True,
) -> tuple[MissTable, Ring]:
    """The table and the ring afterwards. ``number``: of the request before, since which ``skipped`` layers asked
    nothing."""
    rows = inner.codes if isinstance(inner, QuantizedRows) else inner
    ring = Ring.make(len(ids), ids.shape[1], rows.shape[1], ids.device, number, depth, skipped=skipped)
    share_out(ids, shares, inner, table, ring.mailbox, layer, closes)
    return table, ring


def call_share_out_alone(ids: Tensor, shares: Tensor, table: MissTable) -> MissTable:
    """The table afterwards; nobody is asked."""
    share_out(ids, shares, torch.empty(len(ids), 64, device=ids.device), table, None, 0, False)
    return table


def call_ask_route(
    scores: Tensor, inner: QuantizedRows | Tensor | None, hidden: int, layer: int, number: int, depth: int
) -> Ring:
    """The ring afterwards. ``number``: of the request before."""
    ring = Ring.make(len(scores), 1, hidden, scores.device, number, depth, experts=scores.shape[1])
    ask_route(scores, inner, ring.mailbox, layer)
    return ring


def call_take_choice(ids: Tensor, shares: Tensor, number: int, depth: int) -> tuple[Tensor, Tensor, Tensor]:
    """What was taken of an answer like this, beside which every other slot has another one; and whether it was late."""
    tokens, top_k = ids.shape
    ring = Ring.make(tokens, top_k, 64, ids.device, number, depth)
    for slot in range(depth):
        mine = number % (1 << 32) % depth == slot
        ring.array(slot, DONE, 1, torch.int32).fill_(number if mine else number - 1)
        answer = ring.layout.y_offset
        for offset, values in ((answer, ids), (answer + 4 * ids.numel(), shares)):
            ring.array(slot, offset, ids.numel(), values.dtype).copy_(values.flatten() if mine else -values.flatten())
    counters = torch.zeros(len(Counter), dtype=torch.int64, device=ids.device)
    return (*take_choice(ring.mailbox, tokens, top_k, counters), ring.late)


def call_add_answer(
    x: Tensor, answer: Tensor, number: int = 1, depth: int = 1, delay: float = 0.0
) -> tuple[Tensor, Tensor, list[int], int]:
    """x afterwards, whether the answer was late, the counters, and nanoseconds until all was done. Every slot has
    another request's answer. ``delay``: seconds that the right one takes."""
    ring = Ring.make(len(x), 1, x.shape[1], x.device, number, depth, pinned=x.is_cuda)
    for slot in range(depth):
        mine = number % (1 << 32) % depth == slot
        ring.array(slot, DONE, 1, torch.int32).fill_(number - 1)
        ring.array(slot, ring.layout.y_offset, x.numel()).copy_(answer.flatten() if mine else -answer.flatten())
    counters = torch.zeros(len(Counter), dtype=torch.int64, device=x.device)
    done = ring.array(number % (1 << 32) % depth, DONE, 1, torch.int32)
    timer = threading.Timer(delay, done.fill_, [number])
    began = time.perf_counter_ns()
    timer.start()
    if delay == 0:
        timer.join()
    add_answer(x, ring.mailbox, counters)
    counted = counters.tolist()  # waits for the device
    timer.join()
    return x, ring.late, counted, time.perf_counter_ns() - began


def call_add_answer_where_nothing_was_asked(x: Tensor, counters: Tensor) -> tuple[Tensor, Tensor]:
    """x afterwards, and whether an answer was late."""
    ring = Ring.make(len(x), 1, x.shape[1], x.device, 7, 2, waits=False)
    add_answer(x, ring.mailbox, counters)
    return x, ring.late


def call_add_answer_that_never_comes(x: Tensor, counters: Tensor) -> tuple[Tensor, Tensor]:
    """x afterwards, and whether the answer was late, after a few looks."""
    ring = Ring.make(len(x), 1, x.shape[1], x.device, 7, 2)
    with mock.patch.object(triton_misses, "MAX_LOOKS", 3):
        add_answer(x, ring.mailbox, counters)
    return x, ring.late


def call_untile(tiles: list[Tensor], layout: BlobLayout, count: int) -> Tensor:
    """uint8 [experts, blob_bytes]: the blobs of the first ``count`` experts, 0xEE where nothing was written."""
    device = tiles[0].device
    kept = [_aligned(tile) for tile in tiles]
    blobs = torch.full((len(tiles) * layout.num_bytes + 4096,), 0xEE, dtype=torch.uint8, device=device)
    begin = -blobs.data_ptr() % 4096
    blobs = blobs[begin : begin + len(tiles) * layout.num_bytes].view(len(tiles), -1)
    sources = torch.tensor([tile.data_ptr() for tile in kept], device=device)
    targets = torch.tensor([blob.data_ptr() for blob in blobs], device=device)
    untile(sources, targets, torch.tensor([count], dtype=torch.int32, device=device), layout)
    return blobs


def _aligned(tile: Tensor) -> Tensor:
    memory = torch.empty(len(tile) + 64, dtype=torch.uint8, device=tile.device)
    begin = -memory.data_ptr() % 64
    memory[begin : begin + len(tile)].copy_(tile)
    return memory[begin : begin + len(tile)]


def share_out_of_qwen3(tokens: int, layer: int = 5) -> None:
    _share_out(tokens, 8, 128, 64, layer)


def share_out_of_half(tokens: int, num_experts: int) -> None:
    """Of as many experts, ten a token, of which VRAM has half."""
    _share_out(tokens, 10, num_experts, num_experts // 2, 5)


def _share_out(tokens: int, top_k: int, num_experts: int, num_slots: int, layer: int) -> None:
    ids, shares = torch.empty(tokens, top_k, dtype=torch.int32), torch.empty(tokens, top_k)
    rows = quantize_rows(torch.zeros(tokens, 2048)) if tokens < 8 else torch.empty(tokens, 2048).bfloat16()
    call_share_out(ids, shares, rows, make_table(num_experts, num_slots, [0] * (num_experts + 1)), layer)


def add_answer_of_qwen3(tokens: int, layer: int) -> None:
    call_add_answer(torch.empty(tokens, 2048), torch.empty(tokens, 2048), layer)


def _share_out_alone_of_qwen3(tokens: int) -> None:
    ids, shares = torch.empty(tokens, 8, dtype=torch.int32), torch.empty(tokens, 8)
    call_share_out_alone(ids, shares, make_table(128, 64, [0] * 129))


def ask_route_of_qwen3(tokens: int, layer: int) -> None:
    inner = torch.empty(tokens, 2048).bfloat16() if tokens > 1 else None
    call_ask_route(torch.empty(tokens, 128), inner, 2048, layer, 0, 8)


def _take_choice_of_qwen3(tokens: int) -> None:
    call_take_choice(torch.empty(tokens, 8, dtype=torch.int32), torch.empty(tokens, 8), 1, 8)


def _untile_of_gpt_oss() -> None:
    def place(offset: int) -> MatrixPlace:
        return MatrixPlace("mxfp4", 2880, 2880, {"codes": offset, "scales": offset + 4096}, offset + 128)

    call_untile([torch.empty(64, dtype=torch.uint8)], BlobLayout(place(0), place(8192), place(16384), 1 << 15), 1)


def _untile_of_qwen3(kind: str) -> None:
    def place(offset: int, rows: int, cols: int) -> MatrixPlace:
        parts = {part: offset + 128 * number for number, part in enumerate(quant.get(kind).parts(rows, cols))}
        return MatrixPlace(kind, rows, cols, parts)

    layout = BlobLayout(place(0, 768, 2048), place(8192, 768, 2048), place(16384, 2048, 768), 1 << 15)
    call_untile([torch.empty(64, dtype=torch.uint8)], layout, 1)


CASES = [
    Case("share out, one token of Qwen3-30B-A3B", lambda: share_out_of_qwen3(1)),
    Case("share out, 16 tokens in bf16", lambda: share_out_of_qwen3(16), everywhere=False),
    Case("share out, one token of Qwen3-Next-80B-A3B", lambda: share_out_of_half(1, 512)),
    Case("share out, 16 tokens of Qwen3-Next-80B-A3B, all but one in VRAM", lambda: _share_out(16, 10, 512, 511, 5)),
    Case("share out, nobody asked", lambda: _share_out_alone_of_qwen3(1), everywhere=False),
    Case("ask the CPU to choose", lambda: ask_route_of_qwen3(1, 3)),
    Case("ask the CPU to choose and compute, 16 tokens in bf16", lambda: ask_route_of_qwen3(16, 3)),
    Case("take the CPU's choice", lambda: _take_choice_of_qwen3(16)),
    Case("add the CPU's answer", lambda: add_answer_of_qwen3(16, 0)),
    *(
        Case(f"untile Qwen3-30B-A3B in {kind}", partial(_untile_of_qwen3, kind), frozenset({"untile_kernel"}))
        for kind in ("int4", "int8", "bf16")
    ),
    Case("untile gpt-oss", _untile_of_gpt_oss, frozenset({"untile_kernel"})),
]
