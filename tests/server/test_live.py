"""Behind a real socket: the official client, and clients that leave."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import repeat

import openai
import pytest

from strata.server import protocol
from strata.server.protocol import MAX_HEAD_BYTES
from tests.server.conftest import Live

MakeLive = Callable[..., Live]
HELLO: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]


@contextmanager
def client(live: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as opened:
        yield opened


@contextmanager
def raw_request(live: Live, **fields: object) -> Iterator[socket.socket]:
    """A chat request on a bare socket, as a client that may leave at any time."""
    body = json.dumps({"messages": HELLO, **fields}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: strata\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", live.port)) as connection:
        connection.sendall(head.encode() + body)
        yield connection


def read_until(connection: socket.socket, mark: bytes) -> bytes:
    data = b""
    while mark not in data:
        part = connection.recv(65536)
        assert part, f"the server closed before {mark!r}: {data!r}"
        data += part
    return data


def test_openai_client_chats(live: MakeLive) -> None:
    with client(live("hello 😀 world")) as opened:
        answer = opened.chat.completions.create(model="tiny", messages=HELLO, temperature=0)
    assert answer.choices[0].message.content == "hello 😀 world"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0


def test_openai_client_streams_with_usage(live: MakeLive) -> None:
    with client(live("hello 😀 world")) as opened:
        stream = opened.chat.completions.create(
            model="tiny", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "hello 😀 world"
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert chunks[-2].choices[0].finish_reason == "stop"


def test_openai_client_completes_and_lists_models(live: MakeLive) -> None:
    with client(live(" world")) as opened:
        assert opened.completions.create(model="tiny", prompt="hello").choices[0].text == " world"
        texts = [c.choices[0].text for c in opened.completions.create(model="tiny", prompt="hello", stream=True)]
        assert "".join(texts) == " world"
        assert [model.id for model in opened.models.list()] == ["tiny"]


def test_openai_client_raises_its_own_errors(live: MakeLive) -> None:
    with client(live(max_model_len=32)) as opened:
        with pytest.raises(openai.NotFoundError, match="served: 'tiny'"):
            opened.chat.completions.create(model="other", messages=HELLO)
        with pytest.raises(openai.BadRequestError, match="max-model-len is 32"):
            opened.completions.create(model="tiny", prompt="z" * 40)


def test_tokens_are_sent_as_they_come(live: MakeLive) -> None:
    running = live("hello world")
    running.engine.pause()
    with client(running) as opened:
        running.engine.release()
        stream = iter(opened.chat.completions.create(model="tiny", messages=HELLO, stream=True))
        assert next(stream).choices[0].delta.role == "assistant"
        first = next(stream).choices[0].delta.content
        assert first
        assert running.engine.num_open == 1, "the rest of the answer is still to come"
        running.engine.resume()
        assert first + "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "hello world"


def test_headers_go_out_though_the_first_token_takes_long(live: MakeLive) -> None:
    running = live("hello")
    running.engine.pause()
    with raw_request(running, stream=True) as connection:
        assert b"200 OK" in read_until(connection, b"\r\n\r\n")
        running.engine.resume()
        read_until(connection, b"[DONE]")


def test_an_engine_that_dies_in_mid_stream_is_told_to_the_client(live: MakeLive) -> None:
    running = live("hello world")
    running.engine.pause()
    running.engine.release()
    with client(running) as opened:
        stream = iter(opened.chat.completions.create(model="tiny", messages=HELLO, stream=True))
        next(stream)
        next(stream)
        running.engine.fail("the engine process ended with signal 9")
        with pytest.raises(openai.APIError, match="signal 9"):
            list(stream)


@pytest.mark.parametrize(
    ("stream", "num_tokens"),
    [
        pytest.param(True, 2, id="in mid-stream"),
        pytest.param(True, 0, id="before the first token of a stream"),
        pytest.param(False, 2, id="while a whole answer is made"),
    ],
)
def test_a_client_that_leaves_ends_the_generation(live: MakeLive, stream: bool, num_tokens: int) -> None:
    running = live(script=lambda _: repeat(70), max_model_len=100_000)
    running.engine.pause()
    running.engine.release(num_tokens)
    with raw_request(running, stream=stream) as connection:
        if stream and num_tokens:
            read_until(connection, b'"content":"')
        running.wait_until(lambda engine: engine.num_open == 1)
    running.wait_until(lambda engine: bool(engine.aborted))
    assert running.engine.num_open == 0
    registry = running.service.metrics.registry
    assert registry.get_sample_value("strata_requests_total", {"outcome": "abort"}) == 1


def test_a_client_that_leaves_a_fast_answer_ends_the_generation(live: MakeLive) -> None:
    """The engine never waits, so the end is only seen between two chunks."""
    running = live(script=lambda _: repeat(70), max_model_len=2_000_000)
    with raw_request(running, stream=True) as connection:
        read_until(connection, b'"content":"')
    running.wait_until(lambda engine: bool(engine.aborted))
    assert running.engine.num_open == 0


def test_tokens_are_counted_as_they_come(live: MakeLive) -> None:
    running = live(script=lambda _: repeat(70), max_model_len=100_000)
    running.engine.pause()
    with raw_request(running, stream=True) as connection:
        for num_tokens in (1, 2):
            running.engine.release()
            read_until(connection, b'"content":"')
            assert running.service.metrics.registry.get_sample_value("strata_generation_tokens_total") == num_tokens


def test_many_streams_at_once_get_their_own_text(live: MakeLive, encode: Callable[[str], list[int]]) -> None:
    running = live(script=lambda request: request.prompt_token_ids)
    running.engine.pause()
    prompts = [f"number {number} " * 3 for number in range(8)]
    with client(running) as opened:
        running.engine.release()
        streams = [opened.completions.create(model="tiny", prompt=prompt, stream=True) for prompt in prompts]
        running.engine.resume()
        texts = ["".join(chunk.choices[0].text for chunk in stream) for stream in streams]
    assert texts == prompts


def exchange(live: Live, sent: bytes) -> tuple[int, str]:
    """Status and error code of the answer to some bytes; the server must close the connection after it."""
    with socket.create_connection(("127.0.0.1", live.port)) as connection:
        connection.sendall(sent)
        with connection.makefile("rb") as received:
            head, _, body = received.read().partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]["code"]


def test_a_head_without_end_is_refused_before_it_is_read(live: MakeLive) -> None:
    head = b"GET /health HTTP/1.1\r\nHost: strata\r\nX-Long: "
    assert exchange(live(), head + b"x" * MAX_HEAD_BYTES) == (431, "headers_too_large")


def test_a_long_head_is_served(live: MakeLive) -> None:
    head = b"GET /health HTTP/1.1\r\nConnection: close\r\nHost: strata\r\nX-Long: "
    with socket.create_connection(("127.0.0.1", live().port)) as connection:
        connection.sendall(head + b"x" * (MAX_HEAD_BYTES - 1000) + b"\r\n\r\n")
        assert read_until(connection, b"\r\n").startswith(b"HTTP/1.1 200")


def test_a_request_that_does_not_arrive_in_time_is_ended(live: MakeLive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "ARRIVAL_SECONDS", 0.1)
    sent = b"POST /generate HTTP/1.1\r\nHost: strata\r\nContent-Length: 9\r\n\r\n{"
    assert exchange(live(), sent) == (408, "request_timeout")


def test_a_client_that_reads_nothing_ends_the_generation(live: MakeLive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "UNREAD_SECONDS", 0.1)
    running = live(script=lambda _: repeat(70), max_model_len=1_000_000)
    with raw_request(running, stream=True, logprobs=True, top_logprobs=20):  # long chunks fill the buffers sooner
        running.wait_until(lambda engine: bool(engine.aborted))
    assert running.engine.num_open == 0


@pytest.mark.parametrize(
    "sent", [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"hello\r\n\r\n"], ids=["TLS", "prose"]
)
def test_bytes_that_are_no_request_get_an_error_object(live: MakeLive, sent: bytes) -> None:
    assert exchange(live(), sent) == (400, "invalid_http")


def test_an_unknown_method_is_named(live: MakeLive) -> None:
    with socket.create_connection(("127.0.0.1", live().port)) as connection:
        connection.sendall(b"BREW /health HTTP/1.1\r\nHost: strata\r\n\r\n")
        with connection.makefile("rb") as received:
            answer = received.read()
    assert answer.startswith(b"HTTP/1.1 501 ")
    assert b"the method 'BREW' is not known here; GET, HEAD, POST and OPTIONS are taken" in answer


def test_a_body_that_would_be_too_long_is_refused_before_it_comes(live: MakeLive) -> None:
    with socket.create_connection(("127.0.0.1", live().port)) as connection:
        connection.sendall(b"POST /generate HTTP/1.1\r\nHost: strata\r\nContent-Length: 99999999999999\r\n\r\n{")
        assert read_until(connection, b"\r\n").startswith(b"HTTP/1.1 413")


def test_who_asks_for_a_websocket_is_answered_as_any_other(live: MakeLive, caplog: pytest.LogCaptureFixture) -> None:
    upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n\r\n"
    with socket.create_connection(("127.0.0.1", live().port)) as connection:
        connection.sendall(b"GET /v1/responses HTTP/1.1\r\nHost: strata\r\n" + upgrade)
        assert read_until(connection, b"\r\n").startswith(b"HTTP/1.1 405")
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_a_body_that_never_ends_because_its_client_left_is_no_fault(live: MakeLive) -> None:
    running = live("hello")
    with socket.create_connection(("127.0.0.1", running.port)) as connection:
        connection.sendall(b"POST /generate HTTP/1.1\r\nHost: strata\r\nContent-Length: 100\r\n\r\n{")
    with client(running) as opened:
        assert opened.completions.create(model="tiny", prompt="hello").choices[0].text == "hello"
