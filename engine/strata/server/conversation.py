"""From a chat request to the text that the model continues, and to how its answer is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from strata.errors import RequestError
from strata.request import Grammar
from strata.server.output import thinking
from strata.server.output.formats import Formats, call_parser
from strata.server.reading import Reading
from strata.server.schemas import ChatRequest
from strata.server.template import ChatTemplate
from strata.server.turns import turns_of

_EFFORTS = ("low", "medium", "high")  # that models are trained on


@dataclass(frozen=True, slots=True)
class Opening:
    """What precedes an answer, and what is known of it. reading: None when all of the answer is plain content. grammar:
    what holds a forced call; None leaves the answer to the request's own."""

    prompt: str
    reading: Reading | None
    grammar: Grammar | None


def open_chat(body: ChatRequest, template: ChatTemplate, formats: Formats) -> Opening:
    """Raises RequestError when the model cannot do what the request asks for."""
    use = body.tool_use
    _check_tools(body, template, formats)
    prompt = template.render(
        turns_of(body.messages, formats),
        tools=[tool.turn for tool in use.offered],
        variables=_variables(body, template),
    )
    is_thinking = prompt.rstrip().endswith(thinking.OPEN)
    if use.is_forced:
        name, schemas = use.forced_name, use.schemas
        lead = formats.call_lead(name, is_thinking=is_thinking)
        reading = Reading(lambda: call_parser(schemas, name), formats.new_call_id)
        return Opening(prompt + lead, reading, use.grammar(arguments_key=formats.arguments_key))
    if body.grammar is not None:
        return Opening(prompt + formats.answer_lead(is_thinking=is_thinking), None, None)
    schemas = use.schemas
    if not formats.reads(with_tools=bool(schemas)):
        return Opening(prompt, None, None)
    reading = Reading(
        lambda: formats.parser(schemas, is_thinking=is_thinking),
        formats.new_call_id,
        formats.marks(with_tools=bool(schemas)),
        is_parallel=use.is_parallel,
    )
    return Opening(prompt, reading, None)


def _check_tools(body: ChatRequest, template: ChatTemplate, formats: Formats) -> None:
    use = body.tool_use
    if not use.offered:
        return
    if body.grammar is not None:
        raise RequestError(
            "an answer in a given form leaves no room for calls; send the 'tools' with the tool_choice \"none\", or "
            "leave the form out",
            param="tools",
            code="unsupported_parameter",
        )
    if not template.takes_tools:
        message = "this model's chat template shows it no tools, so it cannot call any; leave 'tools' out"
        raise RequestError(message, param="tools", code="unsupported_parameter")
    if formats.tools is None and not use.is_forced:
        raise RequestError(
            "nobody knows how this model writes its calls; start the server with --tool-call-parser, or force a call "
            "with 'tool_choice'",
            param="tools",
            code="unsupported_parameter",
        )


def _variables(body: ChatRequest, template: ChatTemplate) -> dict[str, Any]:
    """What the request sets in the template."""
    given = dict(body.chat_template_kwargs or {})
    if (body.grammar is not None or body.tool_use.is_forced) and "enable_thinking" in template.variables:
        given.setdefault("enable_thinking", False)  # there is no room for it
    for name in given:
        if name not in template.variables:
            allowed = ", ".join(sorted(template.variables)) or "none"
            raise RequestError(
                f"{name!r} is no variable of this model's chat template; there are: {allowed}",
                param="chat_template_kwargs",
            )
    effort = body.reasoning_effort
    if effort is None:
        return given
    if "reasoning_effort" in template.variables:
        if effort not in _EFFORTS:
            raise RequestError(
                f"'reasoning_effort' is {effort!r}; for this model it must be one of: {', '.join(_EFFORTS)}",
                param="reasoning_effort",
            )
        return {"reasoning_effort": effort, **given}
    if "enable_thinking" in template.variables:
        return {"enable_thinking": effort != "none", **given}
    raise RequestError(
        "this model's chat template knows no 'reasoning_effort'; leave it out",
        param="reasoning_effort",
        code="unsupported_parameter",
    )
