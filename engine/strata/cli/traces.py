"""Whether `strata serve` sends traces, and where to: its option, and OpenTelemetry's own variables."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from strata.cli.arguments import require
from strata.errors import OptionError

if TYPE_CHECKING:
    from strata.server.tracing import Tracing

logger = logging.getLogger(__name__)

OPTION = "--otlp-endpoint"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOL = "http/protobuf"


def tracing(endpoint: str | None, environment: Mapping[str, str] = os.environ) -> Tracing | None:
    """What sends traces; None where nobody asks for them. Raises OptionError where they cannot be sent."""
    source = asked_by(endpoint, environment)
    if source is None:
        return None
    protocol = next((environment[name] for name in PROTOCOLS if environment.get(name)), PROTOCOL)
    if protocol != PROTOCOL:
        raise OptionError(
            f"traces are sent by {PROTOCOL}, and {' or '.join(PROTOCOLS)} is {protocol!r}; unset it, and name the "
            "receiver's port for HTTP, mostly 4318"
        )
    try:
        require(extra="otel")
    except OptionError as error:
        raise OptionError(f"{source} asks for traces, but {error}; without them, unset it") from None
    try:
        from strata.server.tracing import Tracing

        made = Tracing(endpoint)
    except ValueError as error:  # of variables that the SDK reads
        raise OptionError(f"{source} asks for traces, and a variable OTEL_* cannot be used: {error}") from error
    logger.info("traces are sent, as %s asks", source)
    return made


def asked_by(endpoint: str | None, environment: Mapping[str, str]) -> str | None:
    """What asks for traces: the option, or a variable."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    if endpoint is not None:
        return OPTION
    if environment.get("OTEL_TRACES_EXPORTER", "").strip() == "none":
        return None
    return next((name for name in ENDPOINTS if environment.get(name)), None)


def receiver(text: str) -> str:
    """The option's value, for argparse."""
    try:
        url = urlsplit(text)
        is_address = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        is_address = False
    if not is_address or "@" in text or url.query or url.fragment:
        raise argparse.ArgumentTypeError(f"{text!r} is no address of a receiver; give one like http://127.0.0.1:4318")
    return text
