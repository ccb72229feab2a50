"""Where a GPU and the pool meet: a ring of slots in host memory that both can reach.

    byte 0    uint32 request   the other side's last write of a request: its number
         4    int32  layer     of the address table
         8    int32  tokens
        12    int32  kind      COMPUTE, ROUTE, or both
        16    int32  skipped   requests that were expected before this one, and are not made
        64    uint32 done      the pool's last write of an answer: the number that the request had
    ids_offset      int32    [max_tokens, top_k]    negative: the expert is computed elsewhere
    weights_offset  float32  [max_tokens, top_k]
    scores_offset   float32  [max_tokens, experts]  of the router; where the pool routes
    x_offset        ``number`` [max_tokens, hidden]
    y_offset        float32  [max_tokens, hidden]   the answer, or where it is a choice: its ids, then its weights

Requests are numbered one after another, 0 behind 2^32 - 1; number n goes into slot n mod ``depth``. COMPUTE: the sum of
the experts that ids and weights name goes into y. ROUTE: the answer is ids and weights, chosen by the scores. Both: y
is the answer, of the experts that the pool chooses. The writer's numbers must be visible to the host before its
``request`` is. A slot may be used again once its answer has been read; whoever does so before loses the older request.
"""

from __future__ import annotations

from dataclasses import dataclass

from strata.native.library import NUMBERS

REQUEST, LAYER, TOKENS, KIND, SKIPPED, DONE = 0, 4, 8, 12, 16, 64  # byte offsets
COMPUTE, ROUTE = 1, 2
_HEADER_BYTES = 128
_NUMBER_BYTES = dict(zip(NUMBERS, (4, 2, 2), strict=True))
_ALIGNMENT = 128  # bytes: a cache line of a GPU


@dataclass(frozen=True, slots=True)
class MailboxLayout:
    """Places in a slot, in bytes from its start; the ring's must be aligned to 128."""

    max_tokens: int
    top_k: int
    hidden: int
    number: str = "bfloat16"  # of x
    experts: int = 0  # that scores are of; 0: the pool never routes
    depth: int = 1  # slots

    @property
    def ids_offset(self) -> int:
        return _HEADER_BYTES

    @property
    def weights_offset(self) -> int:
        return self.ids_offset + _up(self.max_tokens * self.top_k * 4)

    @property
    def scores_offset(self) -> int:
        return self.weights_offset + _up(self.max_tokens * self.top_k * 4)

    @property
    def x_offset(self) -> int:
        return self.scores_offset + _up(self.max_tokens * self.experts * 4)

    @property
    def y_offset(self) -> int:
        return self.x_offset + _up(self.max_tokens * self.hidden * _NUMBER_BYTES[self.number])

    @property
    def stride(self) -> int:
        """Bytes of a slot."""
        return self.y_offset + _up(self.max_tokens * max(self.hidden, 2 * self.top_k) * 4)

    @property
    def num_bytes(self) -> int:
        """Bytes of the ring."""
        return self.depth * self.stride


def _up(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
