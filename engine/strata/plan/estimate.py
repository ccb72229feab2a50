"""A model on a machine, before either is there: bytes, places and speed, for each bit format."""

from __future__ import annotations

from dataclasses import dataclass, replace

from strata.config import EngineConfig, ModelConfig
from strata.plan.cards import usual
from strata.plan.expect import Place, expect_decode, expect_prefill
from strata.plan.fit import Fit, Machine, fit
from strata.plan.parts import WeightParts
from strata.plan.speed import Rates, Shares, StepTime, roofline, step_bytes

KV_BYTES = 2  # of an element of KV cache and activations: bf16
SHORT_CONTEXT = 1024
PROMPT = 2048  # tokens, of which prefill is expected for


@dataclass(frozen=True, slots=True)
class Bound:
    """Decoding at a context of so many tokens, at most; ``expected``: see ``plan.expect``, None on a CPU and where
    experts are on disk. ``best`` uses every leg that the machine has; ``pcie_only`` and ``cpu_only`` serve misses over
    one, None where nothing is missed. ``in_ram``: as ``best``, if host memory held what is on disk; None where nothing
    is."""

    context: int
    num_seqs: int  # decoding together: those asked for, or as many as the KV cache holds at that length
    expected: StepTime | None
    best: StepTime
    pcie_only: StepTime | None
    cpu_only: StepTime | None
    in_ram: StepTime | None


@dataclass(frozen=True, slots=True)
class Estimate:
    """One bit format. ``bounds`` are empty where the model does not fit. ``prefill``: expected of one prompt of
    ``prompt_tokens``, None where none is."""

    dtype: str
    fit: Fit
    bounds: tuple[Bound, ...]
    prompt_tokens: int
    prefill: StepTime | None

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
    prompt = min(PROMPT, placed.max_model_len)
    if placed.problem is not None:
        return Estimate(config.dtype, placed, (), prompt, None)
    shares = _with_hits(placed.shares, hit_share)
    place = None
    if machine.vram_bytes is not None and machine.rates.flops and not shares.disk:
        place = Place(shares.vram)
    contexts = sorted({min(SHORT_CONTEXT, placed.max_model_len), placed.max_model_len})
    bounds = tuple(
        _bound(model, placed.parts, machine.rates, shares, place, context, placed.seqs_at(context))
        for context in contexts
    )
    prefill = None
    if place is not None:
        # Experts that a cache has are of no use to a prompt more than others: it takes nearly all.
        whole = replace(place, vram=placed.shares.vram)
        rates = usual(machine.rates)
        prefill = expect_prefill(
            model, placed.parts, rates, tokens=prompt, chunk_tokens=placed.step_tokens, place=whole
        )
    return Estimate(config.dtype, placed, bounds, prompt, prefill)


def _with_hits(shares: Shares, hit_share: float | None) -> Shares:
    missed = 1 - shares.vram
    if hit_share is None or missed <= 0:
        return shares
    scale = (1 - hit_share) / missed
    return Shares(hit_share, shares.ram * scale, shares.disk * scale)


def _bound(
    model: ModelConfig,
    parts: WeightParts,
    rates: Rates,
    shares: Shares,
    place: Place | None,
    context: int,
    num_seqs: int,
) -> Bound:
    step = step_bytes(model, parts, context=context, num_seqs=num_seqs, element_bytes=KV_BYTES)
    expected = None
    if place is not None:
        expected = expect_decode(
            model, parts, usual(rates), context=context, num_seqs=num_seqs, place=place, element_bytes=KV_BYTES
        )
    best = roofline(step, rates, shares)
    in_ram = roofline(step, rates, Shares(shares.vram, shares.ram + shares.disk)) if shares.disk else None
    if not shares.ram:
        return Bound(context, num_seqs, expected, best, None, None, in_ram)
    return Bound(
        context,
        num_seqs,
        expected,
        best,
        pcie_only=roofline(step, replace(rates, cpu=0.0), shares) if rates.pcie else None,
        cpu_only=roofline(step, replace(rates, pcie=0.0), shares) if rates.cpu else None,
        in_ram=in_ram,
    )
