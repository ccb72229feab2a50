"""Chat templates, with the conventions of Hugging Face."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from strata.errors import CheckpointError, RequestError
from strata.server import template
from strata.server.template import ChatTemplate

HELLO = [{"role": "user", "content": "<hello> & 'é'"}]


def render(source: str, **special: str) -> str:
    return ChatTemplate(source, special, origin="test").render(HELLO)


def test_special_tokens_and_the_generation_prompt_are_given() -> None:
    source = (
        "{{ bos_token }}{{ messages[0].content }}{% if add_generation_prompt %}[assistant]{% endif %}{{ eos_token }}"
    )
    assert render(source, bos_token="<s>", eos_token="</s>") == "<s><hello> & 'é'[assistant]</s>"


def test_blocks_leave_no_blank_lines() -> None:
    assert render("{% for m in messages %}\n    {% if true %}\nx\n    {% endif %}\n{% endfor %}\n") == "x\n"


def test_tojson_keeps_every_character() -> None:
    """Jinja's own filter escapes for HTML, which would change the prompt."""
    assert render("{{ messages[0].content | tojson }}") == "\"<hello> & 'é'\""
    assert render("{{ {'a': [1]} | tojson(indent=2) }}") == '{\n  "a": [\n    1\n  ]\n}'


def test_loop_controls_and_the_generation_tag_work() -> None:
    assert render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"
    assert render("a{% generation %}{{ messages[0].role }}{% endgeneration %}b") == "auserb"


def test_strftime_now_gives_the_date() -> None:
    assert re.fullmatch(r"\d{4}", render("{{ strftime_now('%Y') }}"))
    assert render("{{ strftime_now('%Y') }}") in {str(datetime.now().year), str(datetime.now().year - 1)}


def test_raise_exception_refuses_the_request_with_its_words() -> None:
    with pytest.raises(RequestError, match="roles must alternate") as caught:
        render("{{ raise_exception('roles must alternate') }}")
    assert caught.value.param == "messages"


def test_a_template_that_fails_on_the_messages_refuses_the_request() -> None:
    with pytest.raises(RequestError, match="TypeError"):
        render("{{ messages + 1 }}")
    with pytest.raises(RequestError, match="no attribute 'tool'"):
        render("{{ messages[0].tool.name }}")


@pytest.mark.parametrize(
    "source",
    [
        pytest.param("{{ messages.append(1) }}", id="changes its argument"),
        pytest.param("{{ ''.__class__.__mro__ }}", id="reaches for the interpreter"),
        pytest.param("{{ ''['__class__'].__mro__ }}", id="by a subscript"),
        pytest.param("{{ (''|attr('__class__')).__mro__ }}", id="by a filter"),
        pytest.param("{{ raise_exception.__globals__.x }}", id="through a function"),
        pytest.param("{{ '{0.__class__.__mro__}'.format('') }}", id="by formatting"),
        pytest.param("{{ self.__init__.__globals__.x }}", id="through the template"),
        pytest.param("{{ cycler.__init__.__globals__.os.x }}", id="through a global"),
        pytest.param("{% set x = messages.clear() %}", id="clears its argument"),
    ],
)
def test_a_template_stays_in_its_sandbox(source: str) -> None:
    with pytest.raises(RequestError, match=r"unsafe|not safe"):
        render(source)


def test_a_text_that_is_no_template_is_a_fault_of_the_checkpoint() -> None:
    with pytest.raises(CheckpointError, match=r"config\.json.*not valid Jinja"):
        ChatTemplate("{% for %}", {}, origin="config.json")


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process whose limits are soon met; afterwards one as it was."""
    template._PROCESS._end()
    code = (
        "from strata.server import template_process as p; p.CPU_SECONDS = 0.3; p.MEMORY_BYTES = 200 << 20; "
        "p.MAX_CHARACTERS = 1000; p.main()"
    )
    real = subprocess.Popen

    def start(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        assert command[1:] == ["-P", "-m", "strata.server.template_process"]
        return real([command[0], "-P", "-c", code], **options)

    monkeypatch.setattr(subprocess, "Popen", start)
    yield
    template._PROCESS._end()


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize(
    ("source", "words"),
    [
        pytest.param(
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "CPU time", id="loops"
        ),
        pytest.param("{% macro m(n) %}{{ m(n) }}{% endmacro %}{{ m(1) }}", "RecursionError", id="a macro in itself"),
        pytest.param(
            "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(40) }}",
            "CPU time",
            id="a macro twice in itself",
        ),
        pytest.param("{{ 9 ** (9 ** messages[0].n) }}", "CPU time", id="a power"),
        pytest.param("{{ ('a' * (10 ** messages[0].n)) | length }}", "memory", id="a huge text"),
        pytest.param("{{ [0] * (10 ** messages[0].n) }}", "memory", id="a huge list"),
        pytest.param("{{ 'a'.ljust(10 ** messages[0].n) }}", "memory", id="a wide text"),
        pytest.param("{{ '%999999999d' % 1 }}", "memory", id="a wide number"),
        pytest.param("{{ 'a' | center(999999999) }}", "memory", id="a filter's width"),
        pytest.param(
            "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
            "memory",
            id="doubled",
        ),
        pytest.param("{{ range(10 ** messages[0].n) | list }}", "OverflowError", id="a long range"),
        pytest.param("{{ lipsum(n=100000000) }}", "CPU time|memory", id="words for nothing"),
        pytest.param("{{ 'a' * 1001 }}", "1001 characters; at most 1000", id="a long answer"),
    ],
)
def test_a_template_cannot_take_more_than_it_has(source: str, words: str) -> None:
    """And the next one is served as ever."""
    with pytest.raises(RequestError, match=words) as caught:
        ChatTemplate(source, {}, origin="test").render([{"n": 9}])
    assert caught.value.code == "invalid_messages"
    assert render("{{ messages[0].role }}") == "user"


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize(
    ("source", "words"),
    [
        pytest.param(
            "{{ 'a' | center(30000000) | wordwrap(1) }}", "cannot be compiled: it takes more than", id="a constant"
        ),
        pytest.param("{{ " + "(" * 5000 + ")" * 5000 + " }}", "not valid Jinja", id="nested too deeply"),
    ],
)
def test_a_text_that_cannot_be_compiled_ends_nobody(source: str, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        ChatTemplate(source, {}, origin="test")
    assert render("{{ messages[0].role }}") == "user"


def test_the_process_has_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    template._PROCESS._end()
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert render("{{ messages[0].role }}") == "user"
    running = template._PROCESS._running
    assert running is not None
    environment = Path(f"/proc/{running.pid}/environ").read_bytes()
    assert b"PATH=" in environment
    assert b"secret" not in environment


def test_a_process_that_was_killed_is_started_again() -> None:
    assert render("a") == "a"
    running = template._PROCESS._running
    assert running is not None
    running.kill()
    running.wait()
    assert render("a") == "a"


@pytest.mark.parametrize(
    "messages",
    [
        pytest.param([{"role": "user", "content": "a" * (8 << 20)}], id="one text"),
        pytest.param([{"role": "user", "content": "😀" * (2 << 20)}], id="of wide characters"),
        pytest.param([{"role": "user", "content": "a"}] * 280_000, id="many messages"),
    ],
)
def test_the_largest_conversations_have_room(messages: list[dict[str, str]]) -> None:
    source = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    text = ChatTemplate(source, {}, origin="test").render(messages)
    assert len(text) == sum(len("<|user|>") + len(message["content"]) for message in messages)
