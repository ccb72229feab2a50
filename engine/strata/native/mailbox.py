"""Where a GPU and the pool meet: one buffer in host memory that both can reach.

    byte 0    uint32 request   the other side's last write of a request: any value but zero; the pool writes zero
         4    int32  layer     of the address table
         8    int32  tokens
        64    uint32 done      the pool's last write of an answer: the value that the request had
        68    int32  status    zero, or why a request could not be answered; stays until it is cleared
    ids_offset      int32    [max_tokens, top_k]    negative: the expert is computed elsewhere
    weights_offset  float32  [max_tokens, top_k]
    x_offset        ``number`` [max_tokens, hidden]
    y_offset        float32  [max_tokens, hidden]   the answer

Two requests in turn have different values: a count, or constants of a recorded graph such as layer + 1. The writer's
numbers must be visible to the host before its ``request`` is.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from strata.native.library import NUMBERS

REQUEST, LAYER, TOKENS, DONE, STATUS = 0, 4, 8, 64, 68  # byte offsets
_HEADER_BYTES = 128
_NUMBER_BYTES = dict(zip(NUMBERS, (4, 2, 2), strict=True))
_ALIGNMENT = 128  # bytes: a cache line of a GPU


@dataclass(frozen=True, slots=True)
class MailboxLayout:
    """Places in a mailbox's buffer, in bytes from its start, which must be aligned to 128."""

    max_tokens: int
    top_k: int
    hidden: int
    number: str = "bfloat16"  # of x

    @property
    def ids_offset(self) -> int:
        return _HEADER_BYTES

    @property
    def weights_offset(self) -> int:
        return self.ids_offset + _up(self.max_tokens * self.top_k * 4)

    @property
    def x_offset(self) -> int:
        return self.weights_offset + _up(self.max_tokens * self.top_k * 4)

    @property
    def y_offset(self) -> int:
        return self.x_offset + _up(self.max_tokens * self.hidden * _NUMBER_BYTES[self.number])

    @property
    def num_bytes(self) -> int:
        """Bytes of the buffer."""
        return self.y_offset + _up(self.max_tokens * self.hidden * 4)


def take_status(address: int) -> int:
    """The status of the mailbox at ``address``, which is cleared."""
    field = ctypes.c_int32.from_address(address + STATUS)
    status, field.value = field.value, 0
    return status


def _up(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
