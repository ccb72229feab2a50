from __future__ import annotations

import json
import threading
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from kubernetes.client import Configuration

from strata_operator.api.errors import ApiError, LeavingError, MissingError, RefusedError, UnavailableError
from strata_operator.cluster import client as rooms
from strata_operator.cluster.client import RESOURCES, Client
from tests.operator.cluster.server import Answer, Request, ScriptedServer, refusal


@pytest.mark.parametrize(
    ("kind", "args", "path"),
    [
        ("Service", (), "/api/v1/services"),
        ("Service", ("ns", "m"), "/api/v1/namespaces/ns/services/m"),
        ("Deployment", ("ns", "m"), "/apis/apps/v1/namespaces/ns/deployments/m"),
        ("StrataNode", (None, "n", "status"), "/apis/strata.ai/v1alpha1/stratanodes/n/status"),
        ("StrataModel", ("ns", "m", "status"), "/apis/strata.ai/v1alpha1/namespaces/ns/stratamodels/m/status"),
    ],
)
def test_paths(kind: str, args: tuple[str, ...], path: str) -> None:
    assert RESOURCES[kind].path(*args) == path


def test_apply_says_who_applies_and_whether_by_force() -> None:
    with ScriptedServer(lambda request: Answer(body={"ok": True})) as server:
        manifest = {"metadata": {"namespace": "ns", "name": "m"}}
        assert server.client().apply("Service", manifest, manager="me", force=True) == {"ok": True}
    (request,) = server.requests
    assert (request.method, request.path) == ("PATCH", "/api/v1/namespaces/ns/services/m")
    assert request.query == {"fieldManager": "me", "force": "true"}
    assert request.headers["Content-Type"] == "application/apply-patch+yaml"
    assert request.headers["Authorization"] == "bearer secret"
    assert request.body == manifest


def test_what_has_no_namespace_is_applied_at_the_cluster_s_path() -> None:
    with ScriptedServer(lambda request: Answer(body={})) as server:
        server.client().apply("StrataNode", {"metadata": {"name": "n"}}, manager="me", force=True)
    assert server.requests[0].path == "/apis/strata.ai/v1alpha1/stratanodes/n"


def test_only_metadata_is_asked_for_where_it_is_enough() -> None:
    with ScriptedServer(lambda request: Answer(body={})) as server:
        client = server.client()
        client.list("Service", labelSelector="a")
        client.list("Deployment")
    assert "as=PartialObjectMetadataList" in server.requests[0].headers["Accept"]
    assert server.requests[0].query == {"labelSelector": "a"}
    assert server.requests[1].headers["Accept"] == "application/json"


def test_a_list_comes_page_by_page() -> None:
    pages = iter(
        [
            {"metadata": {"resourceVersion": "5", "continue": "token"}, "items": [{"a": 1}, {"a": 2}]},
            {"metadata": {"resourceVersion": "5"}, "items": None},
        ]
    )
    with ScriptedServer(lambda request: Answer(body=next(pages))) as server:
        objects, version = server.client().list_all("StrataModel")
        assert (list(objects), version) == ([{"a": 1}, {"a": 2}], "5")
    assert [request.query for request in server.requests] == [
        {"limit": rooms.PAGE},
        {"continue": "token", "limit": rooms.PAGE},
    ]


@pytest.mark.parametrize(
    ("answer", "error", "why"),
    [
        (refusal(400, "x"), RefusedError, "bad request"),
        (refusal(403, "violates PodSecurity"), RefusedError, "an admission's no"),
        (refusal(403, 'User "u" cannot get resource "services"'), UnavailableError, "the rights are not loaded yet"),
        (refusal(404, "x"), MissingError, "not there"),
        (refusal(422, "x"), RefusedError, "invalid"),
        (refusal(401, "x"), UnavailableError, "the token is renewed"),
        (refusal(409, "x"), UnavailableError, "replaced in between"),
        (refusal(410, "x"), RefusedError, "too old a version"),
        (refusal(429, "x"), UnavailableError, "too many requests"),
        (refusal(500, "x"), UnavailableError, "an outage"),
        (refusal(503, "x"), UnavailableError, "starting"),
        (refusal(500, "failed to create typed patch object: duplicate"), RefusedError, "duplicate keys are no outage"),
        (
            refusal(403, "x is being terminated", causes=[{"reason": "NamespaceTerminating"}]),
            LeavingError,
            "the namespace is going",
        ),
        (Answer(502, b"<html>bad gateway</html>"), UnavailableError, "a proxy's page"),
        (Answer(403, b"null"), RefusedError, "no Status object"),
        (refusal(403, "webhook w denied: you cannot have this resource"), RefusedError, "a webhook, not our rights"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_answers_become_our_errors(answer: Answer, error: type[ApiError], why: str) -> None:
    with ScriptedServer(lambda request: answer) as server, pytest.raises(ApiError) as raised:
        server.client().get("Service", "ns", "m")
    assert type(raised.value) is error
    assert raised.value.status == answer.status
    assert "GET /api/v1/namespaces/ns/services/m" in str(raised.value)


def test_the_server_s_own_words_are_kept() -> None:
    answer = refusal(422, "spec.x: Invalid value")
    with ScriptedServer(lambda request: answer) as server, pytest.raises(RefusedError) as raised:
        server.client().get("Service", "ns", "m")
    assert raised.value.answer == "spec.x: Invalid value"


@pytest.mark.parametrize("page", [b"<html>", b"null"])
def test_a_proxy_s_page_is_no_answer(page: bytes) -> None:
    unavailable = pytest.raises(UnavailableError, match=f"no API server: b'{page.decode()}'")
    with ScriptedServer(lambda request: Answer(body=page)) as server, unavailable:
        server.client().get("Pod", "ns", "p")


@pytest.mark.parametrize("line", [None, [1], {"type": "ADDED"}], ids=str)
def test_a_line_that_is_no_event_breaks_the_watch(line: object) -> None:
    broke = pytest.raises(UnavailableError, match="the watch of pods broke")
    with ScriptedServer(lambda request: Answer(lines=iter([line]))) as server, broke:
        list(server.client().watch("Pod"))


def test_no_answer_is_unavailable_and_counted() -> None:
    counted: list[tuple[str, int]] = []
    client = Client(Configuration(host="http://127.0.0.1:9"), on_request=lambda *args: counted.append(args), threads=1)
    with pytest.raises(UnavailableError, match="no answer from the API server"):
        client.get("Service", "ns", "m")
    assert counted == [("get", 0)]


def test_requests_are_counted_by_verb_and_status() -> None:
    counted: list[tuple[str, int]] = []

    def answer(request: Request) -> Answer:
        return refusal(404, "x") if request.method == "GET" else Answer(body={})

    with ScriptedServer(answer) as server:
        client = server.client(lambda *args: counted.append(args))
        manifest = {"metadata": {"namespace": "ns", "name": "m"}}
        with pytest.raises(MissingError):
            client.get("Service", "ns", "m")
        client.create("Event", manifest)
        client.merge("Event", "ns", "m", {"count": 2})
        client.apply("Service", manifest, manager="me", force=False)
    assert counted == [("get", 404), ("create", 200), ("patch", 200), ("apply", 200)]


def test_an_eviction_is_of_the_very_pod() -> None:
    with ScriptedServer(lambda request: Answer(status=201, body={})) as server:
        server.client().evict("ns", "m-1", "uid-1")
    (asked,) = server.requests
    assert (asked.method, asked.path) == ("POST", "/api/v1/namespaces/ns/pods/m-1/eviction")
    assert asked.body["deleteOptions"] == {"preconditions": {"uid": "uid-1"}}
    assert (asked.body["kind"], asked.body["metadata"]["name"]) == ("Eviction", "m-1")


EVENTS: list[dict[str, Any]] = [
    {"type": "ADDED", "object": {"metadata": {"name": "ä" * 3000}}},
    {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}},
]


def test_a_watch_gives_events_until_the_server_ends_it() -> None:
    with ScriptedServer(lambda request: Answer(lines=iter(EVENTS))) as server:
        assert list(server.client().watch("Pod", resourceVersion="1")) == EVENTS
    query = server.requests[0].query
    assert (query["watch"], query["allowWatchBookmarks"], query["resourceVersion"]) == ("1", "true", "1")
    assert int(query["timeoutSeconds"]) > 0


def test_a_watch_reads_lines_however_they_are_cut() -> None:
    data = b"".join(json.dumps(event).encode() + b"\n" for event in EVENTS)
    pieces = [data[start : start + 7] for start in range(0, len(data), 7)]
    with ScriptedServer(lambda request: Answer(lines=iter(pieces))) as server:
        assert list(server.client().watch("Pod")) == EVENTS


def test_a_watch_that_breaks_off_says_so() -> None:
    with ScriptedServer(lambda request: Answer(lines=iter(EVENTS), broken=True)) as server:
        watch = server.client().watch("Pod")
        assert next(watch) == EVENTS[0]
        with pytest.raises(UnavailableError, match="the watch of pods broke"):
            list(watch)


def test_a_watch_of_a_version_that_is_gone() -> None:
    with ScriptedServer(lambda request: refusal(410, "too old")) as server, pytest.raises(ApiError) as raised:
        next(server.client().watch("Pod", resourceVersion="1"))
    assert raised.value.status == 410


def test_a_silent_watch_ends_to_be_started_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "WATCH_SILENCE_SECONDS", 0.2)
    end = threading.Event()

    def silence() -> Any:
        yield EVENTS[0]
        end.wait(30)

    with ScriptedServer(lambda request: Answer(lines=silence())) as server:
        assert list(server.client().watch("Pod")) == EVENTS[:1]
        end.set()


@pytest.mark.parametrize(
    ("seconds", "ahead"),
    [
        pytest.param(-3600, -3600, id="an hour behind"),
        pytest.param(86400, 86400, id="a day ahead"),
        pytest.param(3, 0, id="what the network may explain"),
    ],
)
def test_now_is_the_server_s_time(seconds: int, ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def date(self: object, timestamp: object = None) -> str:
        return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)

    monkeypatch.setattr("http.server.BaseHTTPRequestHandler.date_time_string", date)
    with ScriptedServer(lambda request: Answer(body={})) as server:
        client = server.client()
        assert abs((client.now() - datetime.now(UTC)).total_seconds()) < 1
        client.get("Pod", "ns", "p")
        assert abs((client.now() - datetime.now(UTC)).total_seconds() - ahead) < 2


def test_an_answer_without_a_date_that_can_be_read_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("http.server.BaseHTTPRequestHandler.date_time_string", lambda self, timestamp=None: "today")
    with ScriptedServer(lambda request: Answer(body={})) as server:
        client = server.client()
        client.get("Pod", "ns", "p")
        assert abs((client.now() - datetime.now(UTC)).total_seconds()) < 1


def test_without_credentials_the_error_says_what_to_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    with pytest.raises(ApiError, match="set KUBECONFIG"):
        rooms.configuration()
