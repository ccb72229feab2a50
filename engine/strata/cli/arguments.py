"""How `strata` reads its command line: values with ranges, help with examples, errors that say what is allowed."""

from __future__ import annotations

import argparse
import importlib.util
import math
import re
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, NoReturn, TypeVar

from strata.doctor.packages import EXTRAS, install_hint
from strata.errors import OptionError

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(\[[0-9a-f:]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?")  # as browsers send it
T = TypeVar("T")

MAX_AMOUNT = 1e9  # of any unit, and 1 / MAX_AMOUNT the least: what is computed from it stays finite, and fits 64 bits


class Parser(argparse.ArgumentParser):
    """Raises OptionError where argparse would print and exit; shows the epilog's examples as they are written."""

    def __init__(self, **options: object) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        options["allow_abbrev"] = False
        super().__init__(**options)  # type: ignore[arg-type]

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuses what is not known here, so that the subcommand that was asked can name its nearest option."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            near = get_close_matches(unknown[0].partition("=")[0], self._option_string_actions, n=1)
            guess = f", which has {near[0]}" if near else ""
            raise OptionError(f"{' '.join(unknown)}: not known to '{self.prog}'{guess}; see '{self.prog} --help'")
        return found, unknown

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """Refuses ``--option=--``, of which argparse makes an empty list, whatever the option's type."""
        if action.option_strings and arg_strings == ["--"]:
            raise argparse.ArgumentError(action, "'--' is no value")
        return super()._get_values(action, arg_strings)

    def error(self, message: str) -> NoReturn:
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction) and message.endswith(f"required: {action.metavar}"):
                message = f"no {action.metavar} given; name one: {', '.join(action.choices)}"
        raise OptionError(f"{message.removeprefix('argument ')}; see '{self.prog} --help'")


def whole(low: int, high: int | None = None) -> Callable[[str], int]:
    """A whole number from ``low`` to ``high``, both included."""
    allowed = f"a whole number from {low} to {high}" if high is not None else f"a whole number of {low} or more"

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if value < low or (high is not None and value > high):
            raise argparse.ArgumentTypeError(f"{text!r} is not allowed; give {allowed}")
        return value

    return convert


def share(text: str) -> float:
    """A number above 0, up to 1."""
    return _number(text, lambda value: 0 < value <= 1, "a number above 0, up to 1")


def probability(text: str) -> float:
    """A number from 0 to 1."""
    return _number(text, lambda value: 0 <= value <= 1, "a number from 0 to 1")


def positive(text: str) -> float:
    """A number above 0, neither so small nor so large that nothing can be computed from it."""
    return _number(text, lambda value: 1 / MAX_AMOUNT <= value <= MAX_AMOUNT, f"a number above 0, up to {MAX_AMOUNT:g}")


def gibibytes(text: str) -> int:
    """GiB as bytes."""
    return int(_number(text, _is_amount, f"a number of GiB from 0 to {MAX_AMOUNT:g}") * (1 << 30))


def milliseconds(text: str) -> float | None:
    """Milliseconds as seconds; 0 is None."""
    return _number(text, _is_amount, f"a number of milliseconds up to {MAX_AMOUNT:g}, or 0 for none") / 1000 or None


def _is_amount(value: float) -> bool:
    return 0 <= value <= MAX_AMOUNT


def _number(text: str, accepts: Callable[[float], bool], allowed: str) -> float:
    """``accepts`` is asked of nan where ``text`` is no number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not accepts(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; give {allowed}")
    return value


def origins(text: str) -> tuple[str, ...]:
    """Origins of web pages, separated by commas: a scheme and a host each, or * for all."""
    found = tuple(part.strip().rstrip("/") for part in text.split(","))
    for origin in found:
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise argparse.ArgumentTypeError(
                f"{origin!r} is no origin; give a scheme and a host like https://chat.example (more with commas), or *"
            )
    return found


def listed(convert: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """Values with commas between them, each read by ``convert``."""

    def convert_all(text: str) -> tuple[T, ...]:
        return tuple(convert(part.strip()) for part in text.split(","))

    return convert_all


def require(*packages: str, extra: str = "serve") -> None:
    """Raises OptionError with what to install when one of an extra's packages is not there; none named: of all that it
    brings. Imports none of them."""
    table = EXTRAS[extra]
    missing = [name for name in packages or table if not _is_there(table[name])]
    if missing:
        raise OptionError(f"{', '.join(missing)} is not installed; this command needs: {install_hint(extra)}")


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # nor is the package that it is in
        return False
