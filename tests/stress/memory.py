"""Memory of a server's processes, and of its card, while it works: whether it grows."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import combinations
from pathlib import Path
from types import TracebackType

from strata.errors import HardwareError
from strata.plan.nvml import open_nvml

MIB = 1 << 20
Samples = Sequence[tuple[float, float]]  # seconds, bytes


def slope(samples: Samples) -> float:
    """Bytes a second over the second half: the median over all pairs of samples, which single peaks do not move."""
    half = samples[len(samples) // 2 :]
    slopes = [(b - a) / (later - earlier) for (earlier, a), (later, b) in combinations(half, 2) if later > earlier]
    return statistics.median(slopes) if slopes else 0.0


def resident(pid: int, proc: Path = Path("/proc")) -> dict[str, float]:
    """Bytes of RAM of the server, which is process ``pid``, and of the engine: all processes that it has started."""
    children = [int(child) for child in (proc / f"{pid}/task/{pid}/children").read_text().split()]
    return {"server": _rss(proc / f"{pid}"), "engine": sum(_rss(proc / f"{child}") for child in children)}


def _rss(process: Path) -> float:
    lines = (process / "status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024.0 for line in lines if line.startswith("VmRSS:")), 0.0)


@contextmanager
def vram() -> Iterator[Callable[[], dict[str, float]]]:
    """What asks the first card for its bytes in use; without a card it knows of none."""
    with ExitStack() as stack:
        try:
            nvml = stack.enter_context(open_nvml())
        except HardwareError:
            yield dict
        else:
            yield lambda: {"VRAM": float(nvml.sample(0).vram_used_bytes or 0)}


class Watch(threading.Thread):
    """Within it, samples are taken every ``seconds``."""

    def __init__(self, look: Callable[[], Mapping[str, float]], seconds: float) -> None:
        super().__init__(daemon=True)
        self._look, self._seconds, self._ended = look, seconds, threading.Event()
        self.samples: dict[str, list[tuple[float, float]]] = {}

    def run(self) -> None:
        while not self._ended.wait(self._seconds):
            now = time.monotonic()
            for name, num_bytes in self._look().items():
                self.samples.setdefault(name, []).append((now, num_bytes))

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self.join()


def judge(samples: Mapping[str, Samples], bound: float) -> tuple[list[str], list[str]]:
    """Lines that tell of each, and of those that grew by more than ``bound`` bytes a minute, why that is too much."""
    lines, problems = [], []
    for name, mine in samples.items():
        sizes, rate = [num_bytes for _, num_bytes in mine], 60 * slope(mine)
        lines.append(
            f"{name}: {sizes[0] / MIB:.0f} MiB at first, {max(sizes) / MIB:.0f} at most, {sizes[-1] / MIB:.0f} "
            f"at last; {rate / MIB:+.2f} MiB a minute over the second half ({len(mine)} samples)"
        )
        if rate > bound:
            problems.append(f"{name} grows by {rate / MIB:.2f} MiB a minute; {bound / MIB:g} are allowed")
    return lines, problems
