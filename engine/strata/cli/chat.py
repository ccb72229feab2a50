"""`strata chat`: a conversation with a running server, on the standard library alone."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, NamedTuple

from strata.bench.serve.address import API_KEY, DEFAULT_URL
from strata.cli.arguments import whole
from strata.errors import OptionError, StrataError

if TYPE_CHECKING:
    from strata.cli.client import Client

_CUT_OFF = "cut off at the largest number of tokens; --max-tokens sets it, the model's context bounds it"
_STOPPED = "stopped"
ONE_ANSWER_TOKENS = 1024  # a small model may repeat itself until its context is full

EPILOG = """examples:
  strata chat                                       talk; /reset starts afresh, /exit ends, Ctrl-C stops an answer
  strata chat "Why is the sky blue?"                one answer; Ctrl-C stops it
  strata chat --system "Answer in French." --url http://gpu-box:8000

STRATA_API_KEY holds the key for a server that asks for one.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command and its options."""
    parser = commands.add_parser(
        "chat",
        help="talk to a running server",
        description="Talk to a running server; answers are shown as they come.",
        epilog=EPILOG,
    )
    parser.set_defaults(run=run)
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="one question (default: a conversation)")
    parser.add_argument("--url", default=DEFAULT_URL, help=f"address of the server (default: {DEFAULT_URL})")
    parser.add_argument("--model", metavar="NAME", help="name of the model (default: the server's first)")
    parser.add_argument(
        "--system", metavar="TEXT", help="instruction that stands before the conversation (default: none)"
    )
    parser.add_argument(
        "--max-tokens",
        type=whole(1),
        metavar="N",
        help=f"tokens of an answer, at most (default: {ONE_ANSWER_TOKENS} with PROMPT, or half of the model's context "
        "if that is less; in a conversation what the context leaves)",
    )


def run(arguments: argparse.Namespace) -> int:
    """One answer, or a conversation until /exit or the end of input."""
    if arguments.prompt is not None and not arguments.prompt.strip():
        raise OptionError("the prompt is empty; give a question, or none for a conversation")

    from strata.cli.client import Client

    client = Client(arguments.url, arguments.model, os.environ.get(API_KEY))
    system = [{"role": "system", "content": arguments.system}] if arguments.system else []
    limit = arguments.max_tokens
    if arguments.prompt is None:
        _converse(client, system, limit)
        return 0
    if limit is None:
        context = client.context()
        limit = ONE_ANSWER_TOKENS if context is None else max(min(ONE_ANSWER_TOKENS, context // 2), 1)
    answer = _answer(client, [*system, {"role": "user", "content": arguments.prompt}], limit)
    if answer.is_stopped:
        raise KeyboardInterrupt  # has an exit code of its own
    return 0


class Answer(NamedTuple):
    """What was shown, and whether Ctrl-C ended it."""

    text: str
    is_stopped: bool


def _converse(client: Client, system: list[dict[str, str]], limit: int | None) -> None:
    on_terminal = sys.stdin.isatty()
    model = client.model()  # a server that is not there is reported before the first question
    if on_terminal:
        import readline  # noqa: F401  gives input() its line editing and history

        print(f"Talking to {model}. /reset starts afresh, /exit ends, Ctrl-C stops an answer.")
    messages = list(system)
    while True:
        try:
            line = input("> " if on_terminal else "").strip()
        except (EOFError, KeyboardInterrupt):
            print()
            return
        if line == "/exit":
            return
        if line == "/reset":
            messages = list(system)
        elif line.startswith("/"):
            print(f"{line} is no command; there are /reset and /exit")
        elif line:
            messages.append({"role": "user", "content": line})
            try:
                messages.append({"role": "assistant", "content": _answer(client, messages, limit).text})
            except StrataError as error:
                if not on_terminal:
                    raise
                messages.pop()  # the question can be put again
                print(f"strata: error: {error}", file=sys.stderr)


def _answer(client: Client, messages: list[dict[str, str]], limit: int | None) -> Answer:
    """Show an answer of at most ``limit`` tokens as it comes. Ctrl-C ends it, and with it the server's work on it.

    Reasoning goes to standard error, in grey on a terminal, and so does a word about an answer that was cut off: what
    is piped on is the answer.
    """
    texts: list[str] = []
    end = ""
    grey, plain = ("\033[90m", "\033[0m") if sys.stderr.isatty() else ("", "")
    is_reasoning = False
    pieces = client.stream(messages, max_tokens=limit)
    try:
        for text, is_thought, finish_reason in pieces:
            if finish_reason is not None:
                end = _CUT_OFF if finish_reason == "length" else ""
                continue
            if is_thought != is_reasoning:
                print(grey if is_thought else f"{plain}\n", end="" if is_thought else "\n", file=sys.stderr, flush=True)
                is_reasoning = is_thought
            if is_thought:
                print(text, end="", file=sys.stderr, flush=True)
            else:
                texts.append(text)
                print(text, end="", flush=True)
    except KeyboardInterrupt:
        end = _STOPPED
    finally:
        pieces.close()
        if is_reasoning:
            print(plain, file=sys.stderr, flush=True)
        if texts:
            print()
    if end:
        print(f"[{end}]", file=sys.stderr)
    return Answer("".join(texts), is_stopped=end == _STOPPED)
