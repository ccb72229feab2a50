"""The process in which chat templates run, in Jinja's immutable sandbox and with little to spend.

A template comes with the checkpoint, and may be anybody's: it may neither reach beyond its values, nor take more than
its time and memory. The kernel ends a process that computes for too long; the next one is started when it is needed.

It reads requests from standard input and answers on standard output, each a frame of JSON. Templates are written for
Hugging Face's ``apply_chat_template``; this environment has the same functions, filters and tags.
"""

from __future__ import annotations

import json
import resource
import signal
import struct
import sys
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

CPU_SECONDS = 5.0  # of one template and one conversation; a thousand times what they take
# Of addresses. The interpreter has 25 MiB; conversations of 8 MiB, however they are cut, take up to 125 in all.
MEMORY_BYTES = 256 << 20
MAX_CHARACTERS = 16 << 20  # of a prompt; a request has 8 MiB
_LENGTH = struct.Struct("<Q")


def write_frame(stream: IO[bytes], message: Any) -> None:
    """Send one message. Raises OSError where nobody reads."""
    data = json.dumps(message).encode()
    stream.write(_LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()


def read_frame(stream: IO[bytes]) -> Any:
    """The next message. Raises EOFError where there is none, or not all of it."""
    head = stream.read(_LENGTH.size)
    if len(head) == _LENGTH.size:
        (length,) = _LENGTH.unpack(head)
        data = stream.read(length)
        if len(data) == length:
            return json.loads(data)
    raise EOFError("the other side has closed")


def main() -> None:
    """Answer until the input ends. SIGPROF's ordinary action is the end, in the middle of whatever is computed."""
    for number in (signal.SIGINT, signal.SIGTERM):  # its parent decides what they mean
        signal.signal(number, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):  # where memory ends all the same, this goes before the engine
        Path("/proc/self/oom_score_adj").write_text("1000")
    while True:
        try:
            message = read_frame(sys.stdin.buffer)
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        answer = _answer(message)
        signal.setitimer(signal.ITIMER_PROF, 0)
        write_frame(sys.stdout.buffer, answer)


def _answer(message: dict[str, Any]) -> dict[str, Any]:
    """The names that a template reads or, with values for them, its text; or what went wrong."""
    try:
        if "values" not in message:
            return {"names": _names(message["source"])}
        text = _compiled(message["source"]).render(message["values"])
        if len(text) > MAX_CHARACTERS:
            return {"refused": f"its text has {len(text)} characters; at most {MAX_CHARACTERS} are taken"}
        return {"text": text}
    except TemplateError as error:
        return {"refused": str(error)}
    except MemoryError:
        return {"limit": f"more than {MEMORY_BYTES >> 20} MiB of memory"}
    except Exception as error:  # noqa: BLE001  templates compute with what they are given, and fail like any program
        return {"failed": f"{type(error).__name__}: {error}"}


def _names(source: str) -> list[str]:
    _compiled(source)
    return sorted(find_undeclared_variables(_environment().parse(source)) - set(_environment().globals))


@lru_cache(maxsize=4)
def _compiled(source: str) -> Template:
    return _environment().from_string(source)


class _GenerationTag(Extension):
    """``{% generation %}`` marks the assistant's text for training; here it only encloses it."""

    tags = {"generation"}  # noqa: RUF012  jinja2 declares it as a variable of the instance

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


@lru_cache(maxsize=1)
def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationTag]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes <, > and &, which a prompt must keep.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


if __name__ == "__main__":
    main()
