"""LiteLLM's proxy as the gateway's image runs it, as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from strata_operator.gateway.backend import Backend
from strata_operator.gateway.client_key import ClientKey
from strata_operator.gateway.render import document
from tests.environment import ROOT, gateway_python
from tests.operator.gateway.objects import model, secret
from tests.operator.test_main import free_port

SERVE = ROOT / "images" / "strata-gateway" / "serve.py"
START_SECONDS = 240  # it imports a lot; a busy machine takes minutes


class Proxy:
    """``tell`` it models and keys, as the sidecar does."""

    def __init__(self, folder: Path) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self.log = folder / "log"
        self._file = folder / "gateway.json"
        self._process: subprocess.Popen[bytes] | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """From its first answer on; it ends afterwards, or has ended."""
        try:
            self._start()
            yield
        finally:
            if self._process is not None:
                self._process.terminate()
                self._process.wait(START_SECONDS)

    def terminate(self) -> None:
        assert self._process is not None
        self._process.terminate()

    def wait(self) -> int:
        assert self._process is not None
        return self._process.wait(START_SECONDS)

    def _start(self) -> None:
        env = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        env |= {"HOME": str(self._file.parent), "STRATA_GATEWAY_FILE": str(self._file)}
        command = [str(gateway_python()), str(SERVE), "--host", "127.0.0.1", "--port", self.url.rpartition(":")[2]]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(command, env=env, cwd=self._file.parent, stdout=log, stderr=log)
        until = time.monotonic() + START_SECONDS
        while not self._answers():
            assert self._process.poll() is None, self.log.read_text()
            assert time.monotonic() < until, self.log.read_text()
            time.sleep(0.1)

    def tell(self, models: Mapping[str, tuple[str, str | None]], keys: Iterable[Mapping[str, Any]] = ()) -> None:
        """Models by NAMESPACE/NAME, the oldest first, each with its URL and key; Secrets with clients' keys."""
        backends, keyed = {}, {}
        for minute, (place, (_, key)) in enumerate(models.items()):
            namespace, _, name = place.partition("/")
            service = {"service": {"apiKeysSecretRef": {"name": name}}} if key else {}
            backends[place] = Backend.of(model(name, namespace, minute, **service))
            if key:
                keyed[namespace, name, "keys"] = key
        told = document(backends.values(), map(ClientKey.of, keys), keyed)
        for one in told["model_list"]:  # there is no cluster whose DNS knows it
            one["litellm_params"]["api_base"] = f"{models[one['model_info']['id']][0]}/v1"
        partial = self._file.with_suffix(".partial")
        partial.write_text(json.dumps(told))
        partial.rename(self._file)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health/readiness", trust_env=False).status_code == 200
        except httpx.TransportError:
            return False


def key(name: str, **entries: str) -> dict[str, Any]:
    """A Secret with the key that ``secret_of`` names."""
    return secret(name, key=secret_of(name), **entries)


def secret_of(name: str) -> str:
    return f"sk-{name}-0123456789abcdef"
