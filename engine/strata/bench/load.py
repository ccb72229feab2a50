"""A model loaded for a measurement, and what all measurements do with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from strata.config import CacheConfig, DeviceConfig, EngineConfig, SchedulerConfig
from strata.errors import OptionError
from strata.plan.hardware import num_cpus
from strata.runner.threads import spin_briefly

if TYPE_CHECKING:
    from strata.runner.runner import Runner
    from strata.scheduler.batch import Batch
    from strata.store.reader import Store

Progress = Callable[[str, int, int], None]  # phase ("convert", "load", ...), done, total


def open_runner(
    source: str, dtype: str, *, device: str, num_threads: int | None, max_model_len: int, progress: Progress
) -> tuple[Store, Runner]:
    """Convert the model if need be and load it, with a KV cache for one sequence of ``max_model_len`` tokens.

    ``num_threads``: of a CPU; None takes one a CPU. The number stays, where a server would look for a better one.
    Raises UsageError when the model, the device or a setting is at fault.
    """
    spin_briefly()
    from strata.config.engine import DEVICES, DTYPES
    from strata.runner.runner import Runner
    from strata.store.locate import resolve
    from strata.store.reader import Store

    for name, value, allowed in (("dtype", dtype, DTYPES), ("device", device, DEVICES)):
        if value not in allowed:
            raise OptionError(f"{name} is {value!r}; one of {', '.join(allowed)} is needed")
    store = Store.open(resolve(source, dtype, progress=lambda done, total: progress("convert", done, total)))
    config = EngineConfig(
        model=source,
        dtype=cast("Any", dtype),
        device=DeviceConfig(device=cast("Any", device), num_threads=num_threads or num_cpus()),
        cache=CacheConfig(),
        scheduler=SchedulerConfig(max_model_len=max_model_len, max_num_seqs=1),
    )
    return store, Runner.load(store, config, lambda done, total: progress("load", done, total))


def alone(runner: Runner, token_ids: Sequence[int], start: int = 0) -> Batch:
    """A step of the only sequence there is, in the first KV blocks; ``start`` is the first token's position."""
    from strata.scheduler.batch import Batch, ScheduledSequence

    num_blocks = -(-(start + len(token_ids)) // runner.block_size)
    return Batch((ScheduledSequence("bench", tuple(token_ids), start, tuple(range(num_blocks)), samples=True),))


def table(rows: Mapping[str, str]) -> tuple[str, ...]:
    """Lines for people, one a figure."""
    return tuple(f"{name:<16} {value}" for name, value in rows.items())


def check_positive(**numbers: int) -> None:
    """Raise OptionError naming the first number that is not 1 or more."""
    for name, number in numbers.items():
        if number < 1:
            raise OptionError(f"{name} is {number}; 1 or more is needed")
