"""Who asks for traces, and what is said where they cannot be sent."""

from __future__ import annotations

import importlib.util

import pytest

from strata.cli.main import build_parser, main
from strata.cli.serve import observers
from strata.cli.traces import asked_by, tracing
from strata.doctor.packages import EXTRAS
from strata.errors import OptionError
from strata.server.access_log import log_access
from strata.server.tracing import Tracing

URL = "http://127.0.0.1:4318"


@pytest.mark.parametrize(
    ("endpoint", "environment", "source"),
    [
        pytest.param(None, {}, None, id="nobody"),
        pytest.param(URL, {}, "--otlp-endpoint", id="the option"),
        pytest.param(None, {"OTEL_EXPORTER_OTLP_ENDPOINT": URL}, "OTEL_EXPORTER_OTLP_ENDPOINT", id="for all signals"),
        pytest.param(
            None, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": URL}, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", id="for traces"
        ),
        pytest.param(None, {"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, None, id="an empty variable"),
        pytest.param(None, {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": URL}, None, id="another signal"),
        pytest.param(
            None, {"OTEL_EXPORTER_OTLP_ENDPOINT": URL, "OTEL_TRACES_EXPORTER": "none"}, None, id="no traces at all"
        ),
        pytest.param(URL, {"OTEL_SDK_DISABLED": "true"}, None, id="the SDK is off"),
    ],
)
def test_who_asks_for_traces(endpoint: str | None, environment: dict[str, str], source: str | None) -> None:
    assert asked_by(endpoint, environment) == source
    assert source is not None or tracing(endpoint, environment) is None


@pytest.mark.parametrize("package", EXTRAS["otel"])
def test_without_its_package_it_says_what_to_install(
    package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real, lost = importlib.util.find_spec, EXTRAS["otel"][package]

    def find_spec(name: str) -> object:
        if name == lost:
            raise ModuleNotFoundError(name)  # as where its parent is not there
        return real(name)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    assert main(["serve", "m", "--otlp-endpoint", URL]) == 2
    error = capsys.readouterr().err
    assert f"--otlp-endpoint asks for traces, but {package} is not installed" in error
    assert "pip install '.[otel]'" in error
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", URL)
    assert main(["serve", "m"]) == 2
    assert "OTEL_EXPORTER_OTLP_ENDPOINT asks for traces" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        pytest.param({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "sent by http/protobuf", id="another protocol"),
        pytest.param({"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json"}, "'http/json'", id="that of traces"),
    ],
)
def test_what_cannot_be_spoken_is_refused(environment: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        tracing(URL, environment)


@pytest.mark.parametrize(
    "address", ["collector:4318", "grpc://a:4317", "http://", "http://a:x", "http://u:secret@a", "http://a?b=c", ""]
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(OptionError, match="no address of a receiver; give one like"):
        build_parser().parse_args(["serve", "m", "--otlp-endpoint", address])


def test_who_sees_each_request() -> None:
    arguments = build_parser().parse_args(["serve", "m"])
    assert observers(arguments.access_log, None) == (log_access,)
    arguments = build_parser().parse_args(["serve", "m", "--no-access-log"])
    assert observers(arguments.access_log, None) == ()
    traces = Tracing(URL)
    assert observers(arguments.access_log, traces) == (traces,)
    traces.close()
