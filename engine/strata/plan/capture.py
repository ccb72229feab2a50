"""Which decode steps a card replays as CUDA graphs, and the memory that these take. Imports no torch."""

from __future__ import annotations

from strata.config import ModelConfig

MAX_CAPTURED = 64  # sequences; in a larger batch the host is ahead of the card without a graph

# A graph's launches, and what its kernels keep between them.
GRAPH_BYTES = 16 << 20


def capture_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """Batch sizes: powers of two, as far as a batch of ``max_num_seqs`` needs them. A smaller one is filled up."""
    sizes = [1]
    while sizes[-1] < min(max_num_seqs, MAX_CAPTURED):
        sizes.append(2 * sizes[-1])
    return tuple(sizes)


def capture_bytes(model: ModelConfig, max_num_seqs: int) -> int:
    """Bytes of all graphs together: each keeps the float32 logits of its batch."""
    sizes = capture_sizes(max_num_seqs)
    return len(sizes) * GRAPH_BYTES + 4 * sum(sizes) * model.vocab_size
