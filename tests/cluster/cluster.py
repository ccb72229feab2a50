"""A running cluster, as demo and tests see it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.cluster import gpu, images, lifecycle, machine, prerequisites, processes
from tests.cluster.api import Api
from tests.cluster.build import build
from tests.cluster.errors import ClusterError
from tests.cluster.instance import DEFAULT_NAME, Instance, Network
from tests.cluster.lifecycle import Report
from tests.cluster.parts import PARTS, binary, part
from tests.cluster.service import Service, Site
from tests.cluster.shell import run


def _say(line: str) -> None:
    print(line, flush=True)


@dataclass(frozen=True)
class Cluster:
    """Made by `up` or `attach`."""

    site: Site

    # -- life ---------------------------------------------------------------------------------------------------

    @classmethod
    def up(cls, name: str = DEFAULT_NAME, *, kwok: bool = False, report: Report = _say) -> Self:
        """Builds what is missing, starts what does not run, and returns when all is ready.

        What was left by an interruption, a crash or a reboot is cleared away first. Others who call this at the same
        time, from other processes, wait and then find it up. `kwok` allows pretend nodes.

        Raises PrerequisiteError, BuildError, StartError.
        """
        instance = Instance.named(name)
        prerequisites.check(report)
        build([p for p in PARTS if not p.optional or (kwok and p.name == "kwok")], report)
        with lifecycle.lock(instance, report):
            site = lifecycle.bring_up(instance, report)
            if kwok:
                lifecycle.start_optional(site, "kwok")
        return cls(site)

    @classmethod
    def attach(cls, name: str = DEFAULT_NAME) -> Self:
        """The cluster of that name. ClusterError if it is not up."""
        site = lifecycle.running(Instance.named(name))
        if site is None:
            raise ClusterError(f"cluster {name} is not up; start it with `python3 -m tests.cluster --name {name} up`")
        return cls(site)

    @classmethod
    @contextmanager
    def lent(cls, name: str) -> Iterator[Self]:
        """The cluster of that name, with kwok; it goes down again afterwards unless it was up before."""
        was_up = lifecycle.running(Instance.named(name)) is not None
        cluster = cls.up(name, kwok=True)
        try:
            yield cluster
        finally:
            if not was_up:
                cluster.down()

    def down(self, *, purge: bool = False) -> None:
        lifecycle.tear_down(self.instance, purge=purge)

    def start(self, role: str) -> None:
        """Starts one process that was stopped, or does not run for another reason."""
        with lifecycle.lock(self.instance):
            lifecycle.start(self.site, role)

    def stop(self, role: str) -> None:
        """Ends one process and waits until it is gone."""
        with lifecycle.lock(self.instance):
            lifecycle.stop(self.site, role)

    def kill(self, role: str) -> None:
        """Ends one process as a crash does: it is not asked first."""
        with lifecycle.lock(self.instance):
            lifecycle.stop(self.site, role, kill=True)

    def restart(self, role: str) -> None:
        """Ends one process and starts it again, with nobody else starting it in between."""
        with lifecycle.lock(self.instance):
            lifecycle.stop(self.site, role)
            lifecycle.start(self.site, role)

    # -- what it offers -----------------------------------------------------------------------------------------

    @property
    def instance(self) -> Instance:
        return self.site.instance

    @property
    def network(self) -> Network:
        return self.site.network

    @property
    def services(self) -> tuple[Service, ...]:
        return lifecycle.services(self.site)

    @property
    def name(self) -> str:
        return self.instance.name

    @property
    def kubeconfig(self) -> Path:
        return self.instance.kubeconfig

    @property
    def registry(self) -> str:
        """host:port, plain HTTP, the same from this machine and from the node."""
        return self.network.registry

    @property
    def node(self) -> str:
        return self.instance.node

    def bin(self, program: str) -> Path:
        return binary(program)

    def env(self) -> dict[str, str]:
        """The environment to run kubectl, helm and friends in."""
        direct = _with(str(self.network.block), os.environ.get("NO_PROXY", ""), ",")
        return os.environ | {
            "KUBECONFIG": str(self.kubeconfig),
            "STRATA_REGISTRY": self.registry,
            "PATH": _with(str(self.instance.state / "bin"), os.environ.get("PATH", os.defpath), os.pathsep),
            "NO_PROXY": direct,
            "no_proxy": direct,
        }

    def kubectl(self, *args: str, input: str | None = None) -> str:  # noqa: A002 - as in subprocess
        return run([self.bin("kubectl"), *args], input=input, env=self.env())

    def get_json(self, *args: str) -> Any:
        return json.loads(self.kubectl("get", *args, "-o", "json"))

    def wait_for(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        processes.wait_until(condition, seconds, what, instance=self.instance)

    def logs(self, role: str, lines: int = 50) -> str:
        """The last lines of a process' log."""
        path = self.instance.log(role)
        if not path.exists():
            known = ", ".join(sorted(log.stem for log in path.parent.glob("*.log")))
            raise ClusterError(f"cluster {self.name} has no log of {role!r}; it has {known}")
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])

    def on_node(self, *command: str) -> str:
        """Runs a command where the node's files and network are; what it printed."""
        return machine.enter(self.instance, command)

    # -- images -------------------------------------------------------------------------------------------------

    def load_image(self, archive: Path) -> str:
        """Imports an OCI or docker archive into the node's containerd; what `ctr` said."""
        return lifecycle.ctr(self.instance, "images", "import", "-", stdin=archive.read_bytes())

    def push_binary_image(self, name: str, program: Path) -> str:
        """An image that holds this one static program, in the registry; returns its reference."""
        image = images.of_binary(program)
        return image.push(self.registry, name, image.digest.removeprefix("sha256:")[:12])

    # -- network policies ---------------------------------------------------------------------------------------

    @contextmanager
    def enforced_policies(self) -> Iterator[None]:
        """Meanwhile NetworkPolicies hold, soon after each change of theirs or of a pod. Builds kube-router for it."""
        build([part("kube-router")], _say)
        with lifecycle.lock(self.instance):
            lifecycle.start_optional(self.site, "kube-router")
        try:
            yield
        finally:
            self.stop("kube-router")

    # -- pretend GPUs -------------------------------------------------------------------------------------------

    def add_pretend_gpu(self, count: int = 1, product: str = "NVIDIA-GeForce-RTX-3090", vram_mib: int = 24576) -> None:
        """Labels the real node and gives it `nvidia.com/gpu`: pods that ask for one run, without a GPU inside."""
        with Api(self.kubeconfig) as api:
            gpu.add_to_node(api, self.node, product, vram_mib, count)

    def remove_pretend_gpu(self) -> None:
        with Api(self.kubeconfig) as api:
            gpu.remove_from_node(api, self.node)

    def add_gpu_nodes(
        self, number: int, product: str = "NVIDIA-GeForce-RTX-3090", vram_mib: int = 24576, count: int = 1
    ) -> list[str]:
        """Pretend nodes, each with `count` GPUs; their names. Builds and starts kwok if `up` did not."""
        kwok = part("kwok")
        if not kwok.is_built:
            build([kwok], _say)
        with lifecycle.lock(self.instance):
            lifecycle.start_optional(self.site, "kwok")
        with Api(self.kubeconfig) as api:
            return gpu.add_nodes(api, number, product, vram_mib, count)

    def remove_gpu_nodes(self) -> None:
        with Api(self.kubeconfig) as api:
            gpu.remove_nodes(api)


def _with(entry: str, entries: str, separator: str) -> str:
    """A list variable with the entry at its head, and only there: taking it over twice changes nothing."""
    return separator.join(dict.fromkeys([entry, *filter(None, entries.split(separator))]))
