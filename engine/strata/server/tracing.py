"""Traces: a span for each request for an answer, with what it waited for, by OpenTelemetry's conventions.

Spans are made when a request has ended, of times that were taken anyway, and sent in batches by a thread. They have
counts, settings and times, never a text. Importing this needs the extra ``otel``.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator

from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.util.types import AttributeValue

import strata
from strata.server.record import RequestRecord

NAME = "strata"
TRACES_PATH = "/v1/traces"
CANCELLED = "cancelled"  # the client left
_CLOSE_SECONDS = 3.0  # that a receiver has for the last spans when the server ends


class Tracing:
    """Sends the span of each request that it is shown to a receiver of OTLP over HTTP.

    endpoint: its address, with or without ``/v1/traces``; None takes that of the environment. All else, like headers,
    sampling and the resource's attributes, is the environment's (``OTEL_*``).
    """

    def __init__(self, endpoint: str | None = None) -> None:
        facts = {"service.name": NAME, "service.version": strata.__version__, "service.instance.id": str(uuid.uuid4())}
        resource = Resource.create(facts).merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=None if endpoint is None else traces_url(endpoint))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer(NAME, strata.__version__)

    def __call__(self, record: RequestRecord) -> None:
        """Make the spans of a request that has ended; one that asked for no answer has none."""
        if record.operation is None:
            return
        attributes = dict(_attributes(record))
        span = self._start(
            f"{record.operation} {record.model}" if record.model else record.operation,
            record,
            record.arrived,
            SpanKind.SERVER,
            context=propagate.extract(record.headers),
            attributes=attributes,
        )
        context = set_span_in_context(span)
        parts = list(_parts(record)) if span.is_recording() else []
        for name, start, end in parts:
            part = self._start(name, record, start, SpanKind.INTERNAL, context=context)
            if name == parts[-1][0]:  # in which it ended
                _mark(part, record)
            part.end(_unix_ns(record, end))
        _mark(span, record)
        span.end(_unix_ns(record, record.ended))

    def close(self) -> None:
        """Send what is left, as far as the receiver takes it in a few seconds."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(_CLOSE_SECONDS)

    def _start(
        self,
        name: str,
        record: RequestRecord,
        start: float,
        kind: SpanKind,
        *,
        context: Context,
        attributes: dict[str, AttributeValue] | None = None,
    ) -> Span:
        return self._tracer.start_span(name, context, kind, attributes, start_time=_unix_ns(record, start))


def traces_url(endpoint: str) -> str:
    """Where traces go at a receiver, as ``OTEL_EXPORTER_OTLP_ENDPOINT`` has it."""
    base = endpoint.rstrip("/")
    return base if base.endswith(TRACES_PATH) else base + TRACES_PATH


def _parts(record: RequestRecord) -> Iterator[tuple[str, float, float]]:
    """What the request was about, one after the other: name, start, end."""
    times = [record.submitted, record.began, record.first_token, record.last_token]
    last = record.ended or record.arrived
    for name, start, end in zip(("queue", "prefill", "decode"), times, times[1:], strict=False):
        if start is None:
            return
        yield name, start, max(start, last if end is None else end)


def _attributes(record: RequestRecord) -> Iterator[tuple[str, AttributeValue]]:
    yield "http.request.method", record.method
    yield "http.route", record.path
    yield "http.response.header.x-request-id", (record.request_id,)
    yield "gen_ai.operation.name", record.operation or ""
    yield "gen_ai.provider.name", NAME
    yield "gen_ai.request.stream", record.is_streamed
    if record.status is not None:
        yield "http.response.status_code", record.status
    if record.model is not None:
        yield "gen_ai.request.model", record.model
    if record.sampling is not None:
        yield from _request(record)
    if record.num_prompt_tokens is not None and record.submitted is not None:
        yield "gen_ai.response.id", record.response_id or ""
        yield "gen_ai.response.model", record.model or ""
        yield (
            "gen_ai.response.finish_reasons",
            tuple(record.finish_reasons[key] for key in sorted(record.finish_reasons)),
        )
        yield "gen_ai.usage.input_tokens", record.num_prompt_tokens
        yield "gen_ai.usage.output_tokens", record.num_output_tokens
        yield "gen_ai.usage.cache_read.input_tokens", record.num_cached_tokens
    if record.first_token is not None:
        yield "gen_ai.response.time_to_first_chunk", record.first_token - record.arrived


def _request(record: RequestRecord) -> Iterator[tuple[str, AttributeValue]]:
    """How tokens are drawn; stop strings are texts, and left out."""
    sampling = record.sampling
    assert sampling is not None
    yield "gen_ai.request.max_tokens", sampling.max_tokens
    yield "gen_ai.request.temperature", float(sampling.temperature)
    yield "gen_ai.request.top_p", float(sampling.top_p)
    if record.num_choices != 1:
        yield "gen_ai.request.choice.count", record.num_choices
    if sampling.top_k:
        yield "gen_ai.request.top_k", sampling.top_k
    if sampling.seed is not None and abs(sampling.seed) < 1 << 63:
        yield "gen_ai.request.seed", sampling.seed
    if sampling.frequency_penalty:
        yield "gen_ai.request.frequency_penalty", float(sampling.frequency_penalty)
    if sampling.presence_penalty:
        yield "gen_ai.request.presence_penalty", float(sampling.presence_penalty)


def _mark(span: Span, record: RequestRecord) -> None:
    """Say how it went wrong, if it did. What a client asks wrongly or gives up is no error of the server."""
    if record.outcome == "abort" or record.status is None:
        span.set_attribute("error.type", CANCELLED)
    elif record.error is not None or record.status >= 400:
        span.set_attribute("error.type", record.error or str(record.status))
        if record.status >= 500 or record.outcome == "error":
            span.set_status(Status(StatusCode.ERROR))


def _unix_ns(record: RequestRecord, moment: float | None) -> int:
    return record.arrived_unix_ns + int(((record.arrived if moment is None else moment) - record.arrived) * 1e9)
