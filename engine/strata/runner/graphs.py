"""Decode steps as CUDA graphs, one for each of a few batch sizes: a step costs the host one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from strata.memory.kv import KVPool
from strata.models.decoder import Decoder
from strata.runner.decode import DecodeInputs
from strata.runner.step import StepResult, result_of
from strata.scheduler.batch import Batch
from strata.store.progress import Progress

Step = Callable[[], StepResult]
Capture = Callable[[Step], tuple[Callable[[], None], StepResult]]  # how to run it again, and where its result then is


@dataclass(frozen=True, slots=True)
class _Graph:
    replay: Callable[[], None]
    result: StepResult


class DecodeGraphs:
    """Steps in which every sequence has one new token, and samples. A batch between two sizes is filled up."""

    def __init__(self, model: Decoder, pool: KVPool, inputs: DecodeInputs, sizes: Sequence[int], capture: Capture):
        """Nothing is captured yet."""
        self._model = model
        self._pool = pool
        self._inputs = inputs
        self._sizes = sizes
        self._capture = capture
        self._graphs: dict[int, _Graph] = {}

    def capture(self, progress: Progress = lambda done, total: None) -> None:
        """Capture every size, the largest first: the others then find room in its memory.

        progress: called with the tokens of the batches that are captured, and of all.
        """
        total = sum(self._sizes)
        for size in sorted(self._sizes, reverse=True):
            self._inputs.write(Batch(()), size)
            self._graphs[size] = _Graph(*self._capture(lambda size=size: self._step(size)))  # type: ignore[misc]
            progress(sum(self._graphs), total)

    def takes(self, batch: Batch) -> bool:
        """Whether a step is one of those that were captured."""
        return batch.num_decoding == len(batch.sequences) <= max(self._graphs, default=0)

    def run(self, batch: Batch, feed: Tensor | None = None) -> StepResult:
        """A step that ``takes`` said yes to; ``feed``: see ``DecodeInputs``. The next step overwrites the result."""
        num_seqs = len(batch.sequences)
        size = min(size for size in self._graphs if size >= num_seqs)
        self._inputs.write(batch, size, feed)
        graph = self._graphs[size]
        if self._model.tier is not None:
            self._model.tier.announce_replay()
        graph.replay()
        return graph.result.first(num_seqs)

    def _step(self, size: int) -> StepResult:
        token_ids, seen = self._inputs.token_ids(size), self._inputs.seen(size)
        return result_of(self._model, self._model.forward(token_ids, seen, self._pool.layers))


def on_card(device: torch.device) -> Capture:
    """Captures graphs that share their memory: they must not run at the same time."""
    pool = torch.cuda.graph_pool_handle()

    def capture(step: Step) -> tuple[Callable[[], None], StepResult]:
        aside = torch.cuda.Stream(device)
        aside.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(aside):
            step()  # builds kernels and work areas, which a capture must not
        torch.cuda.current_stream(device).wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            result = step()
        return graph.replay, result

    return capture
