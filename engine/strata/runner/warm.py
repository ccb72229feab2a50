"""Steps that nobody asked for: kernels are built at their first call, and no request shall wait for that."""

from __future__ import annotations

from collections.abc import Iterator

from strata.scheduler.batch import Batch, ScheduledSequence


def warm_up_steps(
    max_tokens: int, max_model_len: int, block_size: int, spare_block: int, spare_state: int | None = None
) -> Iterator[Batch]:
    """Prefills of 2, 4, 8 … and ``max_tokens`` tokens, each alone and beside a sequence that decodes. Kernels choose
    their work by the number of tokens, and where they part lies near a power of two.

    All keys and values go to the spare block, all states of linear attention to the spare slot.
    """

    def part(name: str, num_tokens: int, start: int = 0) -> ScheduledSequence:
        blocks = (spare_block,) * -(-(start + num_tokens) // block_size)
        return ScheduledSequence(name, (0,) * num_tokens, start, blocks, samples=True, state_slot=spare_state)

    sizes = [1 << power for power in range(1, max_tokens.bit_length()) if 1 << power < max_tokens]
    for size in (*sizes, max_tokens):
        whole, rest = divmod(size, max_model_len)
        lengths = [max_model_len] * whole + [rest] * (rest > 0)
        prompts = [part(f"{i}", length) for i, length in enumerate(lengths)]
        yield Batch(tuple(prompts))
        if lengths[0] > 1:
            prompts[0] = part("0", lengths[0] - 1)
            yield Batch((part("decoding", 1, lengths[0] - 1), *prompts))


def decode_step(token: int, position: int, block_size: int, state_slot: int | None = None) -> Batch:
    """Of one sequence, whose keys and values go to the first blocks."""
    blocks = tuple(range(position // block_size + 1))
    return Batch((ScheduledSequence("decoding", (token,), position, blocks, samples=True, state_slot=state_slot),))
