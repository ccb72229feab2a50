"""A conversation to the text that the model was trained on, by the checkpoint's own Jinja template.

Templates are written for Hugging Face's ``apply_chat_template``; this environment has the same functions, filters and
tags. It is sandboxed: a template comes with the checkpoint, and may neither change objects nor reach beyond them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from strata.errors import CheckpointError, RequestError

_ALWAYS_GIVEN = {"messages", "tools", "add_generation_prompt"}


class ChatTemplate:
    """``source``: the Jinja text. ``special_tokens``: what the template may name, e.g. ``{"bos_token": "<s>"}``.

    ``origin`` names the file in errors. Raises CheckpointError when the text is no template.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str], *, origin: str) -> None:
        environment = _environment()
        try:
            self._template = environment.from_string(source)
            names = find_undeclared_variables(environment.parse(source))
        except TemplateError as error:
            raise CheckpointError(f"{origin}: the chat template is not valid Jinja: {error}") from error
        self.source = source
        self._special_tokens = dict(special_tokens)
        # What a request may set: the variables that the template reads, beside those that it always gets.
        self.variables = names - _ALWAYS_GIVEN - set(environment.globals) - self._special_tokens.keys()
        self.takes_tools = "tools" in names

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] = MappingProxyType({}),
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt for the next answer. Raises RequestError when the template refuses the conversation."""
        given = {**self._special_tokens, **variables, "add_generation_prompt": add_generation_prompt}
        try:
            return self._template.render(messages=messages, tools=list(tools) or None, **given)
        except TemplateError as error:
            message = f"the model's chat template refuses these messages: {error}"
            raise RequestError(message, param="messages", code="invalid_messages") from error
        except (TypeError, ValueError, LookupError, ArithmeticError, RecursionError) as error:
            # Templates compute with the messages; one that meets what it did not expect fails like any program.
            message = f"the model's chat template fails on these messages: {type(error).__name__}: {error}"
            raise RequestError(message, param="messages", code="invalid_messages") from error


class _GenerationTag(Extension):
    """``{% generation %}`` marks the assistant's text for training; here it only encloses it."""

    tags = {"generation"}  # noqa: RUF012  jinja2 declares it as a variable of the instance

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


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
