"""Logprobs of chats and completions: whose they are, how they are written, and that they go with their text."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import log
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.request import TokenLogprobs
from strata.server.logprobs import ScoredText, ScoredToken, chat_logprobs, text_logprobs
from strata.server.stop import StopStrings
from strata.server.tokenizer import Detokenizer
from tests.server.conftest import Live, Serve
from tests.server.test_app import events

HALF = log(0.5)  # what the fake engine gives a drawn token
Encode = Callable[[str], list[int]]


def scored(data: bytes, offset: int, *top: tuple[bytes, float]) -> ScoredToken:
    return ScoredToken(data, offset, HALF, top)


def test_a_chat_has_token_bytes_and_the_likeliest(serve: Serve, encode: Encode) -> None:
    served = serve("hello 😀")
    choice = served.chat(logprobs=True, top_logprobs=2).json()["choices"][0]
    content = choice["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in content).decode() == choice["message"]["content"] == "hello 😀"
    assert len(content) == len(encode("hello 😀")), "the token that ends the answer is no part of it"
    assert all(entry["logprob"] == HALF for entry in content)
    assert content[0]["token"] == "he"
    assert [entry["logprob"] for entry in content[0]["top_logprobs"]] == [HALF, 2 * HALF]
    assert content[0]["top_logprobs"][0] == {key: content[0][key] for key in ("token", "logprob", "bytes")}
    assert content[-1] == {"token": "\\x80", "logprob": HALF, "bytes": [0x80]} | {
        "top_logprobs": content[-1]["top_logprobs"]
    }
    plain = served.chat().json()["choices"][0]
    assert plain["logprobs"] is None
    assert served.chat(logprobs=True).json()["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []


def test_a_completion_has_tokens_and_offsets(serve: Serve, encode: Encode) -> None:
    body = {"prompt": "a", "logprobs": 1}
    choice = serve("hello 😀 world").client.post("/v1/completions", json=body).json()["choices"][0]
    logprobs = choice["logprobs"]
    assert len({len(values) for values in logprobs.values()}) == 1
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        if not token.startswith("bytes:"):
            assert choice["text"][offset:].startswith(token)
    assert logprobs["tokens"][0] == "he"
    assert "bytes:\\xf0" in "".join(logprobs["tokens"])
    assert logprobs["top_logprobs"][0] == {"he": HALF}
    assert logprobs["token_logprobs"] == [HALF] * len(logprobs["tokens"])


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("text", ["hello 😀 world", "the quick", "é😀"])
def test_a_stream_has_the_same_logprobs_as_the_whole(serve: Serve, path: str, text: str) -> None:
    """Each chunk with text that a token made has that token; characters stay whole; n choices keep theirs."""
    is_chat = "chat" in path
    prompt: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}]} if is_chat else {"prompt": "a"}
    body = prompt | {"logprobs": True, "top_logprobs": 1} if is_chat else prompt | {"logprobs": 1}
    body |= {"n": 2, "stop": "zzz"}
    client = serve(text).client
    wholes = client.post(path, json=body).json()["choices"]
    chunks = [chunk["choices"][0] for chunk in events(client.post(path, json=body | {"stream": True}))[:-1]]
    for whole in wholes:
        own = [chunk for chunk in chunks if chunk["index"] == whole["index"]]
        parts = [chunk["text"] if "text" in chunk else chunk["delta"].get("content", "") for chunk in own]
        assert "".join(parts) == text
        assert not any("\ufffd" in part for part in parts)
        assert all(chunk["logprobs"] for chunk, part in zip(own, parts, strict=True) if part)
        for key in whole["logprobs"]:
            if whole["logprobs"][key] is not None:
                streamed = [entry for chunk in own if chunk["logprobs"] for entry in chunk["logprobs"][key]]
                assert streamed == whole["logprobs"][key]


def test_tokens_of_a_stop_string_are_not_shown(serve: Serve) -> None:
    served = serve("the quick brown fox")
    for stream in (False, True):
        response = served.client.post(
            "/v1/completions", json={"prompt": "a", "logprobs": 0, "stop": "ick b", "stream": stream}
        )
        choices = [c["choices"][0] for c in events(response)[:-1]] if stream else response.json()["choices"]
        tokens = [token for choice in choices if choice["logprobs"] for token in choice["logprobs"]["tokens"]]
        assert "".join(choice["text"] for choice in choices) == "the qu"
        assert "".join(tokens)[: len("the qu")] == "the qu"
        assert not any("brown" in token or token == " b" for token in tokens)


def detokenizer(table: dict[int, bytes]) -> tuple[Detokenizer, Callable[[int], bytes]]:
    return Detokenizer(table), table.__getitem__


def test_tokens_wait_for_their_text() -> None:
    """A character over three tokens, then text that is held back, then what is cut off."""
    table = {1: b"\xe2", 2: b"\x82", 3: b"\xac", 4: b"ab", 5: b"cd"}
    text = ScoredText(*detokenizer(table))
    logprob = TokenLogprobs(HALF, ((5, HALF),))
    assert text.feed((1, 2), (logprob, logprob)) == ""
    assert text.shown("", is_all=False) == ()
    assert text.feed((3, 4, 5), (logprob,) * 3) == "€abcd"
    shown = text.shown("€a", is_all=False)
    assert [(token.data, token.offset) for token in shown] == [(b"\xe2", 0), (b"\x82", 0), (b"\xac", 0), (b"ab", 1)]
    assert text.shown("", is_all=False) == ()
    assert [token.data for token in text.shown("bcd", is_all=True)] == [b"cd"]


@settings(max_examples=150, deadline=None)
@given(
    text=st.text(alphabet="ab é€😀", max_size=12),
    cuts=st.lists(st.integers(0, 40), max_size=20),
    stop=st.text(alphabet="ab é😀", min_size=1, max_size=3),
)
def test_tokens_cover_the_text_that_is_shown_and_no_more(text: str, cuts: list[int], stop: str) -> None:
    """Bytes cut anywhere into tokens, with a stop string that may be met, or nearly."""
    raw = text.encode()
    edges = sorted({0, len(raw), *(cut for cut in cuts if cut < len(raw))})
    table = dict(enumerate(raw[start:end] for start, end in pairwise(edges)))
    scored_text, stops = ScoredText(*detokenizer(table)), StopStrings([stop])
    shown, met = "", False
    tokens: list[ScoredToken] = []
    for token_id in table:
        new, met = stops.feed(scored_text.feed((token_id,), (TokenLogprobs(HALF, ()),)))
        shown += new
        tokens += scored_text.shown(new, is_all=False)
        assert shown.encode() == b"".join(token.data for token in tokens)[: len(shown.encode())]
        if met:
            break
    if not met:
        rest, _ = stops.feed("", is_last=True)
        shown += rest
        tokens += scored_text.shown(rest, is_all=True)
        assert b"".join(token.data for token in tokens) == raw
    assert shown == text.partition(stop)[0]
    assert all(token.offset < len(shown) for token in tokens)
    assert [token.offset for token in tokens] == sorted(token.offset for token in tokens)


def test_a_special_token_is_named(serve: Serve) -> None:
    served = serve(script=lambda _: [70, 1, 71])
    content = served.chat(logprobs=True).json()["choices"][0]["logprobs"]["content"]
    assert content[1]["token"] == "<|im_start|>"
    assert len(content) == 3


def test_tokens_of_the_same_text_are_one_entry_of_a_completion() -> None:
    tokens = [scored(b"a", 0, (b"b", -0.1), (b"b", -0.9)), scored(b"\xff", 1)]
    assert text_logprobs(tokens) == {
        "tokens": ["a", "bytes:\\xff"],
        "token_logprobs": [HALF, HALF],
        "top_logprobs": [{"b": -0.1, "a": HALF}, {"bytes:\\xff": HALF}],
        "text_offset": [0, 1],
    }
    assert chat_logprobs([]) == {"content": [], "refusal": None}


def test_openai_client_reads_them(live: Callable[..., Live]) -> None:
    with openai.OpenAI(base_url=f"{live('hello').url}/v1", api_key="none", max_retries=0) as client:
        chat = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "a"}], logprobs=True, top_logprobs=1
        )
        text = client.completions.create(model="tiny", prompt="a", logprobs=1)
    logprobs = chat.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert logprobs.content[0].top_logprobs[0].bytes == list(b"he")
    assert text.choices[0].logprobs is not None
    assert (text.choices[0].logprobs.tokens or [])[0] == "he"
