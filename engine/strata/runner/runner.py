"""One scheduled step after another through the model: batch to tensors to logits."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from strata.config import DeviceConfig, EngineConfig
from strata.experts.calibration import Calibration
from strata.experts.counts import ExpertStats
from strata.experts.tier import Tier
from strata.experts.ways import Way
from strata.kernels.select import kernels_for
from strata.memory.caches import Caches
from strata.models.decoder import Decoder
from strata.ngram.counts import TableCounts
from strata.ngram.stored import StoredTable, open_tables
from strata.plan.budget import budget_table, plan_memory
from strata.plan.hardware import available_memory
from strata.plan.memory import MemoryPlan
from strata.plan.ngrams import TableFit
from strata.plan.placement import ExpertPlacement
from strata.runner.contest import MAX_STEPS, keep_fastest
from strata.runner.device import Device, device_memory, open_device, out_of_memory
from strata.runner.graphs import StepGraphs
from strata.runner.inputs import build_inputs
from strata.runner.load import capture_steps, check_supported, load_model, make_caches, place_experts
from strata.runner.step import StepResult, result_of
from strata.runner.threads import ThreadTuners, choices
from strata.runner.warm import decode_step, warm_up_steps
from strata.scheduler.batch import Batch
from strata.store.progress import Phases, Progress, counter, phase, silent
from strata.store.reader import Store

logger = logging.getLogger(__name__)


class Runner:
    """A model on its device, with its caches."""

    def __init__(
        self,
        model: Decoder,
        vocab_size: int,
        device: Device,
        plan: MemoryPlan,
        caches: Caches,
        tuners: ThreadTuners | None = None,
        graphs: StepGraphs | None = None,
        placement: ExpertPlacement | None = None,
    ) -> None:
        """``tuners``: choose the CPU threads of each step; None leaves torch's number alone. ``graphs``: run the steps
        that they are large enough for. ``placement``: where routed experts are; None: there are none, or kernels
        have re-ordered them, all in the device's memory."""
        self.model = model
        self.vocab_size = vocab_size
        self.device = device.torch_device
        self.device_name = device.name
        self.plan = plan
        self.caches = caches
        self.placement = placement
        self.calibration: Calibration | None = None  # of the experts' tier
        self.tables: Sequence[StoredTable] = ()  # of n-grams
        self.way: Way | None = None  # to missing experts; None: none is ever missing
        self.way_seconds: dict[Way, float] = {}  # of a decode step, by the ways that were compared
        self._tuners = tuners
        self._graphs = graphs

    @classmethod
    def load(
        cls,
        store: Store,
        config: EngineConfig,
        progress: Phases = silent,
        *,
        compute_dtype: torch.dtype = torch.bfloat16,
    ) -> Runner:
        """Open the device, load the weights, and give states and KV cache what is left (``plan.memory``).

        progress: called with the bytes of the phases "load" and "prepare", in which kernels re-order the weights; on a
        card also with the tokens of "capture", in which steps become CUDA graphs, and "warm up", in which the kernels
        of all others are built.
        ``compute_dtype``: of activations and KV cache; float32 is for checks against a reference. Raises HardwareError
        when the device is not there or too small (before the weights are read, if it can be known), OptionError for
        settings out of range, CheckpointError for weights that are damaged or not supported.
        """
        device = open_device(config.device)
        check_supported(store.model_config, device)
        kernels = kernels_for(device.torch_device, compute_dtype)
        placement = place_experts(store, config, device, kernels)
        if placement is not None:
            config = placement.settle(config)

        def plan(weight_bytes: int, loaded_bytes: int) -> MemoryPlan:
            return plan_memory(
                store.model_config,
                replace(config, dtype=store.dtype),  # type: ignore[arg-type]
                memory=device_memory(device, loaded_bytes=loaded_bytes),
                weight_bytes=weight_bytes,
                element_bytes=compute_dtype.itemsize,
            )

        weight_bytes = store.num_bytes
        if device.type == "cpu" and compute_dtype == torch.bfloat16:
            weight_bytes = store.prepared_bytes
        if placement is not None:
            weight_bytes += placement.vram_bytes - placement.experts.num_bytes
        max_model_len = plan(weight_bytes, 0).max_model_len
        tables = open_tables(store, device.torch_device, compute_dtype)
        model, taken = load_model(store, device, kernels, placement, config.device, max_model_len, progress, tables)
        # A CPU's process grows by more than its weights: code that is run first, what the allocator keeps. That counts
        # as used by others, so that what is logged is what was planned.
        taken = max(taken, weight_bytes) if device.type == "cuda" else weight_bytes
        final = plan(taken, taken)
        caches = make_caches(final, device, compute_dtype)
        for line in budget_table(final):
            logger.info("%s", line)
        if placement is not None and not placement.is_resident:
            logger.info("%s", placement)
        if store.model_config.ngrams is not None:
            # A CPU's caches were allocated, but nobody has touched them.
            beside = final.taken_bytes - taken if device.type == "cpu" else 0
            logger.info("%s", TableFit.of(store.model_config.ngrams, available_memory() - beside))
        tuners = None
        if device.type == "cpu" and config.device.num_threads is None:
            tuners = ThreadTuners(choices(torch.get_num_threads()))
        runner = cls(model, store.model_config.vocab_size, device, final, caches, tuners, placement=placement)
        runner.tables = tuple(tables.values())

        def capture(max_num_seqs: int, progress: Progress = lambda done, total: None) -> None:
            if device.type == "cuda" and config.device.cuda_graphs and model.can_capture:
                runner._graphs = capture_steps(model, caches, final, device, max_num_seqs, progress)

        if model.tier is not None:
            with out_of_memory(device):
                runner.calibration = model.tier.calibrate()
            runner.choose_way(model.tier, config.device, partial(capture, 1))
        capture(config.scheduler.max_num_seqs, phase("capture", progress))
        if device.type == "cuda":
            with out_of_memory(device):
                runner.warm_up(runner.step_tokens, phase("warm up", progress))
        if model.tier is not None:
            model.tier.start_counting()
        return runner

    @property
    def num_blocks(self) -> int:
        return self.plan.num_blocks

    @property
    def block_size(self) -> int:
        return self.plan.block_size

    @property
    def num_states(self) -> int:
        """Sequences that may have a state of linear attention; 0 for a model without."""
        return self.plan.num_states

    @property
    def num_snapshots(self) -> int:
        """States beside these that may be kept for sequences that begin alike."""
        return self.plan.num_snapshots

    @property
    def max_draft(self) -> int:
        """Tokens of a draft that a step may take; 0: there are none."""
        return self.plan.max_draft

    @property
    def max_model_len(self) -> int:
        return self.plan.max_model_len

    @property
    def step_tokens(self) -> int:
        return self.plan.step_tokens

    @property
    def runs_ahead(self) -> bool:
        """Whether ``run`` returns before the step is done, so that the next one may be prepared meanwhile."""
        return self.device.type == "cuda"

    @property
    def can_repeat(self) -> bool:
        """Whether a step may run once more with other tokens: keys and values are written over, states are not."""
        return not self.num_states

    def run(self, batch: Batch, feed: Tensor | None = None) -> StepResult:
        """One step; the device may still run it when this returns. ``feed``: int64, the tokens that the step before
        drew, for sequences with a ``source``."""
        if self._tuners is None:
            return self._run(batch, feed)
        tuner = self._tuners.of(batch.num_tokens)
        if tuner.threads != torch.get_num_threads():
            torch.set_num_threads(tuner.threads)
        began = time.perf_counter()
        result = self._run(batch, feed)
        tuner.record((time.perf_counter() - began) / batch.num_tokens)
        return result

    @torch.inference_mode()
    def _run(self, batch: Batch, feed: Tensor | None) -> StepResult:
        self._copy_states(batch.restores)
        result = self._step(batch, feed)
        self._copy_states(batch.saves)
        return result

    def _copy_states(self, pairs: Sequence[tuple[int, int]]) -> None:
        if pairs:
            assert self.caches.states is not None, "a model without states has none to copy"
            self.caches.states.copy(pairs)

    def _step(self, batch: Batch, feed: Tensor | None) -> StepResult:
        if self._graphs is not None and (result := self._graphs.run(batch, feed)) is not None:
            return result
        hidden, sampled, num_sampled = self._forward(batch, feed)
        if num_sampled == 0:
            return StepResult(
                torch.empty(0, self.vocab_size, device=self.device),
                torch.empty(0, dtype=torch.int64, device=self.device),
            )
        return result_of(self.model, hidden if sampled is None else hidden.index_select(0, sampled))

    def check(self) -> None:
        """Raise EngineError if a step that has ended went wrong where the device cannot tell."""
        if self.model.tier is not None:
            self.model.tier.check()

    def table_counts(self) -> TableCounts | None:
        """What steps read of tables of n-grams; None where the model has none."""
        return sum((table.counts for table in self.tables), TableCounts()) if self.tables else None

    def expert_stats(self, *, wait: bool = False) -> ExpertStats | None:
        """As ``Tier.stats``; None also for a model without experts."""
        return None if self.model.tier is None else self.model.tier.stats(wait=wait)

    def warm_up(self, max_tokens: int, progress: Progress) -> None:
        """Run steps of up to ``max_tokens`` tokens. progress: called with the tokens that ran, and with all."""
        plan = self.plan
        steps = list(warm_up_steps(max_tokens, plan.max_model_len, plan.block_size, plan.num_blocks, plan.spare_state))
        took = counter(sum(step.num_tokens for step in steps), progress)
        for step in steps:
            self.run(step).best.tolist()  # waits for the device
            took(step.num_tokens)

    @torch.inference_mode()
    def choose_way(self, tier: Tier, config: DeviceConfig, capture: Callable[[], None]) -> None:
        """Keep the fastest of the tier's ways to missing experts. ``capture``: makes steps of one sequence graphs."""
        ways = tier.choices()
        if not ways:
            for option, value in (("--prefetch", config.prefetch), ("--routing-device", config.routing_device)):
                if value not in ("auto", "off", "gpu"):
                    logger.info("%s %s does nothing here: all experts are in one place", option, value)
            return
        graphs: dict[Hashable, StepGraphs | None] = {}
        if len(ways) > 1:
            for way in {way.captured: way for way in ways}.values():
                tier.begin(way)
                capture()
                graphs[way.captured] = self._graphs

        def begin(way: Way) -> None:
            self._graphs = graphs.get(way.captured)
            tier.begin(way)

        text, generator = [0], torch.Generator().manual_seed(0)
        first_state = 0 if self.num_states else None

        def decode(step: int) -> None:
            result = self.run(decode_step(text[step], step, self.block_size, first_state))
            if step + 1 == len(text):
                text.append(_draw(result.logits[0], generator))
            else:
                result.best.tolist()  # waits for the device

        self.way, self.way_seconds = keep_fastest(ways, begin, decode, min(MAX_STEPS, self.max_model_len))
        self.check()

    @torch.inference_mode()
    def run_all(self, batch: Batch) -> Tensor:
        """One step, with the logits of every token: float32 [tokens, vocab]."""
        return self.model.logits(self._forward(batch)[0])

    def _forward(self, batch: Batch, feed: Tensor | None = None) -> tuple[Tensor, Tensor | None, int]:
        inputs = build_inputs(
            batch,
            self.block_size,
            self.device,
            self.caches.kv.tensor.dtype,
            self.model.windows,
            reads_pages=self.model.reads_pages,
            drafts=self.plan.max_draft > 0,
            feed=feed,
        )
        hidden = self.model.forward(inputs.token_ids, inputs.attention, self.caches.layers)
        return hidden, inputs.sampled, inputs.num_sampled


def _draw(logits: Tensor, generator: torch.Generator) -> int:
    """A token, as likely as the model finds it: the likeliest ones soon come again and again, with their experts."""
    return int(torch.multinomial(logits.nan_to_num().softmax(-1).cpu(), 1, generator=generator))
