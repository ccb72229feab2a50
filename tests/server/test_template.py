"""Chat templates, with the conventions of Hugging Face."""

from __future__ import annotations

import re
from datetime import datetime

import pytest

from strata.errors import CheckpointError, RequestError
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
    ],
)
def test_a_template_stays_in_its_sandbox(source: str) -> None:
    with pytest.raises(RequestError, match=r"unsafe|not safe"):
        render(source)


def test_a_text_that_is_no_template_is_a_fault_of_the_checkpoint() -> None:
    with pytest.raises(CheckpointError, match=r"config\.json.*not valid Jinja"):
        ChatTemplate("{% for %}", {}, origin="config.json")
