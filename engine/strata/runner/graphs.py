"""Steps as CUDA graphs, so that one costs the host a single launch: decode steps of a few batch sizes, steps with
prompts of a few numbers of tokens. What lies between two sizes is filled up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from torch import Tensor

from strata.kernels.attention.batch import PagedBatch
from strata.kernels.capture import Capture
from strata.kernels.delta_rule.state import DeltaState
from strata.models.decoder import Decoder
from strata.runner.decode import DecodeInputs
from strata.runner.mixed import MixedInputs
from strata.runner.step import StepResult, result_of
from strata.scheduler.batch import Batch
from strata.store.progress import Progress, counter

Result = TypeVar("Result")


class Inputs(Protocol):
    """Tensors at fixed addresses: ``DecodeInputs`` or ``MixedInputs``."""

    def token_ids(self, num_tokens: int) -> Tensor:
        """int64 [num_tokens]."""

    def seen(self, num_tokens: int) -> PagedBatch:
        """What the tokens attend to."""

    def write(self, batch: Batch, num_tokens: int, feed: Tensor | None = None) -> None:
        """Fill ``num_tokens`` tokens with the batch's, and with nobody's."""


class StepGraphs:
    """The graphs of one model."""

    def __init__(
        self,
        model: Decoder,
        caches: Sequence[Tensor | DeltaState],
        decode: tuple[DecodeInputs, Sequence[int]],
        mixed: tuple[MixedInputs, Sequence[int]] | None,
        capture: Capture,
    ) -> None:
        """``caches``: one a layer. ``decode``: inputs and batch sizes of steps in which every sequence has one new
        token, and samples. ``mixed``: inputs and numbers of tokens of all others; None where these cannot be captured.
        Nothing is captured yet."""
        self._model = model

        def layers(inputs: Inputs, size: int) -> Tensor:
            return model.forward(inputs.token_ids(size), inputs.seen(size), caches)

        def announce() -> None:
            if model.tier is not None:
                model.tier.announce_replay()

        inputs, sizes = decode
        self._decode: _Graphs[StepResult] = _Graphs(
            inputs, sizes, lambda size: result_of(model, layers(inputs, size)), capture, announce
        )
        self._mixed: tuple[MixedInputs, _Graphs[Tensor]] | None = None
        if mixed is not None:
            mixed_inputs, mixed_sizes = mixed
            self._mixed = (
                mixed_inputs,
                _Graphs(mixed_inputs, mixed_sizes, lambda size: layers(mixed_inputs, size), capture, announce),
            )

    def capture(self, progress: Progress = lambda done, total: None) -> None:
        """progress: called with the tokens of the steps that are captured, and of all."""
        took = counter(sum(map(sum, (self._decode.sizes, self._mixed[1].sizes if self._mixed else ()))), progress)
        self._decode.capture(took)
        if self._mixed is not None:
            self._mixed[1].capture(took)

    def run(self, batch: Batch, feed: Tensor | None = None) -> StepResult | None:
        """A step, or None where no graph is large enough. ``feed``: int64, the tokens that the step before drew, -1 for
        none. The next step overwrites the result."""
        num_seqs = len(batch.sequences)
        if batch.num_tokens == batch.num_decoding == num_seqs <= self._decode.largest:
            return self._decode.run(batch, num_seqs, feed).first(num_seqs)
        if self._mixed is None:
            return None
        inputs, graphs = self._mixed
        if not (batch.num_tokens <= graphs.largest and num_seqs <= inputs.max_seqs):
            return None
        hidden = graphs.run(batch, batch.num_tokens, feed)
        return result_of(self._model, hidden.index_select(0, inputs.sampled(batch)))


class _Graphs(Generic[Result]):
    """One graph for each of some numbers of tokens."""

    def __init__(
        self,
        inputs: Inputs,
        sizes: Sequence[int],
        step: Callable[[int], Result],
        capture: Capture,
        announce: Callable[[], None],
    ) -> None:
        """``announce``: called before a step is replayed."""
        self.sizes = sizes
        self._announce = announce
        self._inputs = inputs
        self._step = step
        self._capture = capture
        self._graphs: dict[int, tuple[Callable[[], None], Result]] = {}

    @property
    def largest(self) -> int:
        """Tokens of the largest one that was captured."""
        return max(self._graphs, default=0)

    def capture(self, took: Callable[[int], None]) -> None:
        """Capture all, the largest first: the others then find room in its memory."""
        for size in sorted(self.sizes, reverse=True):
            self._inputs.write(Batch(()), size)
            self._graphs[size] = self._capture(lambda size=size: self._step(size))  # type: ignore[misc]
            took(size)

    def run(self, batch: Batch, num_tokens: int, feed: Tensor | None) -> Result:
        """A step of so many tokens, ``largest`` at most."""
        size = min(size for size in self._graphs if size >= num_tokens)
        self._inputs.write(batch, size, feed)
        replay, result = self._graphs[size]
        self._announce()
        replay()
        return result
