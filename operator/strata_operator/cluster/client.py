"""One HTTP client for the API server: paths, credentials, timeouts, and its answers as dicts or as our errors."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlencode

import urllib3
from kubernetes import client as kubernetes
from kubernetes import config as kubernetes_config
from kubernetes.client.rest import RESTClientObject

from strata_operator.api.errors import ApiError, LeavingError, MissingError, RefusedError, UnavailableError
from strata_operator.api.model import API_VERSION, PLURAL
from strata_operator.api.node import NODE_KIND, NODE_PLURAL

log = logging.getLogger(__name__)

CONNECT_SECONDS = 5
READ_SECONDS = 30
# The server sends a bookmark each minute, but none for a kind of which nothing has changed yet. So silence for longer
# means a dead connection or nothing at all; a new watch from the same version tells, and costs next to nothing.
WATCH_SILENCE_SECONDS = 90

CLOCK_SLACK = timedelta(seconds=5)  # dates are whole seconds, and an answer may take some time to arrive

TOKEN_SECONDS = 30  # for which a token is used before it is read again; a kubelet renews it long before it ends

PAGE, METADATA_PAGE = "100", "200"  # objects of a list at once: a page takes some MiB
_NO_RIGHT = re.compile(r'User "[^"]*" cannot \S+ resource "')  # RBAC's words; a webhook's may be any

METADATA_ONLY = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1"


@dataclass(frozen=True, slots=True)
class Resource:
    """Where objects of a kind live."""

    api_version: str
    plural: str
    metadata_only: bool = False  # the operator reads no more of them than their metadata

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """The URL's path of one object, or of all in a namespace or the cluster."""
        root = "/api" if "/" not in self.api_version else "/apis"
        parts = [root, self.api_version, *(("namespaces", namespace) if namespace else ()), self.plural]
        return "/".join([*parts, *(part for part in (name, subresource) if part)])


RESOURCES = {
    "ServiceAccount": Resource("v1", "serviceaccounts", metadata_only=True),
    "Service": Resource("v1", "services", metadata_only=True),
    "NetworkPolicy": Resource("networking.k8s.io/v1", "networkpolicies", metadata_only=True),
    "Deployment": Resource("apps/v1", "deployments"),
    "PodDisruptionBudget": Resource("policy/v1", "poddisruptionbudgets", metadata_only=True),
    "PodMonitor": Resource("monitoring.coreos.com/v1", "podmonitors", metadata_only=True),
    "ServiceMonitor": Resource("monitoring.coreos.com/v1", "servicemonitors", metadata_only=True),
    "HTTPRoute": Resource("gateway.networking.k8s.io/v1", "httproutes"),
    "InferencePool": Resource("inference.networking.k8s.io/v1", "inferencepools"),
    "Ingress": Resource("networking.k8s.io/v1", "ingresses"),
    "DaemonSet": Resource("apps/v1", "daemonsets"),
    "Job": Resource("batch/v1", "jobs"),
    "Pod": Resource("v1", "pods"),
    "Secret": Resource("v1", "secrets"),  # the gateway's sidecar alone has the right
    "Event": Resource("v1", "events"),
    "Lease": Resource("coordination.k8s.io/v1", "leases"),
    "StrataModel": Resource(API_VERSION, PLURAL),
    "Node": Resource("v1", "nodes"),
    "CustomResourceDefinition": Resource("apiextensions.k8s.io/v1", "customresourcedefinitions"),
    NODE_KIND: Resource(API_VERSION, NODE_PLURAL),
}


def configuration() -> Any:
    """The pod's service account where there is one, else the kubeconfig of ``$KUBECONFIG`` or the home directory.

    Raises ApiError where neither is usable.
    """
    made = kubernetes.Configuration()
    try:
        kubernetes_config.load_incluster_config(client_configuration=made)
    except kubernetes_config.ConfigException:
        try:
            kubernetes_config.load_kube_config(client_configuration=made)
        except kubernetes_config.ConfigException as error:
            raise ApiError(f"no service account and no usable kubeconfig: {error}; set KUBECONFIG") from error
    return made


class Client:
    """Thread-safe. ``on_request(verb, status)`` is called after each request; status 0 means no answer."""

    def __init__(
        self, config: Any, *, on_request: Callable[[str, int], None], threads: int, read_seconds: int = READ_SECONDS
    ) -> None:
        config.connection_pool_maxsize = threads
        self.config = config
        self._on_request = on_request
        self._timeout = urllib3.Timeout(connect=min(CONNECT_SECONDS, read_seconds), read=read_seconds)
        # Of the official client the connections alone: what it makes of a request takes as long as the request does.
        self._connections = RESTClientObject(config).pool_manager
        self._token: tuple[float, str | None] = (0.0, None)  # until when (monotonic), and the header
        self.listing = threading.Semaphore(2)  # lists at a time: all kinds' at once take several times the memory
        self._ahead = timedelta()  # by how much the server's clock is, where that is more than the network explains

    def now(self) -> datetime:
        """The API server's time, as of its last answer: what it writes into objects can be compared with it, whatever
        this machine's clock says."""
        return datetime.now(UTC) + self._ahead

    def get(self, kind: str, namespace: str | None, name: str) -> dict[str, Any]:
        """One object; ``namespace`` is None for what has none. Raises MissingError where there is none."""
        return self._call("GET", RESOURCES[kind].path(namespace, name), verb="get")

    def list(self, kind: str, namespace: str | None = None, **query: str) -> dict[str, Any]:
        """One page of a list; ``query`` holds labelSelector, limit, continue and their like."""
        resource = RESOURCES[kind]
        accept = METADATA_ONLY.format("List") if resource.metadata_only else "application/json"
        return self._call("GET", resource.path(namespace), query, accept=accept, verb="list")

    def list_all(self, kind: str, namespace: str | None = None, **query: str) -> tuple[Iterator[dict[str, Any]], str]:
        """All of a kind, in a namespace or the cluster, and the version of which the list is.

        They come page by page, each forgotten once the caller goes on: a thousand objects as they are take 30 MiB.
        """
        query = {**query, "limit": METADATA_PAGE if RESOURCES[kind].metadata_only else PAGE}
        first = self.list(kind, namespace, **query)

        def objects(page: dict[str, Any]) -> Iterator[dict[str, Any]]:
            while True:
                items, after = page.get("items") or [], page["metadata"].get("continue")  # null for no metadata at all
                page = {}
                items.reverse()
                while items:
                    yield items.pop()
                if not after:
                    return
                page = self.list(kind, namespace, **query, **{"continue": after})

        return objects(first), str(first["metadata"]["resourceVersion"])

    def watch(self, kind: str, namespace: str | None = None, **query: str) -> Iterator[dict[str, Any]]:
        """Events from ``resourceVersion`` on, until the server ends it or nothing was heard for a while.

        Raises UnavailableError when it breaks.
        """
        resource = RESOURCES[kind]
        accept = METADATA_ONLY.format("") if resource.metadata_only else "application/json"
        query = {**query, "watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": "300"}
        timeout = urllib3.Timeout(connect=CONNECT_SECONDS, read=WATCH_SILENCE_SECONDS)
        path = resource.path(namespace)
        answer = self._send("GET", path, query, accept=accept, timeout=timeout, verb="watch")
        try:
            if answer.status >= 300:
                raise _error("GET", path, answer.status, answer.data)
            for line in _lines(answer):
                event = _table(line)
                if not isinstance(event.get("object"), dict):
                    raise ValueError(f"{line[:100]!r} is no event")
                yield event
        except urllib3.exceptions.ReadTimeoutError:
            return
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise UnavailableError(f"the watch of {resource.plural} broke: {error!r}") from error
        finally:
            answer.close()

    def apply(
        self, kind: str, manifest: Mapping[str, Any], *, manager: str, force: bool, subresource: str | None = None
    ) -> dict[str, Any]:
        """Server-side apply; returns the object as it is now."""
        metadata = manifest["metadata"]
        path = RESOURCES[kind].path(metadata.get("namespace"), metadata["name"], subresource)
        query = {"fieldManager": manager, "force": "true" if force else "false"}
        return self._call(
            "PATCH", path, query, body=manifest, content_type="application/apply-patch+yaml", verb="apply"
        )

    def create(self, kind: str, manifest: Mapping[str, Any], *, manager: str | None = None) -> dict[str, Any]:
        """A new object, its fields owned by ``manager``. Raises UnavailableError with status 409 where the name is
        taken."""
        path = RESOURCES[kind].path(manifest["metadata"].get("namespace"))
        query = {"fieldManager": manager} if manager is not None else {}
        return self._call("POST", path, query, body=manifest, verb="create")

    def delete(self, kind: str, namespace: str | None, name: str, *, uid: str | None = None) -> None:
        """Raises MissingError where there is no such object, UnavailableError with status 409 where it has another uid.
        It may live on for a while."""
        body = None if uid is None else {"preconditions": {"uid": uid}}
        self._call("DELETE", RESOURCES[kind].path(namespace, name), body=body, verb="delete")

    def evict(self, namespace: str, name: str, uid: str) -> None:
        """Have that very pod end. Raises UnavailableError with status 429 where a PodDisruptionBudget keeps it now."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"namespace": namespace, "name": name},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        self._call("POST", RESOURCES["Pod"].path(namespace, name, "eviction"), body=body, verb="create")

    def merge(self, kind: str, namespace: str | None, name: str, patch: Mapping[str, Any]) -> dict[str, Any]:
        """JSON merge patch. With a ``metadata.resourceVersion`` in it, one that is too old raises UnavailableError."""
        path = RESOURCES[kind].path(namespace, name)
        return self._call("PATCH", path, body=patch, content_type="application/merge-patch+json", verb="patch")

    def _call(self, method: str, path: str, query: Mapping[str, str] | None = None, **options: Any) -> dict[str, Any]:
        response = self._send(method, path, query or {}, timeout=self._timeout, **options)
        try:
            data = response.data
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise UnavailableError(f"{method} {path}: the answer broke off: {error!r}") from error
        if response.status >= 300:
            raise _error(method, path, response.status, data)
        try:
            return _table(data)
        except ValueError as error:
            raise UnavailableError(f"{method} {path}: what answers is no API server: {data[:100]!r}") from error

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        *,
        verb: str,
        timeout: urllib3.Timeout,
        accept: str = "application/json",
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> urllib3.BaseHTTPResponse:
        """The answer, of which nothing has been read yet but its headers."""
        headers = {"Accept": accept, "User-Agent": "strata-operator"}
        if (token := self._authorization()) is not None:
            headers["Authorization"] = token
        if body is not None:
            headers["Content-Type"] = content_type
        try:
            response: urllib3.BaseHTTPResponse = self._connections.urlopen(
                method,
                self.config.host + path + (f"?{urlencode(query)}" if query else ""),
                body=None if body is None else json.dumps(body).encode(),
                headers=headers,
                timeout=timeout,
                redirect=False,
                retries=False,  # the queue retries, with back-off and knowing what for
                preload_content=False,
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            self._on_request(verb, 0)
            raise UnavailableError(f"{method} {path}: no answer from the API server: {error!r}") from error
        self._on_request(verb, response.status)
        if response.status == 401:
            self._token = (0.0, None)
        self._see_time(response.headers.get("Date"))
        return response

    def _authorization(self) -> str | None:
        until, token = self._token
        if time.monotonic() >= until:
            token = self.config.get_api_key_with_prefix("BearerToken", alias="authorization")
            self._token = (time.monotonic() + TOKEN_SECONDS, token)
        return token

    def _see_time(self, date: str | None) -> None:
        """An HTTP date, in whole seconds, of when the answer was sent."""
        try:
            ahead = parsedate_to_datetime(date or "") - datetime.now(UTC)
        except (ValueError, TypeError):
            return
        if abs(ahead - self._ahead) > CLOCK_SLACK:
            log.info("the API server's clock is %.0f s ahead of this one", ahead.total_seconds())
            self._ahead = ahead


def _table(data: bytes) -> dict[str, Any]:
    """Raises ValueError for what is no JSON object."""
    made = json.loads(data)
    if not isinstance(made, dict):
        raise ValueError(f"{data[:100]!r} is no object")
    return made


def _lines(answer: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    rest = b""
    for piece in answer.stream(amt=None):
        *lines, rest = (rest + piece).split(b"\n")
        yield from filter(None, lines)


def _error(method: str, path: str, status: int, data: bytes) -> ApiError:
    """The server's own words, in our tree. A body that is no Status is quoted as it is."""
    try:
        said = json.loads(data)
        answer = str(said["message"])
        causes = {cause.get("reason") for cause in (said.get("details") or {}).get("causes") or []}
    except (ValueError, KeyError, TypeError, AttributeError):
        answer, causes = data.decode(errors="replace")[:500], set()
    made: type[ApiError] = RefusedError
    if status == 404:
        made = MissingError
    elif "NamespaceTerminating" in causes:
        made = LeavingError
    elif status == 403 and _NO_RIGHT.search(answer):
        made = UnavailableError  # our rights, not the manifest: an API server that starts up denies all for a moment
    elif status in (401, 408, 409, 429) or status >= 500:
        # Server-side apply answers 500 to a manifest with duplicate keys; that is no outage.
        made = RefusedError if "failed to create typed patch object" in answer else UnavailableError
    return made(f"{method} {path}: {status}: {answer}", status=status, answer=answer)
