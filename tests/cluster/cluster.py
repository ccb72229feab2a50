"""A cluster as a whole: up, down, and what one does with it in between."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.cluster import addons, cgroups, controlplane, gpu, images, machine, node, pki, prerequisites, processes
from tests.cluster.api import Api
from tests.cluster.build import Report, build
from tests.cluster.errors import ApiError, ClusterError, CommandError
from tests.cluster.instance import DEFAULT_NAME, Instance, Network
from tests.cluster.parts import PARTS, binary, cache_root, part
from tests.cluster.service import Service, Site
from tests.cluster.shell import answers, locked, run

# For anything to become ready. It takes some seconds; this is for a machine that is busy with ten other things.
# A process that dies is noticed at once.
_PATIENCE_SECONDS = 180
_USER_TOOLS = ("kubectl", "helm")


def _say(line: str) -> None:
    print(line, flush=True)


@dataclass(frozen=True)
class Cluster:
    """A running cluster. Made by `up` or `attach`."""

    instance: Instance
    network: Network

    # -- life ---------------------------------------------------------------------------------------------------

    @classmethod
    def up(cls, name: str = DEFAULT_NAME, *, kwok: bool = False, report: Report = _say) -> Self:
        """Builds what is missing and starts what does not run; returns at once if all does.

        What was left by an interruption, a crash or a reboot is cleared away first. Others who call this at the same
        time, from other processes, wait and then find it up. `kwok` allows pretend nodes.

        Raises PrerequisiteError, BuildError, StartError.
        """
        instance = Instance.named(name)
        prerequisites.check(report)
        build([p for p in PARTS if not p.optional or kwok], report)
        with instance_lock(instance, report):
            start = time.monotonic()
            cluster = cls._running(instance)
            if cluster is not None and not cluster._missing_roles():
                report(f"cluster {name}: already up")
            else:
                if cluster is None:
                    _sweep(instance)
                    cluster = cls._prepare(instance)
                cluster._start_all()
                report(f"cluster {name}: up in {time.monotonic() - start:.1f} s, registry {cluster.registry}")
            if kwok:
                cluster._ensure_kwok()
            return cluster

    @classmethod
    def attach(cls, name: str = DEFAULT_NAME) -> Self:
        """The cluster of that name. ClusterError if it is not up."""
        cluster = cls._running(Instance.named(name), any_version=True)
        if cluster is None:
            raise ClusterError(f"cluster {name} is not up; start it with `python3 -m tests.cluster --name {name} up`")
        return cluster

    def down(self, *, purge: bool = False) -> None:
        tear_down(self.instance, purge=purge)

    def start(self, role: str) -> None:
        """Starts one process that was stopped, or does not run for another reason."""
        service = self._service(role)
        if processes.main_process(self.instance, role) is None:
            machine.spawn(self.instance, role, service.command, service.environment)

    def stop(self, role: str) -> None:
        """Ends one process and waits until it is gone."""
        service = self._service(role)
        process = processes.main_process(self.instance, role)
        if process is not None:
            processes.stop([process], service.grace_seconds)

    # -- what it offers -----------------------------------------------------------------------------------------

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
        direct = ",".join(filter(None, (os.environ.get("NO_PROXY", ""), str(self.network.block))))
        return os.environ | {
            "KUBECONFIG": str(self.kubeconfig),
            "STRATA_REGISTRY": self.registry,
            "PATH": f"{self.instance.state / 'bin'}:{os.environ.get('PATH', os.defpath)}",
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

    # -- images -------------------------------------------------------------------------------------------------

    def load_image(self, archive: Path) -> str:
        """Imports an OCI or docker archive into the node's containerd; what `ctr` said."""
        return self._import(archive.read_bytes())

    def push_binary_image(self, name: str, program: Path) -> str:
        """An image that holds this one static program, in the registry; returns its reference."""
        image = images.of_binary(program)
        return image.push(self.registry, name, image.digest.removeprefix("sha256:")[:12])

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
        build([part("kwok")], report=lambda _: None)
        with instance_lock(self.instance, lambda _: None):
            self._ensure_kwok()
        with Api(self.kubeconfig) as api:
            return gpu.add_nodes(api, number, product, vram_mib, count)

    def remove_gpu_nodes(self) -> None:
        with Api(self.kubeconfig) as api:
            gpu.remove_nodes(api)

    # -- how it comes to be -------------------------------------------------------------------------------------

    @property
    def services(self) -> tuple[Service, ...]:
        """In the order in which they start."""
        site = Site(self.instance, self.network)
        return (
            controlplane.etcd(),
            controlplane.apiserver(site),
            addons.registry(site),
            node.containerd(site),
            controlplane.controller_manager(site),
            controlplane.scheduler(site),
            node.kubelet(site),
            node.proxy(site),
            addons.dns(site),
        )

    @property
    def fingerprint(self) -> str:
        """Of all that decides how the processes run: another means that they are another version's."""
        said = [(service.command, service.environment, service.files) for service in self.services]
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]

    @classmethod
    def _running(cls, instance: Instance, *, any_version: bool = False) -> Self | None:
        """None if there is nothing, or nothing that can be gone on with."""
        if processes.main_process(instance, machine.ROLE) is None:
            return None
        try:
            record = json.loads(instance.record.read_text())
        except FileNotFoundError:
            return None
        cluster = cls(instance, Network(record["slot"]))
        return cluster if any_version or record["fingerprint"] == cluster.fingerprint else None

    @classmethod
    def _prepare(cls, instance: Instance) -> Self:
        """All that must be there before the first process; the record comes last."""
        for folder in (instance.state / "config", cache_root() / "registry" / instance.name):
            folder.mkdir(parents=True, exist_ok=True)
        instance.state.chmod(0o700)
        machine.start(instance)
        network = machine.connect(instance)
        cgroups.create(instance.cgroup)
        cluster = cls(instance, network)
        secrets = instance.state / "pki"
        pki.create(secrets, pki.identities(instance, network))
        cluster._write_config(*cluster.services)
        instance.kubeconfig.touch(mode=0o600)
        instance.kubeconfig.write_text(pki.kubeconfig(instance.name, network.api_url, secrets, "admin", embed=True))
        tools = instance.state / "bin"
        tools.mkdir()
        for tool in _USER_TOOLS:
            (tools / tool).symlink_to(binary(tool))
        record = {"slot": network.slot, "fingerprint": cluster.fingerprint}
        partial = instance.record.with_suffix(".partial")
        partial.write_text(json.dumps(record))
        partial.rename(instance.record)
        return cluster

    def _write_config(self, *services: Service) -> None:
        for service in services:
            for name, text in service.files.items():
                path = self.instance.state / "config" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)

    def _missing_roles(self) -> list[str]:
        running = {process.role for process in processes.find(self.instance) if process.is_main}
        return [service.role for service in self.services if service.role not in running]

    def _start_all(self) -> None:
        """The API server first, since everyone would only ask for it in vain and take its CPU time."""
        first = ("etcd", "kube-apiserver", "registry", "containerd")
        for role in first:
            self.start(role)
        # It listens long before it answers; somebody who waits for the answer would not see it die.
        with Api(self.kubeconfig, timeout_seconds=2) as api:
            self._wait(api.is_ready, "the API server", "etcd", "kube-apiserver")
            for service in self.services:
                self.start(service.role)
            self._wait(self._runtime_answers, "containerd", "containerd")
            self._import(images.of_binary(binary("pause")).archive(node.PAUSE_IMAGE))
            roles = [service.role for service in self.services]
            self._wait(lambda: _is_node_ready(api, self.node), "the node to be Ready", *roles)
            self._wait(lambda: _has_default_account(api), "the default service account", *roles)
        self._wait(lambda: answers(addons.dns_ready_url(self.network)), "cluster DNS", *roles)

    def _ensure_kwok(self) -> None:
        self._write_config(self._service("kwok"))
        self.start("kwok")

    def _service(self, role: str) -> Service:
        known = (*self.services, addons.kwok(Site(self.instance, self.network)))
        for service in known:
            if service.role == role:
                return service
        raise ClusterError(f"no process is called {role!r}; there are {', '.join(s.role for s in known)}")

    def _wait(self, condition: Callable[[], bool], what: str, *roles: str) -> None:
        processes.wait_until(condition, _PATIENCE_SECONDS, what, instance=self.instance, roles=roles)

    def _runtime_answers(self) -> bool:
        with suppress(CommandError):
            self._ctr("version")
            return True
        return False

    def _import(self, archive: bytes) -> str:
        return self._ctr("images", "import", "-", stdin=archive)

    def _ctr(self, *args: str, stdin: bytes | None = None) -> str:
        command = [str(binary("ctr")), "--address", str(node.CONTAINERD_SOCKET), "--namespace", "k8s.io", *args]
        return machine.enter(self.instance, command, stdin)


def instance_lock(instance: Instance, report: Report) -> Any:
    return locked(instance.lock, lambda: report(f"cluster {instance.name}: in use by another process; waiting for it"))


def tear_down(instance: Instance, *, purge: bool = False, report: Report = _say) -> None:
    """Leaves nothing of the cluster, whatever state it is in. `purge` also forgets the images pushed to it."""
    with instance_lock(instance, report):
        _sweep(instance)
        if purge:
            shutil.rmtree(cache_root() / "registry" / instance.name, ignore_errors=True)
        instance.lock.unlink()


def _sweep(instance: Instance) -> None:
    # Nothing of it is kept, so nobody is asked politely; the kubelet and containerd first, lest they start something.
    slot = json.loads(instance.record.read_text())["slot"] if instance.record.exists() else None
    found = processes.find(instance)
    processes.stop([process for process in found if process.role in ("kubelet", "containerd")], grace_seconds=0)
    cgroups.kill(instance.cgroup)
    while found := processes.find(instance):
        processes.stop(found, grace_seconds=0)
    if slot is not None:
        machine.disconnect(Network(slot))
    if instance.state.exists():
        shutil.rmtree(instance.state)


def _is_node_ready(api: Api, name: str) -> bool:
    try:
        status = api.get(f"/api/v1/nodes/{name}")["status"]
    except ApiError as error:
        if error.status in (0, 404):
            return False
        raise
    return any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", []))


def _has_default_account(api: Api) -> bool:
    try:
        api.get("/api/v1/namespaces/default/serviceaccounts/default")
    except ApiError:
        return False
    return True
