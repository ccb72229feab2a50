"""pip-audit itself, against an advisory service on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.audit import UNREACHABLE, main
from tests.http_server import answering

FAULT = {
    "id": "GHSA-0000",
    "modified": "2026-01-01T00:00:00Z",
    "published": "2026-01-01T00:00:00Z",
    "summary": "a fault",
    "details": "a fault",
    "affected": [
        {
            "package": {"name": "jinja2", "ecosystem": "PyPI"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "3.1.7"}]}],
            "versions": ["3.1.6"],
        }
    ],
}


@pytest.fixture
def service() -> Iterator[str]:
    """One that speaks OSV, and knows one fault."""

    def answer(path: str, headers: dict[str, str], body: bytes) -> bytes:
        query: dict[str, Any] = json.loads(body)
        return json.dumps({"vulns": [FAULT]} if query["package"]["name"] == "jinja2" else {}).encode()

    with answering(answer, "application/json") as url:
        yield f"{url}/v1/query"


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def pins(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "constraints.txt"
        path.write_text(text)
        return path

    return write


def test_a_known_fault_is_named_with_what_mends_it(
    service: str, pins: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-s", "osv", "--osv-url", service], pins("jinja2==3.1.6\nidna==3.20\n")) == 1
    assert capsys.readouterr().out == "jinja2 3.1.6: GHSA-0000, mended in 3.1.7\n2 packages, 1 to look at\n"


def test_packages_without_faults_pass(
    service: str, pins: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-s", "osv", "--osv-url", service], pins("idna==3.20\n")) == 0
    assert capsys.readouterr().out == "1 packages, 0 to look at\n"


def test_a_service_that_cannot_be_reached_is_no_clean_bill(
    pins: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-s", "osv", "--osv-url", "http://127.0.0.1:1"], pins("idna==3.20\n")) == 2
    assert UNREACHABLE in capsys.readouterr().err
