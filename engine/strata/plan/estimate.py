"""A model on a machine, before either is there: bytes, places and bounds on speed, for each bit format."""

from __future__ import annotations

from dataclasses import dataclass, replace

from strata.config import EngineConfig, ModelConfig
from strata.plan.fit import Fit, Machine, fit
from strata.plan.parts import WeightParts
from strata.plan.speed import Rates, Roofline, Shares, roofline, step_bytes

KV_BYTES = 2  # of an element of KV cache and activations: bf16
SHORT_CONTEXT = 1024


@dataclass(frozen=True, slots=True)
class Bound:
    """Decoding at a context of so many tokens. ``best`` uses every leg that the machine has; ``pcie_only`` and
    ``cpu_only`` serve misses over one, None where nothing is missed."""

    context: int
    num_seqs: int  # decoding together: those asked for, or as many as the KV cache holds at that length
    best: Roofline
    pcie_only: Roofline | None
    cpu_only: Roofline | None


@dataclass(frozen=True, slots=True)
class Estimate:
    """One bit format. ``bounds`` are empty where the model does not fit."""

    dtype: str
    fit: Fit
    bounds: tuple[Bound, ...]

    @property
    def parts(self) -> WeightParts:
        return self.fit.parts


def estimate(
    model: ModelConfig,
    config: EngineConfig,
    machine: Machine,
    *,
    expert_format: str | None = None,
    hit_share: float | None = None,
) -> Estimate:
    """Plan ``model`` in ``config.dtype`` for ``config.scheduler.max_num_seqs`` sequences of ``max_model_len`` tokens.

    ``expert_format``: what the experts are packed in whatever the dtype ("mxfp4"); None: in the dtype.
    ``hit_share``: share of a token's experts that are found in VRAM; None takes the share of experts that are there.
    Raises OptionError for a ``max_model_len`` beyond the checkpoint's positions.
    """
    placed = fit(model, config, machine, expert_format=expert_format, element_bytes=KV_BYTES)
    if placed.problem is not None:
        return Estimate(config.dtype, placed, ())
    shares = _with_hits(placed.shares, hit_share)
    contexts = sorted({min(SHORT_CONTEXT, placed.max_model_len), placed.max_model_len})
    bounds = tuple(
        _bound(model, placed.parts, machine.rates, shares, context, placed.seqs_at(context)) for context in contexts
    )
    return Estimate(config.dtype, placed, bounds)


def _with_hits(shares: Shares, hit_share: float | None) -> Shares:
    missed = 1 - shares.vram
    if hit_share is None or missed <= 0:
        return shares
    scale = (1 - hit_share) / missed
    return Shares(hit_share, shares.ram * scale, shares.disk * scale)


def _bound(model: ModelConfig, parts: WeightParts, rates: Rates, shares: Shares, context: int, num_seqs: int) -> Bound:
    step = step_bytes(model, parts, context=context, num_seqs=num_seqs, element_bytes=KV_BYTES)
    best = roofline(step, rates, shares)
    if not shares.ram:
        return Bound(context, num_seqs, best, None, None)
    return Bound(
        context,
        num_seqs,
        best,
        pcie_only=roofline(step, replace(rates, cpu=0.0), shares) if rates.pcie else None,
        cpu_only=roofline(step, replace(rates, pcie=0.0), shares) if rates.cpu else None,
    )
