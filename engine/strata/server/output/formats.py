"""The formats by name, and which of them a model writes.

A format is recognised by what the model's own chat template shows of it, so no list of model names has to be kept.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Collection
from dataclasses import dataclass

from strata.server.output import thinking
from strata.server.output.deltas import Parser, Tools
from strata.server.output.forced import NamedCall
from strata.server.output.harmony import CHANNEL, MESSAGE, Harmony
from strata.server.output.hermes import Hermes
from strata.server.output.llama import Llama
from strata.server.output.machine import Machine
from strata.server.output.mistral import Mistral
from strata.server.output.qwen_xml import QwenXml
from strata.server.output.thinking import Plain, Thinking


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How calls are written.

    shown_by: what a chat template of this format holds, all of it. any_lead, named_lead: the server begins a call that
    the request forces where the model would, and a grammar holds the rest to JSON. After ``any_lead`` that is an object
    of the name and, under ``arguments_key``, the arguments; after ``named_lead``, with the tool's name for NAME, the
    arguments alone. id_length, has_single_calls: templates may want the ids of calls to have just so many letters and
    digits, and no message to have more than one call.
    """

    name: str
    parser: type[Machine]
    shown_by: tuple[str, ...]
    any_lead: str
    named_lead: str
    arguments_key: str = "arguments"
    id_length: int | None = None
    has_single_calls: bool = False


HERMES = ToolFormat("hermes", Hermes, ("<tool_call>",), "<tool_call>\n", '<tool_call>\n{"name": "NAME", "arguments":')
QWEN_XML = ToolFormat("qwen-xml", QwenXml, ("<function=", "<parameter="), HERMES.any_lead, HERMES.named_lead)
LLAMA = ToolFormat(
    "llama",
    Llama,
    ("<|start_header_id|>", '"parameters"'),
    "",
    '{"name": "NAME", "parameters":',
    "parameters",
    has_single_calls=True,
)
MISTRAL = ToolFormat(
    "mistral",
    Mistral,
    ("[TOOL_CALLS]",),
    "[TOOL_CALLS][",
    '[TOOL_CALLS][{"name": "NAME", "arguments":',
    id_length=9,
)
HARMONY = ToolFormat(
    "harmony",
    Harmony,
    (CHANNEL, MESSAGE),
    f"{CHANNEL}commentary <|constrain|>json{MESSAGE}",
    f"{CHANNEL}commentary to=functions.NAME <|constrain|>json{MESSAGE}",
    has_single_calls=True,
)

# The first that a template shows is the model's, so the more particular ones stand first.
TOOL_FORMATS = {format_.name: format_ for format_ in (HARMONY, QWEN_XML, HERMES, MISTRAL, LLAMA)}
REASONING_FORMATS = ("harmony", "think")


@dataclass(frozen=True, slots=True)
class Formats:
    """What one model writes; None where it has no such thing, or nobody knows."""

    tools: ToolFormat | None
    reasoning: str | None

    @classmethod
    def choose(cls, tools: str, reasoning: str, *, template: str, vocabulary: Collection[str]) -> Formats:
        """By name, "none", or "auto": from the chat template, and the tokens that the tokenizer has."""
        if tools == "auto":
            shown = (format_ for format_ in TOOL_FORMATS.values() if all(text in template for text in format_.shown_by))
            tool_format = next(shown, None)
        else:
            tool_format = TOOL_FORMATS.get(tools)
        if reasoning == "auto":
            thinks = thinking.CLOSE in template or thinking.CLOSE in vocabulary
            reasoning = "harmony" if all(text in template for text in HARMONY.shown_by) else "think" if thinks else ""
        return cls(tool_format, reasoning if reasoning in REASONING_FORMATS else None)

    @property
    def has_harmony(self) -> bool:
        """Whether channels tell reasoning, answer and calls apart: then they do so in every answer."""
        return self.reasoning == "harmony" or self.tools is HARMONY

    @property
    def has_single_calls(self) -> bool:
        """Whether the model's template wants a message for each call."""
        return self.tools is not None and self.tools.has_single_calls

    def reads(self, *, with_tools: bool) -> bool:
        """Whether an answer is more than plain content."""
        return self.has_harmony or self.reasoning is not None or (with_tools and self.tools is not None)

    def parser(self, tools: Tools, *, is_thinking: bool = False) -> Parser:
        """For one answer. ``is_thinking``: the prompt has begun the reasoning."""
        if self.has_harmony:
            return Harmony(tools)
        calls = self.tools.parser(tools) if tools and self.tools is not None else Plain()
        return calls if self.reasoning is None else Thinking(calls, is_open=is_thinking)

    def marks(self, *, with_tools: bool) -> frozenset[str]:
        """Special tokens that the text must show to the parser."""
        if self.has_harmony:
            return frozenset(Harmony.marks)
        calls = self.tools.parser.marks if with_tools and self.tools is not None else ()
        return frozenset(calls) | frozenset(Thinking.marks if self.reasoning is not None else ())

    def new_call_id(self) -> str:
        """A name for a call, by which the conversation will come back to it."""
        length = None if self.tools is None else self.tools.id_length
        return f"call_{uuid.uuid4().hex}" if length is None else uuid.uuid4().hex[:length]

    def fitting_id(self, call_id: str) -> str:
        """The name that a client gave a call, or in its place another that the model's template takes."""
        length = None if self.tools is None else self.tools.id_length
        if length is None or (len(call_id) == length and call_id.isalnum()):
            return call_id
        return hashlib.sha256(call_id.encode()).hexdigest()[:length]

    # --- answers that a grammar forces: the server writes their beginning

    def answer_lead(self, *, is_thinking: bool) -> str:
        """What stands before an answer without reasoning."""
        if self.has_harmony:
            return f"{CHANNEL}final{MESSAGE}"
        return f"{thinking.CLOSE}\n\n" if is_thinking else ""

    def call_lead(self, name: str | None, *, is_thinking: bool) -> str:
        """What stands before a forced call: ``named_lead`` of this tool, or ``any_lead``."""
        format_ = self.tools or HERMES
        lead = format_.any_lead if name is None else format_.named_lead.replace("NAME", name)
        return lead if self.has_harmony else self.answer_lead(is_thinking=is_thinking) + lead

    @property
    def arguments_key(self) -> str:
        """How a forced call's object names the arguments."""
        return (self.tools or HERMES).arguments_key


def call_parser(tools: Tools, name: str | None) -> Parser:
    """For what a grammar holds to a call: the arguments of ``name``, or a bare object whatever the format around it."""
    return Llama(tools) if name is None else NamedCall(name)
