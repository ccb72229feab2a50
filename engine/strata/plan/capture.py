"""Which steps a card replays as CUDA graphs, and the memory that these take. Imports no torch."""

from __future__ import annotations

from strata.config import ModelConfig

MAX_CAPTURED = 64  # sequences; in a larger batch the host is ahead of the card without a graph

# New tokens of steps with prompts. From the largest on a card computes longer than the host takes to launch.
MIXED_SIZES = (16, 32, 64, 128, 256, 512, 1024)

# A graph's launches, and what its kernels keep between them. All 13 of Qwen3-8B for 32 sequences took 122 MiB, half of
# what ``capture_bytes`` gives (H200, 2026-11-30).
GRAPH_BYTES = 4 << 20


def capture_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """Batch sizes: powers of two, as far as a batch of ``max_num_seqs`` needs them. A smaller one is filled up."""
    sizes = [1]
    while sizes[-1] < min(max_num_seqs, MAX_CAPTURED):
        sizes.append(2 * sizes[-1])
    return tuple(sizes)


def mixed_sizes(step_tokens: int, max_model_len: int) -> tuple[int, ...]:
    """Numbers of tokens of steps with prompts, as far as such steps and sequences go."""
    return tuple(size for size in MIXED_SIZES if size <= min(step_tokens, max_model_len))


def capture_bytes(model: ModelConfig, max_num_seqs: int, step_tokens: int, token_bytes: int) -> int:
    """Bytes of all graphs together. Each of decode steps keeps the float32 logits of its batch, the others the residual
    stream. ``token_bytes``: what a token takes on the way through the layers, of which the largest step has most."""
    decode, mixed = capture_sizes(max_num_seqs), mixed_sizes(step_tokens, step_tokens)
    results = 4 * (sum(decode) * model.vocab_size + sum(mixed) * model.hidden_size)
    return (len(decode) + len(mixed)) * GRAPH_BYTES + results + max(mixed, default=0) * token_bytes
