"""A receiver of OTLP over HTTP, which keeps the spans that it is sent."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.http_server import answering


def value_of(value: AnyValue) -> Any:
    """What an attribute's value is in Python."""
    kind = value.WhichOneof("value")
    assert kind is not None
    if kind == "array_value":
        return [value_of(item) for item in value.array_value.values]
    return getattr(value, kind)


def attributes_of(pairs: Any) -> dict[str, Any]:
    """Those of a span or a resource."""
    return {pair.key: value_of(pair.value) for pair in pairs}


class Receiver:
    """At ``url``. ``raw``: the bodies as they came."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.raw: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.resources: list[dict[str, Any]] = []
        self._spans: list[Span] = []
        self._changed = threading.Condition()

    def take(self, path: str, headers: dict[str, str], body: bytes) -> None:
        """Keep what a request has."""
        assert path == "/v1/traces"
        assert headers["content-type"] == "application/x-protobuf"
        body = gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body
        message = ExportTraceServiceRequest.FromString(body)
        with self._changed:
            self.raw.append(body)
            self.headers.append(headers)
            for resource in message.resource_spans:
                self.resources.append(attributes_of(resource.resource.attributes))
                for scope in resource.scope_spans:
                    self._spans += scope.spans
            self._changed.notify_all()

    def spans(self, num_spans: int) -> dict[str, Span]:
        """By name, those of one trace, once so many have come."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._spans) >= num_spans, timeout=60), self._spans
            taken, self._spans = self._spans, []
        return self._by_name(taken, num_spans)

    def trace(self, trace_id: str, num_spans: int) -> dict[str, Span]:
        """Likewise those of a trace, whatever others have come."""

        def own() -> list[Span]:
            return [span for span in self._spans if span.trace_id.hex() == trace_id]

        with self._changed:
            assert self._changed.wait_for(lambda: len(own()) >= num_spans, timeout=60), own()
            return self._by_name(own(), num_spans)

    def _by_name(self, taken: list[Span], num_spans: int) -> dict[str, Span]:
        assert len({span.trace_id for span in taken}) == 1
        found = {span.name: span for span in taken}
        assert len(found) == num_spans == len(taken)
        return found


@contextmanager
def receiver() -> Iterator[Receiver]:
    """One on a free port."""

    def take(path: str, headers: dict[str, str], body: bytes) -> bytes:
        found.take(path, headers, body)
        taken: bytes = ExportTraceServiceResponse().SerializeToString()
        return taken

    with answering(take, "application/x-protobuf") as url:
        found = Receiver(url)
        yield found
