"""The cluster that a journey works on: the local one, or the one that ``STRATA_KUBECONFIG`` names."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster import Cluster

PORT_FORWARD_SECONDS = 30


class JourneyError(Exception):
    """A journey cannot go on; the message says what was expected, what came, and what to do."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where kubectl and helm point, and where images are pushed to."""

    kubeconfig: Path
    registry: str
    env: Mapping[str, str] = field(repr=False)
    is_local: bool  # the host reaches Services by their cluster IP

    @classmethod
    def local(cls, cluster: Cluster) -> Target:
        return cls(kubeconfig=cluster.kubeconfig, registry=cluster.registry, env=cluster.env(), is_local=True)

    @classmethod
    def foreign(cls, kubeconfig: str) -> Target:
        """A cluster of the user's own. Raises JourneyError where something is missing to use it."""
        path = Path(kubeconfig).expanduser().resolve()
        if not path.is_file():
            raise JourneyError(f"STRATA_KUBECONFIG is {kubeconfig!r}, which is not a file")
        registry = os.environ.get("STRATA_REGISTRY", "")
        if not registry:
            raise JourneyError(
                "STRATA_KUBECONFIG names a cluster of yours: the images go to a registry that its nodes can pull from. "
                "Set STRATA_REGISTRY to its host:port or host/path (`buildah login` first where it wants a login)"
            )
        missing = [tool for tool in ("kubectl", "helm") if shutil.which(tool) is None]
        if missing:
            raise JourneyError(f"needed on the PATH to use your cluster: {', '.join(missing)}")
        env = {**os.environ, "KUBECONFIG": str(path)}
        return cls(kubeconfig=path, registry=registry, env=env, is_local=False)

    def run(self, *command: str, check: bool = True, stdin: str | None = None) -> str:
        """Standard output of kubectl, helm and the like. Raises JourneyError with what the command said."""
        done = subprocess.run(command, env=self.env, input=stdin, capture_output=True, text=True, check=False)
        if check and done.returncode != 0:
            raise JourneyError(f"`{' '.join(command)}` failed:\n{(done.stderr or done.stdout).strip()}")
        return done.stdout

    @contextmanager
    def service(self, namespace: str, name: str) -> Iterator[str]:
        """``http://host:port`` of a Service, as seen from here."""
        fields = "{.spec.clusterIP} {.spec.ports[0].port}"
        shown = self.run("kubectl", "get", "service", name, "-n", namespace, "-o", f"jsonpath={fields}")
        address, port = shown.split()
        if self.is_local:
            yield f"http://{address}:{port}"
            return
        with self._forwarded(namespace, name, port) as url:
            yield url

    @contextmanager
    def _forwarded(self, namespace: str, name: str, port: str) -> Iterator[str]:
        command = ["kubectl", "port-forward", "-n", namespace, f"service/{name}", f":{port}"]
        pipe, both = subprocess.PIPE, subprocess.STDOUT
        with subprocess.Popen(command, env=self.env, stdout=pipe, stderr=both, text=True) as process:
            too_late = threading.Timer(PORT_FORWARD_SECONDS, process.terminate)
            too_late.start()
            try:
                said = process.stdout.readline() if process.stdout else ""
                too_late.cancel()
                found = re.search(r"127\.0\.0\.1:(\d+)", said)
                if found is None:
                    raise JourneyError(f"`{' '.join(command)}` did not open a port: {said.strip() or 'no answer'}")
                yield f"http://127.0.0.1:{found[1]}"
            finally:
                too_late.cancel()
                process.terminate()
