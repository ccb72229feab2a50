"""Builds parts with the Go toolchain, or takes them from the cache."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.cluster.errors import BuildError, PrerequisiteError, last_lines
from tests.cluster.parts import PARTS, Part, cache_root
from tests.cluster.shell import locked, run

# Where Go's own installer puts it; sudo forgets that the caller has it on the PATH.
_GO_BIN = "/usr/local/go/bin"
Report = Callable[[str], None]


def build(parts: Iterable[Part], report: Report = print) -> None:
    """Makes every part available in the cache, with a line and a time for each.

    May be interrupted anywhere and run again: a part appears under its name only when it is complete, and what the
    compiler had finished is in Go's own cache. Two builders take turns.

    Raises BuildError with the compiler's last lines, PrerequisiteError when Go is missing or too old.
    """
    parts = tuple(parts)
    if all(part.is_built for part in parts):  # nobody waits for another's build of a part he does not need
        report(f"cluster parts: all {len(parts)} from cache ({cache_root()})")
        return
    with locked(cache_root() / "lock", lambda: report("cluster parts: another process is building; waiting for it")):
        missing = [part for part in parts if not part.is_built]
        if missing:
            check_go(missing)
        for number, part in enumerate(parts, start=1):
            label = f"cluster parts [{number}/{len(parts)}] {part.label}"
            if part.is_built:
                report(f"{label}: from cache")
                continue
            report(f"{label}: building, about {part.seconds} s on 2 cores")
            start = time.monotonic()
            _compile(part)
            report(f"{label}: built in {time.monotonic() - start:.0f} s")


def check_go(parts: Iterable[Part]) -> None:
    needed = max(part.go_version for part in parts)
    wanted = ".".join(str(number) for number in needed)
    try:
        found = subprocess.run(
            ["go", "env", "GOVERSION"], capture_output=True, text=True, check=True, env=_environment()
        ).stdout.strip()
    except FileNotFoundError:
        raise PrerequisiteError(f"Go is not on the PATH; install Go {wanted} or newer (https://go.dev/dl)") from None
    except subprocess.CalledProcessError as error:
        raise PrerequisiteError(f"`go env GOVERSION` failed: {error.stderr.strip()}") from error
    if parse_go_version(found) < needed:
        raise PrerequisiteError(f"Go is {found}, but the cluster's parts need {wanted} or newer (https://go.dev/dl)")


def parse_go_version(text: str) -> tuple[int, ...]:
    """("go1.26.8") -> (1, 26, 8). A release candidate counts as its release; a development build as the newest."""
    numbers = text.removeprefix("go").split(" ")[0].split("rc")[0].split("-")[0].split(".")
    if not all(number.isdigit() for number in numbers):
        return (999,)
    return tuple(int(number) for number in numbers)


def clean() -> list[str]:
    """Removes what this version of the project does not use from the cache; returns the names of what went."""
    kept = {part.folder.name for part in PARTS} | {"lock", "registry"}
    with locked(cache_root() / "lock"):
        stale = [path for path in cache_root().iterdir() if path.name not in kept]
        for path in stale:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return sorted(path.name for path in stale)


def _compile(part: Part) -> None:
    for leftover in cache_root().glob(f".{part.name}-*"):  # of a builder that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    log = cache_root() / f"{part.name}.log"
    with tempfile.TemporaryDirectory(prefix=f".{part.name}-", dir=cache_root()) as scratch:
        out = Path(scratch) / "out"
        out.mkdir()
        if not part.binaries:
            _finish(part, out)
            return
        command = ["go", "build", "-trimpath", "-tags", part.tags, "-ldflags", part.ldflags, "-o", f"{out}/"]
        with log.open("wb") as output:
            status = subprocess.run(
                [*command, *part.binaries.values()],
                cwd=part.source,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            ).returncode
        if status != 0:
            how = f"killed by {signal.Signals(-status).name}" if status < 0 else f"status {status}"
            raise BuildError(f"{part.label} did not build ({how}); the end of {log}:\n{last_lines(log)}")
        _name_binaries(part, out)
        _finish(part, out)


def _finish(part: Part, out: Path) -> None:
    _copy_files(part, out)
    out.chmod(0o755)
    out.rename(part.folder)


def _name_binaries(part: Part, out: Path) -> None:
    # Go names a program after its package's folder, which says "server" where we say "etcd".
    if len(part.binaries) == 1:
        (name,) = part.binaries
        (built,) = out.iterdir()
        built.rename(out / name)
    missing = [name for name in part.binaries if not (out / name).is_file()]
    if missing:
        raise BuildError(f"{part.name}: the build left no {', '.join(missing)}")


def _copy_files(part: Part, out: Path) -> None:
    if part.files:
        told = run(["go", "mod", "download", "-json", part.upstream], cwd=part.source, env=_environment())
        module = Path(json.loads(told)["Dir"])
        for file in part.files:
            (out / Path(file).name).write_bytes((module / file).read_bytes())


def _environment() -> dict[str, str]:
    """The caller's, so that proxies and Go's folders stay as set, less what would change the outcome."""
    return os.environ | {
        "CGO_ENABLED": "0",
        "GOFLAGS": "-mod=readonly -buildvcs=false",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
        "GOOS": "linux",
        "PATH": f"{os.environ.get('PATH', os.defpath)}:{_GO_BIN}",
    }
