"""What can go wrong, as messages for a terminal.

ClusterError
├── PrerequisiteError   the machine lacks something: root, Go, a package
├── BuildError          a part did not compile; ends with the compiler's last lines
├── CommandError        a program that was run said no; ends with what it said
├── StartError          a process died or did not become ready; ends with its log's last lines
└── ApiError            the API server refused a request; `status` is the HTTP code
"""

from __future__ import annotations

from pathlib import Path


class ClusterError(Exception):
    """Base of everything that this package raises on purpose."""


class PrerequisiteError(ClusterError):
    pass


class BuildError(ClusterError):
    pass


class CommandError(ClusterError):
    pass


class StartError(ClusterError):
    pass


class ApiError(ClusterError):
    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def last_lines(path: Path, lines: int = 15) -> str:
    """The end of a text file, indented for an error message; a note in its place when there is nothing to show."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 64 * 1024))
            text = file.read().decode(errors="replace").rstrip()
    except OSError as error:
        return f"    ({path}: {error.strerror})"
    return "\n".join(f"    {line}" for line in text.splitlines()[-lines:]) or f"    ({path} is empty)"
