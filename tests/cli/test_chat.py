"""`strata chat` against a server over the fake engine."""

from __future__ import annotations

import signal
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from strata.cli.client import Client
from strata.engine.fake import FakeEngine
from strata.errors import OptionError
from strata.request import GenerationRequest
from strata.server.app import Access
from strata.server.keys import ApiKeys
from tests.cli.conftest import COMMAND
from tests.server.conftest import Live, run_live

Strata = Callable[..., subprocess.CompletedProcess[str]]
MakeLive = Callable[..., Live]


def test_one_question_gets_one_answer(strata: Strata, live: MakeLive) -> None:
    result = strata("chat", "--url", live("hello 😀 world").url, "hi")
    assert (result.returncode, result.stdout) == (0, "hello 😀 world\n")


def test_reasoning_is_shown_beside_the_answer(
    strata: Strata, live: MakeLive, family_store: Callable[[str], Path]
) -> None:
    running = live("<think>\nHm, hello.\n</think>\n\nHello!", directory=family_store("qwen"), max_model_len=1000)
    result = strata("chat", "--url", running.url, "hi")
    assert (result.returncode, result.stdout, result.stderr) == (0, "Hello!\n", "Hm, hello.\n\n")


def test_an_address_may_end_like_openais(strata: Strata, live: MakeLive) -> None:
    assert strata("chat", "--url", f"{live('hello').url}/v1/", "hi").stdout == "hello\n"


def test_the_system_text_and_the_conversation_reach_the_model(
    strata: Strata, live: MakeLive, encode: Callable[[str], list[int]]
) -> None:
    running = live("fine", max_model_len=1000)
    lines = "how are you\n/unknown\nand now\n/reset\nafresh\n/exit\nnot read\n"
    result = strata("chat", "--url", running.url, "--system", "be brief", stdin=lines)
    assert result.returncode == 0
    assert result.stdout == "fine\n/unknown is no command; there are /reset and /exit\nfine\nfine\n"
    system, end = "<|im_start|>system\nbe brief<|im_end|>\n", "<|im_end|>\n"
    first = f"{system}<|im_start|>user\nhow are you{end}<|im_start|>assistant\n"
    second = f"{first}fine{end}<|im_start|>user\nand now{end}<|im_start|>assistant\n"
    third = f"{system}<|im_start|>user\nafresh{end}<|im_start|>assistant\n"
    prompts = [list(request.prompt_token_ids) for request in running.engine.requests]
    assert prompts == [encode(first), encode(second), encode(third)]


def test_a_key_is_taken_from_the_environment(
    strata: Strata, make_engine: Callable[..., FakeEngine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keys").write_text("sk-one")
    with run_live(make_engine("hello"), Access(ApiKeys(tmp_path / "keys"))) as running:
        refused = strata("chat", "--url", running.url, "hi")
        assert refused.returncode == 2
        assert "no API key is given" in refused.stderr
        assert "STRATA_API_KEY" in refused.stderr
        monkeypatch.setenv("STRATA_API_KEY", "sk-one")
        assert strata("chat", "--url", running.url, "hi").stdout == "hello\n"
    with pytest.raises(OptionError, match="no header may hold"):
        Client("http://127.0.0.1", None, "sk\none")


def test_one_answer_has_an_end(strata: Strata, live: MakeLive) -> None:
    running = live(script=lambda request: [5] * request.sampling.max_tokens, max_model_len=100)
    assert "[cut off at the largest number of tokens; --max-tokens" in strata("chat", "--url", running.url, "hi").stderr
    short = strata("chat", "--url", running.url, "--max-tokens", "7", "hi")
    assert (short.returncode, "[cut off" in short.stderr) == (0, True)
    assert [request.sampling.max_tokens for request in running.engine.requests] == [50, 7]
    assert strata("chat", "--url", live("done").url, "hi").stderr == ""


def test_an_answer_that_is_interrupted_has_the_exit_code_of_that() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        command = [*COMMAND, "chat", "--url", url, "--model", "m", "--max-tokens", "9", "hi"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                event = b'data: {"choices": [{"delta": {"content": "some"}}]}\n'
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + event)
                assert process.stdout is not None
                assert process.stdout.read(4) == "some"
                process.send_signal(signal.SIGINT)
                rest, error = process.communicate()
    assert (process.returncode, rest, error) == (130, "\n", "[stopped]\n")


def test_a_server_that_is_not_there_is_named(strata: Strata) -> None:
    result = strata("chat", "--url", "http://127.0.0.1:9", "hi")
    assert result.returncode == 2
    assert "no server answers at http://127.0.0.1:9" in result.stderr
    assert "strata serve" in result.stderr


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_an_address_where_nothing_answers_is_given_up(monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    monkeypatch.setattr("strata.cli.client.CONNECT_SECONDS", 0.2)
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as listener,
        socket.create_connection(listener.getsockname()),  # it fills the queue: further ones get no answer
        pytest.raises(OptionError, match=r"no server answers at .* \(timed out\)"),
    ):
        Client(f"{scheme}://127.0.0.1:{listener.getsockname()[1]}", None).model()


@pytest.mark.parametrize(
    "url",
    [
        pytest.param("http://127.0.0.1:abc", id="a port that is no number"),
        pytest.param("http://127.0.0.1:70000", id="a port that is too large"),
        pytest.param("http://[bad", id="half an IPv6 address"),
        pytest.param("http://", id="no host"),
        pytest.param("http://a b/", id="a space"),
        pytest.param("http://127.0.0.1:8000/\u00fc", id="a character outside of ASCII"),
        pytest.param("ftp://127.0.0.1", id="another protocol"),
    ],
)
def test_an_address_that_cannot_be_one_is_refused(url: str) -> None:
    with pytest.raises(OptionError, match=r"is no address of a server: .*; give one like http://127"):
        Client(url, None)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        pytest.param(b"SSH-2.0-OpenSSH_9.2\r\n", "is no HTTP server", id="another protocol"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n[]", "is no server of the OpenAI API", id="cut off"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\ndata: {}\n", "no server of the OpenAI API: b'{}'", id="other events"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\ndata: [\n", "no server of the OpenAI API: b'\\['", id="no JSON"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\ndata: " + b"[" * 5000 + b"\n", "no server of the OpenAI", id="deep JSON"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 5000, "no server of the OpenAI", id="deep JSON of names"),
        pytest.param(b"", "no server answers", id="nothing"),
    ],
)
def test_what_is_no_such_server_is_told(answer: bytes, words: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        client = Client(f"http://127.0.0.1:{listener.getsockname()[1]}", "named" if b"data" in answer else None)
        with pytest.raises(OptionError, match=words):
            list(client.stream([]))
        thread.join()


def test_an_unknown_model_is_refused_with_the_known(strata: Strata, live: MakeLive) -> None:
    result = strata("chat", "--url", live().url, "--model", "other", "hi")
    assert result.returncode == 2
    assert "served: 'tiny'" in result.stderr


def test_an_engine_that_dies_is_told(strata: Strata, live: MakeLive) -> None:
    def fail(_: GenerationRequest) -> list[int]:
        running.engine.fail("the engine process ended with signal 9")
        return [5]

    running = live(script=fail)
    result = strata("chat", "--url", running.url, "hi")
    assert result.returncode == 1
    assert "signal 9" in result.stderr


def test_a_server_of_another_kind_is_told(strata: Strata, live: MakeLive) -> None:
    result = strata("chat", "--url", f"{live().url}/health", "hi")
    assert result.returncode == 2
    assert "there is no '/health/v1/models' here" in result.stderr
