"""Runs cases, each in a process of its own, and says how far it is. A failure is a row like any other."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.benchmarks import rows
from tests.benchmarks.cases import Case, Served, Store
from tests.benchmarks.rows import Row

STORE_SECONDS = 240.0
FIGURES = "figures.jsonl"  # all that was printed, for those who want more than a page


class CommandError(Exception):
    """A command did not do what it should; the message says why. ``printed``: by it before."""

    def __init__(self, message: str, printed: str = "") -> None:
        super().__init__(message)
        self.printed = printed


@dataclass
class Bench:
    """``strata``: the command. ``directory``: of stores and logs. ``budget``: seconds after which no case begins."""

    strata: Sequence[str]
    directory: Path
    budget: float
    began: float = field(default_factory=time.monotonic)
    rates: str | None = None  # as the first case measured them

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    def say(self, text: str) -> None:
        """Progress."""
        print(f"[{self.elapsed:5.0f} s] {text}", flush=True)

    def prepare(self, stores: Sequence[Store], warm: Sequence[Case]) -> None:
        """Write stores that are not there side by side, and build kernels meanwhile. What fails shows in the cases."""
        self.directory.mkdir(parents=True, exist_ok=True)
        writing = [(store, self._begin(store)) for store in stores if not self._path(store).exists()]
        for case in warm:
            self.say(f"building kernels: {' '.join(case.arguments)}")
            with contextlib.suppress(CommandError):
                self._command(["bench", "shape", *case.store.arguments, "--out", str(self._path(case.store))], 60)
            for row in self.run(case):
                self.say(f"  {row.problem or 'built'}")
        self.rates = None  # nothing else runs from now on
        for store, process in writing:
            try:
                process.wait(max(1.0, STORE_SECONDS - self.elapsed))
            except subprocess.TimeoutExpired:
                _end(process)
            self.say(f"{store.name}: {'written' if process.returncode == 0 else f'failed ({process.returncode})'}")

    def run_all(self, cases: Sequence[Case | Served]) -> Iterator[Row]:
        """Rows as they come."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for number, case in enumerate(cases, start=1):
            what = " ".join(case.arguments) if isinstance(case, Case) else "serve"
            self.say(f"{number}/{len(cases)} {case.name}: {what}")
            for row in self.run(case):
                self.say(f"  {row.what}: {row.problem or row.figure}")
                yield row

    def run(self, case: Case | Served) -> list[Row]:
        """One case."""
        what = case.arguments[0] if isinstance(case, Case) else "server"
        left = self.budget - self.elapsed
        if left <= 0:
            return [Row(case.name, what, problem=f"not measured: {self.budget:.0f} s were over")]
        path, seconds = str(self._path(case.store)), min(case.seconds, left)
        try:
            if isinstance(case, Served):
                return self._serve(case, path, seconds)
            kind, *options = case.arguments
            printed = self._command(["bench", kind, path, *options, "--json"], seconds)
            self.rates = self.rates or rows.rates(printed)
            with (self.directory / FIGURES).open("a", encoding="utf-8") as file:
                file.write(printed)
            return rows.measured(case.name, printed)
        except CommandError as error:
            return [*rows.measured(case.name, error.printed), Row(case.name, what, problem=str(error))]

    # --- inside

    def _path(self, store: Store) -> Path:
        return self.directory / store.name

    def _begin(self, store: Store) -> subprocess.Popen[bytes]:
        command = [*self.strata, "bench", "shape", *store.arguments, "--out", str(self._path(store))]
        self.say(f"writing {store.name}: {' '.join(store.arguments)}")
        with self._log(store.name).open("wb") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def _log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def _command(self, arguments: Sequence[str], seconds: float) -> str:
        """What ``strata ARGUMENTS`` prints. Raises CommandError."""
        process = subprocess.Popen(
            [*self.strata, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, error = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            _end(process)
            raise CommandError(f"took more than {seconds:.0f} s", process.communicate()[0]) from None
        if process.returncode != 0:
            lines = error.strip().splitlines() or ["nothing was said"]
            raise CommandError(f"ended with {process.returncode}: {lines[-1]}", out)
        return out

    def _serve(self, case: Served, path: str, seconds: float) -> list[Row]:
        deadline = time.monotonic() + seconds
        with self._server(path, max(case.streams), deadline) as url:
            load = ["bench", "serve", "--url", url, "--json", "--concurrency"]
            mix = f"1:{case.ttft_prompt}:16"
            idle = self._command([*load, "1", "--mix", mix, "--requests", "16"], deadline - time.monotonic())
            found = [rows.first_token(case.name, case.ttft_prompt, idle)]
            for streams in case.streams:
                options = [str(streams), "--mix", f"1:64:{case.output_tokens}", "--requests", str(max(4, 2 * streams))]
                try:
                    found += rows.served(case.name, self._command([*load, *options], deadline - time.monotonic()))
                except CommandError as error:
                    found.append(Row(case.name, f"client of a server, {streams} streams", problem=str(error)))
            return found

    @contextlib.contextmanager
    def _server(self, path: str, streams: int, deadline: float) -> Iterator[str]:
        """Its address, once it is ready. Raises CommandError."""
        options = ["--port", "0", "--max-num-seqs", str(streams), "--max-model-len", "4096"]
        log = self._log("serve")
        with log.open("w") as stderr:
            process = subprocess.Popen(
                [*self.strata, "serve", path, *options],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
            )
        assert process.stdout is not None
        watch = _Deadline(process, deadline)
        try:
            line = process.stdout.readline()  # comes when the model is loaded
            if not line.startswith("Strata serves "):
                said = log.read_text().strip().splitlines() or ["nothing was said"]
                raise CommandError(f"the server did not become ready: {said[-1]}")
            yield line.split()[-1]
        finally:
            watch.cancel()
            _end(process)
            process.stdout.close()


class _Deadline:
    """Ends a process that nothing else waits for in time."""

    def __init__(self, process: subprocess.Popen[str], deadline: float) -> None:
        import threading

        self._timer = threading.Timer(max(0.1, deadline - time.monotonic()), lambda: _end(process))
        self._timer.daemon = True
        self._timer.start()

    def cancel(self) -> None:
        self._timer.cancel()


def _end(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """It and what it has started: gently, and after a while not."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
            return
