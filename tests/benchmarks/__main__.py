"""``make bench-gpu``."""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

from strata.cli.version import revision
from strata.plan.hardware import num_cpus
from tests.benchmarks.cases import SUITE, WARM
from tests.benchmarks.page import page
from tests.benchmarks.run import Bench

ROOT = Path(__file__).parents[2]


def main() -> int:
    """1 if a row has no figure."""
    parser = argparse.ArgumentParser(prog="make bench-gpu", description=__doc__)
    parser.add_argument("--directory", type=Path, default=Path("/tmp/strata-bench"), help="of stores and logs")
    parser.add_argument("--budget", type=float, default=510.0, metavar="S", help="seconds after which no case begins")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "benchmarks.md", help="what is written")
    parser.add_argument("--commit", default=None, help="that is measured (default: the checkout's)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only cases whose name or options contain it")
    arguments = parser.parse_args()
    facts = _facts(arguments.commit)
    if "card" not in facts:
        print("bench-gpu needs an NVIDIA GPU; without one: strata bench decode builtin://smollm2-135m", file=sys.stderr)
        return 2
    bench = Bench([sys.executable, "-m", "strata.cli.main"], arguments.directory, arguments.budget)
    chosen = [case for case in SUITE if arguments.only in f"{case.name} {' '.join(getattr(case, 'arguments', ()))}"]
    stores = list(dict.fromkeys(case.store for case in chosen))
    shapes = {store.shape for store in stores}
    bench.prepare(stores, [case for case in WARM if case.store.shape in shapes])
    rows = []
    for row in bench.run_all(chosen):
        rows.append(row)
        rates = {} if bench.rates is None else {"rates": bench.rates}
        arguments.page.write_text(page(facts | rates, rows), "utf-8")  # what there is, should this one be ended
    bench.say(f"{arguments.page} is written")
    return int(any(row.problem for row in rows))


def _facts(commit: str | None) -> dict[str, str]:
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    name, memory, driver = (part.strip() for part in said.splitlines()[0].split(","))
    found = [f"{package} {version(package)}" for package in ("torch", "triton")]
    return {
        "card": f"{name}, {memory}",
        "driver": driver,
        "host": f"{_cpu()}, {num_cpus()} CPUs",
        "versions": ", ".join([f"Python {platform.python_version()}", *found]),
        "commit": commit or revision(ROOT / "engine" / "strata") or "unknown",
        "date": time.strftime("%Y-%m-%d"),
    }


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown CPU")


if __name__ == "__main__":
    sys.exit(main())
