"""What the scheduler hands to the runner: ids and positions only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ScheduledSequence:
    """The part of one sequence that runs in this step.

    token_ids: tokens to run, a prefill chunk or the one last sampled. start: position of the first of them, which is
    also how many tokens of the sequence the KV cache already holds. block_ids: KV blocks that cover positions
    0 .. start + len(token_ids) - 1. samples: the logits of the last token are needed, a token is drawn from them.
    source: where the one token is not known yet, the place of its sequence among those that sample in the step before,
    in which it is drawn; token_ids is (0,) then. num_drafts: of the last tokens, guesses of what is drawn before each;
    the logits of all these and of the one before them are needed. serial: tells the request from others that had its id
    before.
    state_slot: where the states of linear attention are; None for a model without. num_replayed: tokens right before
    ``start`` that these states lack: right drafts of the step before.
    """

    request_id: str
    token_ids: tuple[int, ...]
    start: int
    block_ids: tuple[int, ...]
    samples: bool
    source: int | None = None
    serial: int = 0
    state_slot: int | None = None
    num_drafts: int = 0
    num_replayed: int = 0

    @property
    def num_sampled(self) -> int:
        """Tokens whose logits are needed, the last ones."""
        return self.num_drafts + 1 if self.samples else 0

    @property
    def drafts(self) -> tuple[int, ...]:
        return self.token_ids[len(self.token_ids) - self.num_drafts :]

    @property
    def end(self) -> int:
        """The position after the last token of the step: how many tokens the KV cache then holds."""
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Batch:
    """One step: decoding sequences first, then prefill chunks.

    Slots of states are copied in pairs (from, to): ``restores`` in their order before the step, ``saves`` after it.
    """

    sequences: tuple[ScheduledSequence, ...]
    restores: tuple[tuple[int, int], ...] = ()
    saves: tuple[tuple[int, int], ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens that the step runs."""
        return sum(len(sequence.token_ids) for sequence in self.sequences)

    @property
    def num_decoding(self) -> int:
        """Sequences of which one known token runs, with its drafts, and what follows is drawn."""
        return sum(
            sequence.samples and len(sequence.token_ids) == 1 + sequence.num_drafts for sequence in self.sequences
        )

    @property
    def num_drafts(self) -> int:
        """Tokens of all drafts."""
        return sum(sequence.num_drafts for sequence in self.sequences)
