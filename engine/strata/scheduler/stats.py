"""How full the scheduler is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class WaitReason(StrEnum):
    """What the first of the waiting requests lacks."""

    MAX_NUM_SEQS = "max_num_seqs"  # as many run as may
    KV_BLOCKS = "kv_blocks"  # its prompt has no room in the KV cache yet
    PREFILL_BUDGET = "prefill_budget"  # the step was full of other tokens


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """The state after a step. Counters are since the start."""

    num_running: int
    num_waiting: int
    num_free_blocks: int  # used by no request, ``num_cached_blocks`` included
    num_total_blocks: int
    num_preemptions: int
    num_cached_blocks: int = 0  # used by no request, and kept for those that begin alike
    num_prefix_queries: int = 0  # prompt tokens of requests that were let in
    num_prefix_hits: int = 0  # those of them that the prefix cache had
    max_prefill_tokens: int = 0  # prompt tokens that may run beside decoding sequences now
    waiting_for: WaitReason | None = None  # None when no request waits
    step_seconds: float = 0.0  # that all steps took, each from its plan to its tokens
    num_used_states: int = 0  # slots of states of linear attention that requests have
    num_total_states: int = 0  # 0 for a model without
    num_snapshots: int = 0  # states that are kept for those that begin alike
    num_total_snapshots: int = 0  # that may be
    num_drafted: int = 0  # tokens of drafts that were run
    num_accepted: int = 0  # those of them that were right

    @property
    def num_used_blocks(self) -> int:
        """Of requests."""
        return self.num_total_blocks - self.num_free_blocks

    @property
    def kv_usage(self) -> float:
        """Share of the blocks that requests use; 0 before there are any."""
        return self.num_used_blocks / self.num_total_blocks if self.num_total_blocks else 0.0

    @property
    def num_empty_blocks(self) -> int:
        """With nothing in them that anybody could use."""
        return self.num_free_blocks - self.num_cached_blocks
