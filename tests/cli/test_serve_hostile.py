"""`strata serve` as a process, with clients that mean no good: it goes on serving, and writes nothing of theirs."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine.tiny_llama import write_checkpoint
from tests.server.conftest import CHAT_TEMPLATE, SPECIAL, write_store
from tests.server.otlp import Receiver, attributes_of, receiver

KEY = "sk-marker-of-a-key-0123456789"
MARK = "marker-of-a-prompt"
# The bounds of time, shortened: the test waits for them.
PATIENCE = 1.5
START = (
    "import sys; from strata.server import protocol; "
    f"protocol.ARRIVAL_SECONDS = protocol.UNREAD_SECONDS = {PATIENCE}; "
    "from strata.cli.main import main; sys.exit(main(sys.argv[1:]))"
)


@dataclass(frozen=True)
class Hostage:
    """A server in its own process, and all that it has written."""

    port: int
    stdout: Path
    stderr: Path
    traces: Receiver

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def output(self) -> str:
        """Of both processes, the engine's and the server's."""
        return self.stdout.read_text() + self.stderr.read_text()

    def post(self, path: str, **options: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {KEY}"} | options.pop("headers", {})
        return httpx.post(self.url + path, headers=headers, timeout=120, trust_env=False, **options)

    def connect(self) -> socket.socket:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # what is not read waits with the server
        connection.settimeout(60)
        connection.connect(("127.0.0.1", self.port))
        return connection

    def assert_serving(self) -> None:
        """Somebody else is answered."""
        response = self.post("/v1/completions", json={"prompt": "the", "max_tokens": 2})
        assert response.status_code == 200, response.text

    def outcomes(self, outcome: str) -> int:
        metrics = httpx.get(f"{self.url}/metrics", trust_env=False).text
        found = re.search(rf'^strata_requests_total{{outcome="{outcome}"}} (\d+)', metrics, re.MULTILINE)
        assert found is not None
        return int(found[1])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostage]:
    """A tiny model with a chat template, logged to the last detail. It ends with SIGTERM, and must then exit with 0."""
    folder = tmp_path_factory.mktemp("hostile")
    checkpoint = write_checkpoint(folder / "tiny", vocab_size=300, max_position_embeddings=1024, eos_token_id=0)
    write_store(checkpoint, CHAT_TEMPLATE, SPECIAL)
    (folder / "keys").write_text(f"{KEY}\n")
    options = ["--dtype", "bf16", "--device", "cpu", "--port", "0", "--log-level", "debug"]
    with receiver() as traces, (folder / "stdout").open("w") as stdout, (folder / "stderr").open("w") as stderr:
        options += ["--api-key-file", str(folder / "keys"), "--otlp-endpoint", traces.url]
        process = subprocess.Popen(
            [sys.executable, "-c", START, "serve", str(checkpoint), *options],
            stdout=stdout,
            stderr=stderr,
            env={**os.environ, "STRATA_CACHE_DIR": str(folder / "cache"), "OTEL_BSP_SCHEDULE_DELAY": "100"},
        )
        try:
            while not (ready := re.search(r" at http://127.0.0.1:(\d+)\n", (folder / "stdout").read_text())):
                assert process.poll() is None, (folder / "stderr").read_text()
                time.sleep(0.05)  # a process tells of its end alone
            yield Hostage(int(ready[1]), folder / "stdout", folder / "stderr", traces)
            process.send_signal(signal.SIGTERM)
            assert process.wait() == 0, (folder / "stderr").read_text()
        finally:
            process.kill()
            process.wait()


def head(*lines: str, method: str = "POST", path: str = "/v1/completions") -> bytes:
    fields = (f"{method} {path} HTTP/1.1", "Host: strata", f"Authorization: Bearer {KEY}", *lines, "", "")
    return "\r\n".join(fields).encode()


def answer_to(connection: socket.socket) -> bytes:
    """All that comes until the server closes."""
    data = b""
    try:
        while part := connection.recv(65536):
            data += part
    except ConnectionResetError:
        pass  # it closed while it was still being sent to
    return data


def dripped(connection: socket.socket, data: bytes) -> bytes:
    """Send a byte now and then, until the server has an answer."""
    for byte in data:
        if select.select([connection], [], [], 0.05)[0]:
            break
        connection.sendall(bytes([byte]))
    else:
        pytest.fail("the server took all of it")
    return answer_to(connection)


# --- slow clients


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(head(f"X-Slow: {'a' * 500}"), id="a head"),
        pytest.param(head("Content-Length: 500") + b"{" + b" " * 400, id="a body"),
        pytest.param(head("Transfer-Encoding: chunked") + b"1\r\n{\r\n" * 100, id="a body in chunks"),
    ],
)
def test_who_sends_a_byte_now_and_then_is_sent_away(server: Hostage, data: bytes) -> None:
    begun = data.index(b"\r\n\r\n") if b"X-Slow" not in data else 0
    with server.connect() as connection:
        connection.sendall(data[:begun])
        answer = dripped(connection, data[begun:])
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"request_timeout" in answer
    server.assert_serving()


def test_a_hundred_slow_clients_keep_nobody_else_waiting(server: Hostage) -> None:
    connections = [server.connect() for _ in range(100)]
    for connection in connections:
        connection.sendall(head("Content-Length: 500")[:-2])
    server.assert_serving()
    for connection in connections:
        with connection:
            assert answer_to(connection).startswith(b"HTTP/1.1 408 ")


def test_who_reads_nothing_of_a_stream_loses_it(server: Hostage) -> None:
    """And the engine goes on with others: its place is free again."""
    before = server.outcomes("abort")
    chat = {"messages": [{"role": "user", "content": "the"}], "n": 16, "logprobs": True, "top_logprobs": 20}
    body = json.dumps(chat | {"stream": True, "max_tokens": 900, "ignore_eos": True}).encode()
    with server.connect() as connection:
        connection.sendall(head(f"Content-Length: {len(body)}", path="/v1/chat/completions") + body)
        while server.outcomes("abort") == before:
            time.sleep(0.05)  # nobody tells
    server.assert_serving()


# --- heads and bodies


ONE = b'{"prompt":"the","max_tokens":1}'
LENGTH = f"Content-Length: {len(ONE)}"


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        pytest.param(head(f"X-Large: {'a' * 70_000}"), 431, "headers_too_large", id="a large header"),
        pytest.param(head(*(f"X-{n}: a" for n in range(10_000))), 431, "headers_too_large", id="many headers"),
        pytest.param(head(path="/" + "a" * 70_000), 431, "headers_too_large", id="a long path"),
        pytest.param(head(LENGTH, "Content-Length: 5") + ONE, 400, "invalid_http", id="two lengths"),
        pytest.param(
            head(LENGTH, "Transfer-Encoding: chunked") + b"0\r\n\r\n" + ONE, 400, "invalid_http", id="length and chunks"
        ),
        pytest.param(head("Transfer-Encoding: chunked, identity") + ONE, 400, "invalid_http", id="chunks are not last"),
        pytest.param(head("Content-Length: -1") + ONE, 400, "invalid_http", id="a negative length"),
        pytest.param(head("Content-Length: +31") + ONE, 400, "invalid_http", id="a length with a sign"),
        pytest.param(head(f"Content-Length: 1{'0' * 30}") + ONE, 400, "invalid_http", id="a length beyond 64 bits"),
        pytest.param(head("Content-Length : 31") + ONE, 400, "invalid_http", id="a space before the colon"),
        pytest.param(head("X: a\x00b"), 400, "invalid_http", id="a zero byte"),
        pytest.param(head("X: a\rb"), 400, "invalid_http", id="a bare carriage return"),
        pytest.param(head(LENGTH, "X: a", " b") + ONE, 400, "invalid_http", id="a header that goes on"),
        pytest.param(head("Content-Length: 999999999999"), 413, "request_too_large", id="a length of a terabyte"),
        pytest.param(head("Transfer-Encoding: chunked") + b"fffffffffffffffff\r\n", 400, "invalid_http", id="a chunk"),
        pytest.param(
            head("Transfer-Encoding: chunked") + b"1;" + b"a" * 1_000_000, 431, "headers_too_large", id="an extension"
        ),
        pytest.param(
            head("Transfer-Encoding: chunked") + b"0\r\n" + b"X: a\r\n" * 200_000,
            431,
            "headers_too_large",
            id="trailers",
        ),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "invalid_http", id="TLS"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "invalid_http", id="HTTP/2"),
    ],
)
def test_what_is_no_sound_request_is_refused(server: Hostage, data: bytes, status: int, code: str) -> None:
    with server.connect() as connection:
        with suppress(ConnectionResetError, BrokenPipeError):  # it was refused before its end
            connection.sendall(data)
        answer = answer_to(connection)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer[:200]
    assert f'"code":"{code}"'.encode() in answer.replace(b'": "', b'":"')
    server.assert_serving()


def test_a_body_in_single_bytes_is_served(server: Hostage) -> None:
    chunks = b"".join(b"1\r\n" + bytes([byte]) + b"\r\n" for byte in ONE) + b"0\r\n\r\n"
    with server.connect() as connection:
        connection.sendall(head("Transfer-Encoding: chunked", "Connection: close") + chunks)
        assert answer_to(connection).startswith(b"HTTP/1.1 200 ")


def test_an_endless_body_in_chunks_is_cut_off(server: Hostage) -> None:
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    with server.connect() as connection:
        connection.sendall(head("Transfer-Encoding: chunked"))
        try:
            for sent in count():
                connection.sendall(chunk)
                if select.select([connection], [], [], 0)[0]:
                    break
                assert sent < 1000
        except (ConnectionResetError, BrokenPipeError):
            pass
        assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")
    server.assert_serving()


@pytest.mark.parametrize(
    "path", ["/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/..%2f..%2fetc/passwd", "/page/../keys"]
)
def test_no_path_leads_to_a_file(server: Hostage, path: str) -> None:
    with server.connect() as connection:
        connection.sendall(head("Connection: close", method="GET", path=path))
        answer = answer_to(connection)
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b"root:" not in answer


# --- what is written


def test_a_real_engine_says_where_the_time_went(server: Hostage) -> None:
    """Its clock is that of the server's process."""
    trace = "0af7651916cd43dd8448eb211c80319c"
    body = {"prompt": "the quick brown fox", "max_tokens": 9, "ignore_eos": True}
    headers = {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
    answer = server.post("/v1/completions", json=body, headers=headers)
    spans = server.traces.trace(trace, 4)
    whole, queue, prefill, decode = (spans[name] for name in ("text_completion tiny", "queue", "prefill", "decode"))
    times = [span.start_time_unix_nano for span in (whole, queue, prefill, decode)]
    assert times == sorted(times)
    assert queue.end_time_unix_nano == times[2] > times[1]
    assert prefill.end_time_unix_nano == times[3] > times[2]
    assert times[3] < decode.end_time_unix_nano <= whole.end_time_unix_nano
    attributes = attributes_of(whole.attributes)
    usage = answer.json()["usage"]
    assert attributes["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert attributes["gen_ai.usage.output_tokens"] == usage["completion_tokens"] == 9


def bodies(mark: str) -> Iterator[tuple[str, bytes]]:
    """Requests of every route that takes a body, with a mark wherever a text can be; most are refused."""
    chat = {"messages": [{"role": "user", "content": mark}], "max_tokens": 4}
    for fields in (
        {},
        {"stream": True},
        {"stop": [mark]},
        {"user": mark, "metadata": {mark: mark}},
        {"model": mark},
        {mark: mark},
        {"temperature": mark},
        {"seed": mark},
        {"messages": [{"role": mark, "content": mark}]},
        {"messages": [{"role": "user", "content": mark * 10_000}]},
        {"tools": [{"type": "function", "function": {"name": mark, "parameters": {}}}]},
        {"chat_template_kwargs": {mark: mark}},
        {"reasoning_effort": mark},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": mark}}}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"const": mark}}}},
        {"structured_outputs": {"regex": f"({mark}"}},
        {"structured_outputs": {"regex": f"{mark}|[a-z]+"}, "stream": True},
        {"structured_outputs": {"grammar": f"root ::= {mark}"}},
        {"structured_outputs": {"grammar": f'root ::= "{mark}" root'}, "stream": True},
    ):
        yield "/v1/chat/completions", json.dumps(chat | fields).encode()
    for path in ("/v1/completions", "/generate"):
        for other in ({}, {"stop": mark}, {"prompt": [mark]}, {"prompt": [999, 5]}, {"logit_bias": {mark: 1}}):
            yield path, json.dumps({"prompt": mark, "max_tokens": 4, **other}).encode()
    yield "/v1/responses", json.dumps({"input": mark, "instructions": mark, "max_output_tokens": 4}).encode()
    yield "/v1/responses", json.dumps({"input": [{"type": mark}], "previous_response_id": mark}).encode()
    yield "/tokenize", json.dumps({"prompt": mark}).encode()
    yield "/tokenize", json.dumps({"messages": [{"role": "user", "content": mark}]}).encode()
    yield "/tokenize", json.dumps({"prompt": mark * 10_000}).encode()
    yield "/detokenize", json.dumps({"tokens": mark}).encode()
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/generate", "/tokenize", "/detokenize"):
        yield path, f'{{"{mark}'.encode()
        yield path, f'{{"{mark}": 1, "{mark}": 2}}'.encode()
        yield path, f'"{mark}"'.encode()
        yield path, mark.encode() + b"\xff"


def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.02)  # the log tells nobody


def test_no_output_has_a_prompt_an_answer_or_a_key(server: Hostage) -> None:
    statuses, answers = set(), []
    for path, body in bodies(MARK):
        response = server.post(f"{path}?key={KEY}&{MARK}", content=body, headers={"X-Api-Key": KEY, "Cookie": MARK})
        statuses.add(response.status_code)
        if path == "/v1/completions" and response.status_code == 200:
            answers.append(response.json()["choices"][0]["text"])
    for scheme in ("Bearer", "Basic", KEY):
        wrong = {"Authorization": f"{scheme} {KEY}x"}
        statuses.add(server.post("/v1/completions", content=b"{}", headers=wrong).status_code)
    origin = {"Origin": f"http://{MARK}"}
    statuses.add(server.post("/v1/completions", content=b"{}", headers=origin).status_code)
    for path in ("/v1/models", "/v1/status", "/metrics", "/openapi.json", "/"):
        statuses.add(httpx.get(f"{server.url}{path}?{MARK}", headers={"Authorization": f"Bearer {KEY}"}).status_code)
    with server.connect() as connection:  # one who leaves in mid-stream
        body = json.dumps({"prompt": MARK, "stream": True, "max_tokens": 900, "ignore_eos": True}).encode()
        connection.sendall(head(f"Content-Length: {len(body)}") + body)
        assert b"200 OK" in connection.recv(4096)
    with server.connect() as connection:  # and one who says no HTTP
        connection.sendall(f"{MARK} {KEY}\r\n\r\n".encode())
        answer_to(connection)
    assert statuses == {200, 400, 401, 403, 404}
    server.post("/generate", json={"prompt": "a"}, headers={"X-Request-Id": "the-last-one"})
    wait_until(lambda: "id=the-last-one" in server.output)
    output = server.output
    assert "DEBUG" in output
    assert "outcome=abort" in output
    assert MARK not in output
    assert KEY not in output
    for answer in answers:
        assert len(answer) < 6 or answer not in output
    wait_until(lambda: any(b"the-last-one" in raw for raw in server.traces.raw))
    for raw in server.traces.raw:
        assert MARK.encode() not in raw
        assert KEY.encode() not in raw
