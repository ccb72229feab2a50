"""However a text is cut, the same is told of it; and what is no call stays in the answer to the letter."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from strata.server.output.deltas import Parser
from strata.server.output.harmony import Harmony
from strata.server.output.hermes import Hermes
from strata.server.output.llama import Llama
from strata.server.output.mistral import Mistral
from strata.server.output.qwen_xml import QwenXml
from strata.server.output.thinking import Plain, Thinking
from tests.server.output.reading import TOOLS, read

# Whole answers, one of each format, and what is put into them: marks, halves of calls, characters with a meaning.
ANSWERS = [
    'So:\n<tool_call>\n{"name": "weather", "arguments": {"city": "a}\\"b"}}\n</tool_call>\n'
    '<tool_call>{"name": "now"}</tool_call>',
    '{"type": "function", "name": "now", "parameters": {"x": [1]}, "z": "y"}; {"parameters": {}, "name": "now"} end',
    'So: [TOOL_CALLS] [{"name": "now", "arguments": {}}, {"arguments": {}, "name": "now"}] [TOOL_CALLS]now[ARGS]{} ',
    "So:\n<tool_call>\n<function=weather>\n<parameter=city>\nOs\nlo\n\n</parameter>\n<parameter=days>\n5\n</parameter>\n"
    "</function>\n</tool_call>\n",
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.now json<|message|>{}"
    "<|end|><|start|>assistant<|channel|>final<|message|>So.<|end|>",
    '<think>\nHm.\n</think>\n\nSo: <tool_call>{"name": "now", "arguments": {}}</tool_call>',
]
FRAGMENTS = [
    *["<tool_call>", "</tool_call>", "<think>", "</think>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"],
    *["<|start|>", "<|channel|>final", "<|message|>", "<|end|>", "<function=weather>", "</function>", "</parameter>"],
    *["<parameter=city>", "<parameter=days>", '{"name": "now", "arguments": {', '"name": "now"', "weather", "5", "é"],
    *["{", "}", "[", "]", '"', "\\", ",", ";", ":", "<", ">", " ", "\n", "a"],
]


@st.composite
def texts(draw: st.DrawFn) -> str:
    """An answer with up to three places changed: some characters taken out, a fragment put in."""
    text = draw(st.sampled_from(ANSWERS))
    for _ in range(draw(st.integers(0, 3))):
        start, length = draw(st.integers(0, len(text))), draw(st.sampled_from([0, 0, 1, 2, 10, 100]))
        text = text[:start] + draw(st.sampled_from(["", *FRAGMENTS])) + text[start + length :]
    return text


PARSERS: dict[str, Callable[[], Parser]] = {
    "hermes": lambda: Hermes(TOOLS),
    "llama": lambda: Llama(TOOLS),
    "mistral": lambda: Mistral(TOOLS),
    "qwen_xml": lambda: QwenXml(TOOLS),
    "harmony": lambda: Harmony(TOOLS),
    "thinking": lambda: Thinking(Plain(), is_open=False),
    "opened thinking": lambda: Thinking(Hermes(TOOLS), is_open=True),
}


@pytest.mark.parametrize("make", PARSERS.values(), ids=PARSERS)
@settings(max_examples=50)
@example(text='{"name": "now", "parameters": {}, "a}": 1}', cuts={37})
@example(text='<tool_call>{"name": "now", "arguments": {}, "a": "}"}', cuts={50})
@given(text=texts(), cuts=st.sets(st.integers(1, 200), max_size=9))
def test_any_cut_tells_the_same(make: Callable[[], Parser], text: str, cuts: set[int]) -> None:
    borders = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    pieces = [text[start:end] for start, end in pairwise(borders)]
    whole = read(make(), [text])
    assert read(make(), pieces) == whole
    assert read(make(), list(text)) == whole


@pytest.mark.parametrize("name", ["hermes", "llama", "mistral", "qwen_xml"])
@given(text=texts())
def test_a_text_without_a_call_is_the_answer_to_the_letter(name: str, text: str) -> None:
    told = read(PARSERS[name](), [text])
    if not told.calls:
        assert told.content == text
