from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from images import registry
from images.buildah import BuildError


class Registry(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/v2/" else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(params=[200, 401], ids=["open", "wants a login"])
def plain_registry(request: pytest.FixtureRequest) -> Iterator[str]:
    handler = type("Answers", (Registry,), {"status": request.param})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_registry_without_tls_is_recognised(plain_registry: str) -> None:
    assert registry.speaks_plain_http(plain_registry)
    assert registry.speaks_plain_http(f"{plain_registry}/team")


def test_an_address_without_a_registry_is_an_error_that_names_it() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(BuildError, match=f"no image registry answers at {address}"):
            registry.speaks_plain_http(address)


def test_a_reference_names_the_registry_in_place_of_localhost() -> None:
    assert registry.in_registry("localhost/strata-engine:1", "host:5000/team") == "host:5000/team/strata-engine:1"
