"""A conversation to the text that the model was trained on, by the checkpoint's own Jinja template."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from strata.errors import CheckpointError, EngineError, RequestError
from strata.server.template_process import CPU_SECONDS, read_frame, write_frame

_ALWAYS_GIVEN = {"messages", "tools", "add_generation_prompt"}
_ENVIRONMENT = ("LANG", "LC_ALL", "PATH", "TZ")  # that the process hears of; no token is among them


class ChatTemplate:
    """``source``: the Jinja text. ``special_tokens``: what the template may name, e.g. ``{"bos_token": "<s>"}``.

    It runs in a process of its own, see ``template_process``. ``origin`` names the file in errors. Raises
    CheckpointError when the text is no template.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str], *, origin: str) -> None:
        match _PROCESS.ask({"source": source}):
            case {"names": found}:
                names = set(found)
            case {"limit": limit}:
                raise CheckpointError(f"{origin}: the chat template cannot be compiled: it takes {limit}")
            case {"refused": why} | {"failed": why}:
                raise CheckpointError(f"{origin}: the chat template is not valid Jinja: {why}")
        self.source = source
        self._special_tokens = dict(special_tokens)
        # What a request may set: the variables that the template reads, beside those that it always gets.
        self.variables = names - _ALWAYS_GIVEN - self._special_tokens.keys()
        self.takes_tools = "tools" in names

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] = MappingProxyType({}),
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt for the next answer. Waits for the process: call it in a thread. Raises RequestError when the
        template refuses the conversation, or takes too much of time or memory."""
        given = {"messages": list(messages), "tools": list(tools) or None}
        values = {**self._special_tokens, **variables, **given, "add_generation_prompt": add_generation_prompt}
        answer = _PROCESS.ask({"source": self.source, "values": values})
        match answer:
            case {"text": str(text)}:
                return text
            case {"refused": why}:
                message = f"the model's chat template refuses these messages: {why}"
            case {"limit": limit}:
                message = f"the model's chat template takes {limit} on these messages, and was ended"
            case _:
                message = f"the model's chat template fails on these messages: {answer['failed']}"
        raise RequestError(message, param="messages", code="invalid_messages")


class _Process:
    """Runs templates for all of this interpreter, one at a time: to start another one takes a fifth of a second."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: subprocess.Popen[bytes] | None = None

    def ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to one request; "limit" where the process did not live to give it. Raises EngineError where none
        can be started."""
        with self._lock:
            running = self._running
            if running is None or running.poll() is not None:
                running = self._start()
            assert running.stdin is not None
            assert running.stdout is not None
            try:
                write_frame(running.stdin, message)
                answer: dict[str, Any] = read_frame(running.stdout)
            except (EOFError, OSError, ValueError):
                return {"limit": self._end()}
            if "limit" in answer:
                self._end()  # what it has left of its memory is in pieces
            return answer

    def _start(self) -> subprocess.Popen[bytes]:
        self._end()
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        try:
            self._running = subprocess.Popen(
                [sys.executable, "-P", "-m", "strata.server.template_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # it has texts of requests
                env=environment,
            )
        except OSError as error:
            raise EngineError(f"the process for chat templates cannot be started: {error}") from error
        atexit.unregister(self._end)
        atexit.register(self._end)
        return self._running

    def _end(self) -> str:
        """End the process that runs, if one does; gives what it was ended for, if it was."""
        running, self._running = self._running, None
        if running is None:
            return ""
        running.kill()  # does nothing to one that has ended
        with suppress(OSError), running:  # closes its pipes, and waits
            pass
        if running.returncode == -signal.SIGPROF:
            return f"more than {CPU_SECONDS:g} s of CPU time"
        return f"more than its process has (it ended with {running.returncode})"


_PROCESS = _Process()
