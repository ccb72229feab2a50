"""Which parser a model gets."""

from __future__ import annotations

import pytest

from strata.server.output.formats import Formats, call_parser
from strata.server.output.harmony import Harmony
from strata.server.output.hermes import Hermes
from strata.server.output.llama import Llama
from strata.server.output.thinking import Plain, Thinking
from tests.server.families import TEMPLATES
from tests.server.output.reading import TOOLS, Told, read

PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"


def choose(
    template: str, tools: str = "auto", reasoning: str = "auto", vocabulary: frozenset[str] = frozenset()
) -> Formats:
    return Formats.choose(tools, reasoning, template=template, vocabulary=vocabulary)


def names(formats: Formats) -> tuple[str | None, str | None]:
    return (formats.tools.name if formats.tools else None), formats.reasoning


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("qwen", ("hermes", "think")),
        ("qwen_coder", ("qwen-xml", None)),
        ("llama", ("llama", None)),
        ("mistral", ("mistral", None)),
        ("harmony", ("harmony", "harmony")),
        ("deepseek", (None, "think")),
    ],
)
def test_the_chat_template_shows_the_formats(family: str, expected: tuple[str | None, str | None]) -> None:
    assert names(choose(TEMPLATES[family])) == expected


def test_a_template_that_shows_nothing_leaves_plain_text() -> None:
    formats = choose(PLAIN)
    assert names(formats) == (None, None)
    assert not formats.reads(with_tools=True)
    assert isinstance(formats.parser(TOOLS), Plain)
    assert formats.marks(with_tools=True) == frozenset()


def test_tokens_of_reasoning_show_it_too() -> None:
    assert names(choose(PLAIN, vocabulary=frozenset({"<think>", "</think>"}))) == (None, "think")


def test_a_name_overrules_the_template() -> None:
    assert names(choose(TEMPLATES["qwen"], "llama", "none")) == ("llama", None)
    assert names(choose(PLAIN, "mistral", "think")) == ("mistral", "think")
    assert names(choose(TEMPLATES["harmony"], "none", "none")) == (None, None)


def test_tools_are_looked_for_only_where_they_are_offered() -> None:
    formats = choose(TEMPLATES["llama"])
    assert not formats.reads(with_tools=False)
    assert isinstance(formats.parser({}), Plain)
    assert isinstance(formats.parser(TOOLS), Llama)
    assert formats.marks(with_tools=False) == frozenset()
    assert formats.marks(with_tools=True) == frozenset({"<|python_tag|>"})


def test_harmony_is_read_in_every_answer() -> None:
    formats = choose(TEMPLATES["harmony"])
    assert isinstance(formats.parser({}), Harmony)
    assert "<|channel|>" in formats.marks(with_tools=False)


def test_reasoning_stands_around_the_calls() -> None:
    formats = choose(TEMPLATES["qwen"])
    text = 'Hm.</think><tool_call>{"name": "now"}</tool_call>'
    assert read(formats.parser(TOOLS, is_thinking=True), [text]) == Told("", "Hm.", [("now", "{}")])
    assert isinstance(formats.parser({}), Thinking)
    assert isinstance(choose(TEMPLATES["qwen"], reasoning="none").parser(TOOLS), Hermes)


# --- what the server writes before a forced answer


@pytest.mark.parametrize("family", ["qwen", "llama", "mistral", "harmony"])
def test_a_forced_call_begins_as_the_model_would_begin_it(family: str) -> None:
    """The lead and what the grammar lets through make a call in the family's own format."""
    formats = choose(TEMPLATES[family])
    text = formats.call_lead("weather", is_thinking=False) + ' {"city": "Oslo"}'
    told = read(formats.parser(TOOLS), [text])
    assert [(name, arguments.strip()) for name, arguments in told.calls] == [("weather", '{"city": "Oslo"}')]
    assert told.content == ""


@pytest.mark.parametrize("family", ["qwen", "llama", "mistral"])
def test_so_does_one_whose_tool_the_model_chooses(family: str) -> None:
    formats = choose(TEMPLATES[family])
    text = f'{formats.call_lead(None, is_thinking=False)}{{"name": "now", "{formats.arguments_key}": {{}}}}'
    assert read(formats.parser(TOOLS), [text]) == Told("", "", [("now", "{}")])


def test_a_forced_answer_ends_the_reasoning_that_the_prompt_began() -> None:
    formats = choose(TEMPLATES["deepseek"])
    assert formats.answer_lead(is_thinking=True) == "</think>\n\n"
    assert formats.answer_lead(is_thinking=False) == ""
    assert formats.call_lead("now", is_thinking=True).startswith("</think>\n\n<tool_call>")
    assert choose(TEMPLATES["harmony"]).answer_lead(is_thinking=False) == "<|channel|>final<|message|>"
    assert choose(TEMPLATES["harmony"]).call_lead(None, is_thinking=False).count("<|channel|>") == 1


def test_what_follows_the_lead_is_read_as_a_call() -> None:
    assert read(call_parser(TOOLS, "now"), ["{}"]) == Told("", "", [("now", "{}")])
    for key in ("arguments", "parameters"):
        assert read(call_parser(TOOLS, None), [f'{{"name": "now", "{key}": {{}}}}']) == Told("", "", [("now", "{}")])
