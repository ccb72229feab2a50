"""The choice of experts by the CPU's threads: the router's scores into the mailbox, and its answer back.

ask: one program. The scores and, where the CPU shall compute what it chooses at once, the tokens.
take: one program, which waits for ids and shares and brings them to the device.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from strata.kernels import launch
from strata.kernels.misses.table import COMPUTE, DONE_OFFSET, ROUTE, Counter, Mailbox
from strata.kernels.misses.triton import answered, plain_or_quantized, post_tokens, send, slot_of
from strata.kernels.rows import QuantizedRows
from strata.kernels.triton_functions import overlap_launches


def ask_route(scores: Tensor, inner: QuantizedRows | Tensor | None, mailbox: Mailbox, layer: int) -> None:
    """Scores float32 [tokens, experts] into the mailbox as its next request: to choose, and with the tokens ``inner``
    [tokens, hidden] to compute as well."""
    rows, scales = (scores, scores) if inner is None else plain_or_quantized(inner)
    ask_kernel[(1,)](
        scores,
        rows,
        scales,
        mailbox.sent,
        mailbox.ring,
        mailbox.stride,
        mailbox.scores,
        mailbox.x,
        len(scores),
        layer,
        scores.numel(),
        rows.numel(),
        QUANTIZED=isinstance(inner, QuantizedRows),
        DEPTH=mailbox.depth,
        COMPUTES=inner is not None,
        KIND=ROUTE if inner is None else ROUTE | COMPUTE,
        num_warps=8,
        **launch.early(),
    )


@triton.jit(do_not_specialize=["tokens", "layer", "num_scores", "numbers"])
def ask_kernel(
    scores_ptr,
    rows_ptr,
    scales_ptr,
    sent_ptr,
    ring,
    stride,
    mail_scores,
    mail_x,
    tokens,
    layer,
    num_scores,
    numbers,
    QUANTIZED: tl.constexpr,
    DEPTH: tl.constexpr,
    COMPUTES: tl.constexpr,
    KIND: tl.constexpr,
    EARLY: tl.constexpr,
):
    overlap_launches(EARLY)
    number = tl.load(sent_ptr) + 1
    mail = slot_of(number, ring, stride, DEPTH)
    post_tokens(scores_ptr, scores_ptr, mail + mail_scores, num_scores, False)
    if COMPUTES:
        post_tokens(rows_ptr, scales_ptr, mail + mail_x, numbers, QUANTIZED)
    send(mail, sent_ptr, number, layer, tokens, KIND, tl.arange(0, 256))


def take_choice(mailbox: Mailbox, tokens: int, top_k: int, counters: Tensor) -> tuple[Tensor, Tensor]:
    """ids int32 and shares float32 [tokens, top_k], which answer the last request; the first experts with no share
    where the answer is late. counters: as for ``add_answer``."""
    device = mailbox.sent.device
    ids = torch.empty(tokens, top_k, dtype=torch.int32, device=device)
    shares = torch.empty(tokens, top_k, device=device)
    take_kernel[(1,)](
        ids,
        shares,
        mailbox.sent,
        mailbox.ring,
        mailbox.stride,
        mailbox.answer,
        mailbox.late,
        counters,
        ids.numel(),
        TOP_K=top_k,
        DEPTH=mailbox.depth,
        DONE=DONE_OFFSET,
        WAITED_NS=Counter.WAITED_NS.value,
        P=max(triton.next_power_of_2(ids.numel()), 2),
        num_warps=1,
        **launch.early(),
    )
    return ids, shares


@triton.jit(do_not_specialize=["pairs"])
def take_kernel(
    ids_ptr,
    shares_ptr,
    sent_ptr,
    ring,
    stride,
    answer,
    late,
    counters_ptr,
    pairs,
    TOP_K: tl.constexpr,
    DEPTH: tl.constexpr,
    DONE: tl.constexpr,
    WAITED_NS: tl.constexpr,
    P: tl.constexpr,
    EARLY: tl.constexpr,
):
    overlap_launches(EARLY)
    number = tl.load(sent_ptr)
    mail = slot_of(number, ring, stride, DEPTH)
    pair = tl.arange(0, P)
    there = (pair < pairs) & answered(mail, number, DONE, late, counters_ptr + WAITED_NS)
    ids = (mail + answer).to(tl.pointer_type(tl.int32)) + pair
    shares = (mail + answer).to(tl.pointer_type(tl.float32)) + pairs + pair
    tl.store(ids_ptr + pair, tl.where(there, tl.load(ids, mask=there, volatile=True), pair % TOP_K), mask=pair < pairs)
    tl.store(shares_ptr + pair, tl.load(shares, mask=there, other=0.0, volatile=True), mask=pair < pairs)
