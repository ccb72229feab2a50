"""Texts to tokens and back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from tokenizers.processors import TemplateProcessing

from tests.server.chats import HELLO, WEATHER
from tests.server.conftest import Serve, ServeFamily
from tests.server.test_app import error_of

Encode = Callable[[str], list[int]]
TEXT = "hello 😀 world"


def test_a_text_becomes_tokens_and_a_text_again(serve: Serve, encode: Encode) -> None:
    client = serve().client
    answer = client.post("/tokenize", json={"prompt": TEXT, "return_token_strs": True}).json()
    assert answer["tokens"] == encode(TEXT)
    assert (answer["count"], answer["max_model_len"]) == (len(encode(TEXT)), 256)
    assert len(answer["token_strs"]) == answer["count"]
    assert answer["token_strs"][0] == "he"
    assert client.post("/detokenize", json={"tokens": answer["tokens"]}).json() == {"prompt": TEXT}


def test_without_being_asked_there_are_no_token_strs(serve: Serve) -> None:
    assert "token_strs" not in serve().client.post("/tokenize", json={"prompt": "a"}).json()


def test_a_conversation_becomes_the_tokens_of_its_chat(serve: Serve) -> None:
    served = serve()
    messages = [{"role": "user", "content": "hello"}]
    answer = served.client.post("/tokenize", json={"messages": messages, "model": "alias"}).json()
    served.chat(messages=messages)
    assert tuple(answer["tokens"]) == served.engine.requests[0].prompt_token_ids
    text = served.client.post("/detokenize", json={"tokens": answer["tokens"]}).json()["prompt"]
    assert text == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        pytest.param("qwen", {"tools": [WEATHER]}, id="tools"),
        pytest.param("qwen", {"tools": [WEATHER], "tool_choice": "required"}, id="a call that is begun"),
        pytest.param("qwen", {"reasoning_effort": "none"}, id="no thinking"),
        pytest.param("harmony", {"reasoning_effort": "high"}, id="much thinking"),
        pytest.param("qwen", {"chat_template_kwargs": {"enable_thinking": False}}, id="a variable"),
        pytest.param("qwen", {"response_format": {"type": "json_object"}}, id="a form"),
        pytest.param("harmony", {"structured_outputs": {"choice": ["a", "b"]}}, id="a form in vLLM's words"),
    ],
)
def test_what_shapes_the_prompt_of_a_chat_shapes_it_here(
    serve_family: ServeFamily, family: str, fields: dict[str, object]
) -> None:
    served = serve_family(family, "hello")
    assert served.chat(**fields).status_code == 200
    tokens = served.client.post("/tokenize", json={"messages": HELLO, **fields}).json()["tokens"]
    assert tuple(tokens) == served.engine.requests[0].prompt_token_ids
    assert tokens != served.client.post("/tokenize", json={"messages": HELLO}).json()["tokens"]


def test_what_goes_around_a_prompt_can_be_left_out(serve: Serve, store: Path, tmp_path: Path) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(store / "tokenizer.json"))
    tokenizer.post_processor = TemplateProcessing(single="<|end|> $A", special_tokens=[("<|end|>", 0)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    client = serve(directory=tmp_path).client
    whole = client.post("/tokenize", json={"prompt": "a"}).json()["tokens"]
    assert whole[0] == 0
    bare = client.post("/tokenize", json={"prompt": "a", "add_special_tokens": False}).json()["tokens"]
    assert bare == whole[1:]


def test_a_text_longer_than_the_context_is_counted(serve: Serve, encode: Encode) -> None:
    text = "hello " * 5_000
    answer = serve(max_model_len=32).client.post("/tokenize", json={"prompt": text}).json()
    assert (answer["count"], answer["max_model_len"]) == (len(encode(text)), 32)


@pytest.mark.parametrize(
    ("max_model_len", "longest"),
    [pytest.param(32, 1 << 20, id="of any model"), pytest.param(1 << 18, 1 << 21, id="as the context may hold")],
)
def test_a_text_that_would_keep_a_core_busy_is_refused(serve: Serve, max_model_len: int, longest: int) -> None:
    client = serve(max_model_len=max_model_len).client
    error = error_of(client.post("/tokenize", json={"prompt": "a" * (longest + 1)}), 400)
    assert (error["param"], error["code"]) == ("prompt", "text_too_long")
    assert f"{longest + 1} characters; at most {longest} are tokenised at once" in error["message"]


def test_an_empty_text_has_no_tokens(serve: Serve) -> None:
    client = serve().client
    assert client.post("/tokenize", json={"prompt": ""}).json()["tokens"] == []
    assert client.post("/detokenize", json={"tokens": []}).json() == {"prompt": ""}


def test_half_a_character_is_marked(serve: Serve, encode: Encode) -> None:
    answer = serve().client.post("/detokenize", json={"tokens": encode("a😀")[:-1]}).json()
    assert answer["prompt"] == "a\ufffd"


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        pytest.param("/tokenize", {}, "neither of 'prompt' and 'messages'", id="nothing"),
        pytest.param("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "both", id="both"),
        pytest.param("/tokenize", {"prompt": ["a"]}, "it must be a string", id="a list for a text"),
        pytest.param("/tokenize", {"messages": []}, "at least one message", id="no messages"),
        pytest.param("/tokenize", {"prompt": "a", "tools": []}, "'tools' is of conversations", id="tools of a text"),
        pytest.param(
            "/tokenize",
            {"messages": HELLO, "tool_choice": "required"},
            "there are no 'tools'",
            id="a choice of nothing",
        ),
        pytest.param("/tokenize", {"prompt": "a", "n": 2}, "'n' is no known field", id="an unknown field"),
        pytest.param("/detokenize", {}, "'tokens' is missing", id="no tokens"),
        pytest.param("/detokenize", {"tokens": [300]}, "token id 300; this model's ids go from 0", id="unknown token"),
        pytest.param("/detokenize", {"tokens": [-1]}, "token id -1", id="a token below zero"),
        pytest.param("/detokenize", {"tokens": "a"}, "it must be a list of token ids", id="a text for tokens"),
    ],
)
def test_what_cannot_be_done_is_refused(serve: Serve, path: str, body: dict[str, object], words: str) -> None:
    assert words in error_of(serve().client.post(path, json=body), 400)["message"]


def test_an_unknown_model_is_not_found(serve: Serve) -> None:
    for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": []})):
        assert error_of(serve().client.post(path, json={**body, "model": "gpt-4"}), 404)["param"] == "model"
