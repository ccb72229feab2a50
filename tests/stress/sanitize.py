"""compute-sanitizer over the tests of the GPU's kernels: reads and writes outside of what was allocated, and races in
shared memory.

Each file of tests runs in a process of its own, with a time limit, and each tensor in an allocation of its own, so that
what lies beside it is nobody's.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOUND = 86  # compute-sanitizer's exit code for what it found; pytest's are 0 to 5
NO_TESTS = 5
# Races are looked for where programs hand numbers from thread to thread by themselves. Elsewhere Triton's own pipelines
# (asynchronous copies, tensor cores) order shared memory in ways that the tool reports as hazards, and warps of a sum
# that have the same numbers all write their result, which is the same: so it does of the router's scores.
HANDED_OVER = ("test_misses.py", "test_prefetch.py", "test_argmax.py")


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one tool over one file. problem: "" where there is none."""

    tool: str
    file: str
    seconds: float
    tests: str
    problem: str

    def __str__(self) -> str:
        return f"{self.tool:9} {self.file:28} {self.seconds:5.0f} s  {self.tests:32} {self.problem or 'clean'}"


def outcome(tool: str, file: str, seconds: float, code: int | None, log: str) -> Outcome:
    """From the exit code (None: the time was over) and what was printed."""
    ran = re.findall(r"^=* ?((?:\d+ \w+,? ?)+) in ", log, re.MULTILINE)
    tests = ran[-1].strip() if ran else ""
    errors = re.findall(r"^={9} (?!COMPUTE-SANITIZER|ERROR SUMMARY: 0 |RACECHECK SUMMARY: 0 )\S.*", log, re.MULTILINE)
    match code:
        case None:
            problem = "not finished in time"
        case 0 if "passed" in tests and not errors:
            problem = ""
        case 0:
            problem = errors[0] if errors else "no test ran on a card"
        case _ if code == NO_TESTS:
            problem = "no test ran on a card"
        case _ if code == FOUND or errors:
            problem = errors[0] if errors else "the tool found something"
        case _:
            problem = f"pytest ended with {code}"
    return Outcome(tool, file, seconds, tests, problem)


def run(program: str, tool: str, path: Path, seconds: float, log: Path, options: Sequence[str]) -> Outcome:
    """One file. What it prints goes to ``log``. ``options``: more of pytest's."""
    command = [program, "--tool", tool, "--error-exitcode", str(FOUND), "--print-limit", "20", sys.executable]
    command += ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "cuda", "-o", "timeout=0", *options, str(path)]
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    began, code = time.monotonic(), None
    with log.open("w") as stream:
        try:
            done = subprocess.run(
                command, stdout=stream, stderr=stream, cwd=ROOT, env=environment, timeout=seconds, check=False
            )
            code = done.returncode
        except subprocess.TimeoutExpired:
            pass
    return outcome(tool, path.name, time.monotonic() - began, code, log.read_text("utf-8", "replace"))


def main(arguments: Sequence[str] | None = None) -> int:
    """1 where something was found, or not looked at."""
    parser = argparse.ArgumentParser(prog="make sanitize", description=__doc__)
    add = parser.add_argument
    add("--program", default=shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer")
    add("--files", nargs="*", type=Path, help="default: all of tests/kernels that run on a card")
    add("--seconds", type=float, default=300.0, help="for each file and tool (default: %(default)s)")
    add("--budget", type=float, default=3600.0, help="seconds after which no file begins (default: %(default)s)")
    add("--pytest", default="", metavar="OPTIONS", help="more options of pytest, in one string")
    add("--logs", type=Path, default=ROOT / "build" / "sanitize", help="default: build/sanitize")
    given = parser.parse_args(arguments)
    if not Path(given.program).is_file():
        print(f"{given.program} is not there; it comes with the CUDA toolkit (cuda-sanitizer)", file=sys.stderr)
        return 2
    files = given.files or [
        path
        for path in sorted((ROOT / "tests" / "kernels").glob("test_*.py"))
        if re.search("Machine|is_available", path.read_text())
    ]
    given.logs.mkdir(parents=True, exist_ok=True)
    outcomes, until = [], time.monotonic() + given.budget
    for path in files:
        for tool in ("memcheck", "racecheck") if path.name in HANDED_OVER else ("memcheck",):
            if (left := until - time.monotonic()) <= 0:
                outcomes.append(Outcome(tool, path.name, 0, "", "not begun: the time was over"))
            else:
                log = given.logs / f"{path.stem}.{tool}.log"
                outcomes.append(
                    run(given.program, tool, path, min(given.seconds, left), log, shlex.split(given.pytest))
                )
            print(outcomes[-1], flush=True)
    bad = [each for each in outcomes if each.problem]
    print(f"{len(outcomes) - len(bad)} of {len(outcomes)} clean; what was printed is in {given.logs}")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
