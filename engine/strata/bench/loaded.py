"""A model loaded for a measurement, and what all measurements do with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from strata.config import CacheConfig, DeviceConfig, EngineConfig, SchedulerConfig
from strata.errors import OptionError
from strata.plan.hardware import num_cpus
from strata.plan.parts import WeightParts, sum_parts
from strata.request import GenerationRequest, SamplingParams
from strata.runner.threads import spin_briefly

if TYPE_CHECKING:
    from strata.engine.loop import EngineLoop
    from strata.runner.runner import Runner
    from strata.scheduler.batch import Batch
    from strata.store.progress import Phases
    from strata.store.reader import Store


AUTO = DeviceConfig()  # the first card, else the CPU


@dataclass(frozen=True, slots=True)
class Loaded:
    """A store, and its model on a device as ``config`` asks for."""

    store: Store
    runner: Runner
    config: EngineConfig

    def loop(self) -> EngineLoop:
        """The engine's own loop around it."""
        from strata.engine.loop import EngineLoop

        return EngineLoop(self.store, self.runner, self.config)


def open_model(
    source: str,
    dtype: str,
    *,
    device: DeviceConfig,
    max_model_len: int,
    max_num_seqs: int = 1,
    max_num_batched_tokens: int | None = None,
    progress: Phases,
) -> Loaded:
    """Convert the model if need be and load it, with a KV cache for ``max_num_seqs`` sequences of ``max_model_len``
    tokens, of which none shares a beginning with another.

    ``device``: with no number of threads it takes one a CPU, and stays with them, where a server would look for a
    better number.
    Raises UsageError when the model, the device or a setting is at fault.
    """
    spin_briefly()
    from strata.config.engine import DTYPES
    from strata.runner.device import check_device
    from strata.runner.runner import Runner
    from strata.store.locate import resolve
    from strata.store.reader import Store

    if dtype not in DTYPES:
        raise OptionError(f"dtype is {dtype!r}; one of {', '.join(DTYPES)} is needed")
    check_device(device)
    store = Store.open(resolve(source, dtype, progress=progress))
    cache = CacheConfig()
    config = EngineConfig(
        model=source,
        dtype=cast("Any", dtype),
        device=replace(device, num_threads=device.num_threads or num_cpus()),
        cache=replace(cache, num_kv_tokens=max_num_seqs * (max_model_len + cache.block_size), prefix_cache=False),
        scheduler=SchedulerConfig(
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            decode_latency_seconds=None,
        ),
    )
    return Loaded(store, Runner.load(store, config, progress), config)


def requests(
    loaded: Loaded, count: int, prompt_tokens: int, *, max_tokens: int, seed: int = 0
) -> tuple[GenerationRequest, ...]:
    """Random prompts of equal length, of which each gets ``max_tokens`` greedy tokens, whatever they are."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    prompts = torch.randint(0, loaded.runner.vocab_size, (count, prompt_tokens), generator=generator).tolist()
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    return tuple(GenerationRequest(f"{seed}-{i}", tuple(prompt), sampling) for i, prompt in enumerate(prompts))


def parts_of(store: Store) -> WeightParts:
    """Bytes of the model's parts, as they are stored."""
    return sum_parts(store.model_config, lambda spec: store.manifest.contents.weight(spec).num_bytes)


def together(runner: Runner, token_ids: Sequence[Sequence[int]], start: int, max_len: int) -> Batch:
    """A step of sequences of equal length, each in KV blocks of its own for ``max_len`` tokens, and with a state of its
    own; ``start`` is the position of each one's first token."""
    from strata.scheduler.batch import Batch, ScheduledSequence

    own = -(-max_len // runner.block_size)
    num_blocks = -(-(start + len(token_ids[0])) // runner.block_size)

    def part(i: int, ids: Sequence[int]) -> ScheduledSequence:
        blocks = tuple(range(i * own, i * own + num_blocks))
        state = i if runner.num_states else None
        return ScheduledSequence(str(i), tuple(ids), start, blocks, samples=True, state_slot=state)

    return Batch(tuple(part(i, ids) for i, ids in enumerate(token_ids)))


def table(rows: Mapping[str, str]) -> tuple[str, ...]:
    """Lines for people, one a figure."""
    return tuple(f"{name:<16} {value}" for name, value in rows.items())


def check_positive(**numbers: int) -> None:
    """Raise OptionError naming the first number that is not 1 or more."""
    for name, number in numbers.items():
        if number < 1:
            raise OptionError(f"{name} is {number}; 1 or more is needed")
