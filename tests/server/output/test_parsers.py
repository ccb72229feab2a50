"""What each parser makes of whole answers, in the spellings that models use and in broken ones."""

from __future__ import annotations

import pytest

from strata.server.output.deltas import Arguments, Call, Content, Parser, Reasoning
from strata.server.output.forced import NamedCall
from strata.server.output.harmony import Harmony
from strata.server.output.hermes import Hermes
from strata.server.output.llama import Llama
from strata.server.output.mistral import Mistral
from strata.server.output.qwen_xml import QwenXml
from strata.server.output.thinking import Plain, Thinking
from tests.server.output.reading import TOOLS, Told, read

WEATHER = ("weather", '{"city": "Oslo"}')


def case(name: str, text: str, content: str = "", *calls: tuple[str, str], reasoning: str = "") -> object:
    return pytest.param(text, Told(content, reasoning, list(calls)), id=name)


def same(name: str, text: str) -> object:
    """No call, though it begins like one."""
    return case(name, text, text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        case("no call", "It is cold.\n", "It is cold.\n"),
        case(
            "text, then two calls",
            'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
            '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n',
            "Let me see.",
            WEATHER,
            ("now", "{}"),
        ),
        case(
            "braces, quotes and tags inside a string",
            '<tool_call>{"name": "weather", "arguments": {"city": "}\\"</tool_call>{"}}</tool_call>',
            "",
            ("weather", '{"city": "}\\"</tool_call>{"}'),
        ),
        case(
            "fields in another order",
            '<tool_call>{"arguments": {"city": "Oslo"}, "name": "weather"}</tool_call>',
            "",
            WEATHER,
        ),
        case("arguments as a string", '<tool_call>{"name": "now", "arguments": "{}"}</tool_call>', "", ("now", "{}")),
        case("no arguments", '<tool_call>{"name": "now"}</tool_call>', "", ("now", "{}")),
        case("a tool that the request lacks", '<tool_call>{"name": "x", "arguments": {}}</tool_call>', "", ("x", "{}")),
        case(
            "the end of the answer closes the tag",
            '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}',
            "",
            WEATHER,
        ),
        case(
            "the next tag closes the one before",
            '<tool_call>{"name": "now", "arguments": {}}<tool_call>{"name": "now", "arguments": {}}</tool_call>',
            "",
            ("now", "{}"),
            ("now", "{}"),
        ),
        case(
            "arguments cut off",
            '<tool_call>{"name": "weather", "arguments": {"city": "Os',
            "",
            ("weather", '{"city": "Os'),
        ),
        case(
            "arguments that stop being JSON",
            '<tool_call>{"name": "weather", "arguments": {"city": Oslo!}}</tool_call>',
            "!}}",
            ("weather", '{"city": Oslo'),
        ),
        case("prose in the tag", "a <tool_call>call it</tool_call> b", "a <tool_call>call it</tool_call> b"),
        case(
            "an object that is no call",
            '<tool_call>{"tool": "weather"}</tool_call>',
            '<tool_call>{"tool": "weather"}</tool_call>',
        ),
        case("a call cut off in its head", 'so: <tool_call>{"name": "wea', 'so: <tool_call>{"name": "wea'),
        case(
            "a broken head before a sound call",
            '<tool_call>{"name"; <tool_call>{"name": "now"}',
            '<tool_call>{"name";',
            ("now", "{}"),
        ),
        case("half of the tag", "a <tool_", "a <tool_"),
        case(
            "half of a surrogate pair as the name", '<tool_call>{"name": "\\ud800"}', '<tool_call>{"name": "\\ud800"}'
        ),
    ],
)
def test_hermes(text: str, told: Told) -> None:
    assert read(Hermes(TOOLS), [text]) == told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        case("no call", "It is cold.", "It is cold."),
        case("a bare object", '{"name": "weather", "parameters": {"city": "Oslo"}}', "", WEATHER),
        case("behind the tag", '<|python_tag|>{"name": "weather", "parameters": {"city": "Oslo"}}', "", WEATHER),
        case("with its type", '{"type": "function", "name": "now", "parameters": {}}', "", ("now", "{}")),
        case("with its type at the end", '{"name": "now", "parameters": {}, "type": "function"}', "", ("now", "{}")),
        case("two", '{"name": "now", "parameters": {}}; {"name": "now", "parameters": {}}', "", *[("now", "{}")] * 2),
        case("text behind a call", '{"name": "now", "parameters": {}}; done', "; done", ("now", "{}")),
        case("an answer in JSON", '{"city": "Oslo"}', '{"city": "Oslo"}'),
        case("an answer about somebody", '{"name": "Ada", "age": 36}', '{"name": "Ada", "age": 36}'),
        same("a tool that is not there", '{"name": "x", "parameters": {}}'),
        same("an object inside an answer", 'It is {"name": "now", "parameters": {}}'),
        same("code behind the tag", "<|python_tag|>print(1)"),
        same("cut off in the head", '{"name": "wea'),
    ],
)
def test_llama(text: str, told: Told) -> None:
    assert read(Llama(TOOLS), [text]) == told


def test_an_answer_in_json_is_not_held_back_to_its_end() -> None:
    assert Llama(TOOLS).feed('{"city": ') == [Content('{"city":')]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        case("no call", "It is [cold].", "It is [cold]."),
        case("a list", '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Oslo"}}]', "", WEATHER),
        case(
            "text, then a list of two",
            'Look: [TOOL_CALLS][{"name": "now", "arguments": {}}, {"name": "now", "arguments": {}}]',
            "Look:",
            *[("now", "{}")] * 2,
        ),
        case("a name", '[TOOL_CALLS]weather[ARGS]{"city": "Oslo"}', "", WEATHER),
        case("a name and an id", '[TOOL_CALLS]weather[CALL_ID]abcdef123[ARGS]{"city": "Oslo"}', "", WEATHER),
        case("two names", "[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]now[ARGS]{}", "", *[("now", "{}")] * 2),
        case("a list without its end", '[TOOL_CALLS] [{"name": "now", "arguments": {}}', "", ("now", "{}")),
        same("an empty list", "[TOOL_CALLS] []"),
        same("prose behind the mark", "[TOOL_CALLS] I will call {it}"),
        same("nothing behind the mark", "[TOOL_CALLS]"),
    ],
)
def test_mistral(text: str, told: Told) -> None:
    assert read(Mistral(TOOLS), [text]) == told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        case("no call", "It is <cold>.", "It is <cold>."),
        case(
            "two parameters, of two types",
            "Look:\n<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n3\n"
            "</parameter>\n</function>\n</tool_call>",
            "Look:",
            ("weather", '{"city": "Oslo", "days": 3}'),
        ),
        case(
            "a string of lines, quotes and numbers",
            '<tool_call><function=weather><parameter=city>\n1\n"2"\n\n</parameter></function></tool_call>',
            "",
            ("weather", '{"city": "1\\n\\"2\\"\\n"}'),
        ),
        case(
            "a parameter that the schema lacks is a string",
            "<tool_call><function=now><parameter=zone>5</parameter></function></tool_call>",
            "",
            ("now", '{"zone": "5"}'),
        ),
        case(
            "a value that is not of its type",
            "<tool_call><function=weather><parameter=days>many</parameter></function></tool_call>",
            "",
            ("weather", '{"days": "many"}'),
        ),
        case(
            "Python's spelling",
            "<tool_call><function=weather><parameter=days>True</parameter></function></tool_call>",
            "",
            ("weather", '{"days": true}'),
        ),
        case("no outer tag", "<function=now>\n</function> x", "x", ("now", "{}")),
        case("cut off", "<tool_call><function=weather><parameter=city>Os", "", ("weather", '{"city": "Os"}')),
        same("prose in the tag", "a <tool_call>call it</tool_call>"),
        same("no name", "<function= >"),
    ],
)
def test_qwen_xml(text: str, told: Told) -> None:
    assert read(QwenXml(TOOLS), [text]) == told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        case("an answer", "<|channel|>final<|message|>It is cold.", "It is cold."),
        case(
            "reasoning, then an answer",
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Cold.<|return|>",
            "Cold.",
            reasoning="Hm.",
        ),
        case(
            "reasoning, a preamble, a call",
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>Look:<|end|>"
            "<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
            '{"city": "Oslo"}<|call|>',
            "Look:",
            WEATHER,
            reasoning="Hm.",
        ),
        case(
            "the receiver before the channel",
            ' to=functions.weather<|channel|>commentary json<|message|>{"city": "Oslo"}',
            "",
            WEATHER,
        ),
        case(
            "two thoughts",
            "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b",
            reasoning="a\nb",
        ),
        case("no markup", "It is cold.", "It is cold."),
        case("cut off in a header", "<|channel|>final<|message|>a<|end|><|start|>assis", "a"),
        same("a header without end", "<|channel|>" + "x" * 400),
    ],
)
def test_harmony(text: str, told: Told) -> None:
    assert read(Harmony(TOOLS), [text]) == told


def test_harmony_without_tools_shows_what_is_addressed_to_one() -> None:
    text = "<|channel|>commentary to=functions.now<|message|>{}<|call|>"
    assert read(Harmony({}), [text]) == Told("{}")


@pytest.mark.parametrize("is_open", [False, True], ids=["tag in the answer", "tag in the prompt"])
@pytest.mark.parametrize(
    ("text", "told"),
    [
        case("reasoning, then an answer", "\nHm.\n</think>\n\nCold.\n", "Cold.\n", reasoning="Hm."),
        case("nothing thought", "\n\n</think>\n\nCold.", "Cold."),
        case(
            "a call behind it",
            'Hm.</think>\n<tool_call>{"name": "now"}</tool_call>',
            "",
            ("now", "{}"),
            reasoning="Hm.",
        ),
        case("a call inside is a thought", "<tool_call>", reasoning="<tool_call>"),
        case("cut off", "Hm. </thi", reasoning="Hm. </thi"),
        case("a tag in the answer", "</think>Write <think>.", "Write <think>."),
    ],
)
def test_thinking(text: str, told: Told, is_open: bool) -> None:
    if not is_open:
        text = f"<think>{text}"
    assert read(Thinking(Hermes(TOOLS), is_open=is_open), [text]) == told


def test_thinking_is_only_what_stands_first() -> None:
    assert read(Thinking(Plain(), is_open=False), ["\nCold <think>."]) == Told("\nCold <think>.")
    assert read(Thinking(Plain(), is_open=True), ["<think>Hm.</think>Cold."]) == Told("Cold.", "Hm.")


def test_a_forced_call_is_all_arguments() -> None:
    assert read(NamedCall("weather"), ['{"city": ', '"Oslo"}']) == Told("", "", [WEATHER])
    assert read(NamedCall("weather"), []) == Told("", "", [("weather", "")])


# --- what a stream shows early


def test_arguments_are_passed_on_while_they_arrive() -> None:
    parser = Hermes(TOOLS)
    assert parser.feed('<tool_call>{"name": "weather", "arguments": ') == []
    assert parser.feed('{"ci') == [Call("weather"), Arguments('{"ci')]
    assert parser.feed('ty": "Os') == [Arguments('ty": "Os')]
    assert parser.feed('lo"}}') == [Arguments('lo"}')]


def test_a_long_string_of_qwen_xml_is_passed_on_while_it_arrives() -> None:
    parser = QwenXml(TOOLS)
    parser.feed("<function=weather>")
    assert parser.feed("<parameter=city>\nOs") == [Arguments('"city": "Os')]
    assert parser.feed("lo\n") == [Arguments("lo")]
    assert parser.feed("</parameter>") == [Arguments('"')]


@pytest.mark.parametrize(
    "parser",
    [Hermes(TOOLS), Mistral(TOOLS), QwenXml(TOOLS), Llama(TOOLS), Thinking(Plain(), is_open=False)],
    ids=lambda parser: type(parser).__name__,
)
def test_text_passes_at_once_but_for_what_may_begin_a_mark(parser: Parser) -> None:
    assert parser.feed("It is") == [Content("It is")]
    assert parser.feed(" cold") == [Content(" cold")]


def test_reasoning_passes_at_once() -> None:
    parser = Thinking(Plain(), is_open=True)
    assert parser.feed("Hm, let") == [Reasoning("Hm, let")]
    assert parser.feed(" me") == [Reasoning(" me")]
