from __future__ import annotations

import socket
import urllib.error
import urllib.request

import pytest

from strata.cli.progress_port import VARIABLE, ProgressPort
from strata.errors import OptionError
from strata_operator.api.figures import Progress


def ask(port: int | None, path: str) -> tuple[int, bytes]:
    with pytest.raises(urllib.error.HTTPError) as answer:
        urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10)
    with answer.value:
        return answer.value.code, answer.value.read()


def test_it_says_how_far_the_command_is_as_the_operator_reads_it() -> None:
    with ProgressPort(0) as progress:
        assert Progress.parse(ask(progress.port, "/ready")[1]) == Progress("start", 0, 0)
        progress("download", 3, 9)
        status, body = ask(progress.port, "/ready")
        assert (status, Progress.parse(body)) == (503, Progress("download", 3, 9))
        assert ask(progress.port, "/metrics")[0] == 404
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", progress.port or 0), timeout=10)


def test_a_port_that_is_taken_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with ProgressPort(0) as first, ProgressPort(first.port) as second:
        second("download", 3, 9)
        assert second.port is None
    assert "nobody can ask port" in caplog.text


def test_without_the_variable_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert ProgressPort.from_environment().port is None


@pytest.mark.parametrize("text", ["0", "65536", "-1", "http", "٣"])
def test_what_is_no_port_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(OptionError, match="must be a port from 1 to 65535"):
        ProgressPort.from_environment()
