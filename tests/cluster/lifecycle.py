"""How a cluster comes up and goes down, from whatever state it is in."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress

from tests.cluster import addons, cgroups, controlplane, images, machine, node, pki, processes
from tests.cluster.api import Api
from tests.cluster.errors import ApiError, ClusterError, CommandError
from tests.cluster.instance import Instance, Network
from tests.cluster.parts import binary, cache_root
from tests.cluster.service import Service, Site
from tests.cluster.shell import answers, locked

Report = Callable[[str], None]

# For anything to become ready. It takes some seconds; this is for a machine that is busy with ten other things.
# A process that dies is noticed at once.
_PATIENCE_SECONDS = 180
_USER_TOOLS = ("kubectl", "helm")


def services(site: Site) -> tuple[Service, ...]:
    """All that always runs, in the order in which it starts."""
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


def service(site: Site, role: str) -> Service:
    known = (*services(site), addons.kwok(site), addons.kube_router(site))
    for candidate in known:
        if candidate.role == role:
            return candidate
    raise ClusterError(f"no process is called {role!r}; there are {', '.join(s.role for s in known)}")


def fingerprint(site: Site) -> str:
    """Of all that decides how the processes run: another means that they are another version's."""
    said = [(each.command, each.environment, each.files) for each in services(site)]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]


def lock(instance: Instance, report: Report = lambda _: None) -> AbstractContextManager[None]:
    """Whoever changes which processes run holds it."""
    return locked(instance.lock, lambda: report(f"cluster {instance.name}: in use by another process; waiting for it"))


def running(instance: Instance) -> Site | None:
    """What there is to go on with: namespaces with a complete record. None if there is not."""
    if processes.main_process(instance, machine.ROLE) is None or not instance.record.exists():
        return None
    return Site(instance, Network(json.loads(instance.record.read_text())["slot"]))


def bring_up(instance: Instance, report: Report) -> Site:
    """Starts what does not run and waits until all is ready. The caller holds the lock."""
    begin = time.monotonic()
    site = running(instance)
    if site is not None and json.loads(instance.record.read_text())["fingerprint"] != fingerprint(site):
        report(f"cluster {instance.name}: another version of it is up; starting it anew")
        site = None
    if site is None:
        sweep(instance)
        site = _prepare(instance)
    up = {process.role for process in processes.find(instance) if process.is_main}
    missing = [each.role for each in services(site) if each.role not in up]
    _start_all(site)
    how = f"up in {time.monotonic() - begin:.1f} s" if missing else "already up"
    report(f"cluster {instance.name}: {how}, registry {site.network.registry}")
    return site


def start(site: Site, role: str) -> None:
    """Starts one process, unless it runs."""
    described = service(site, role)
    if processes.main_process(site.instance, role) is None:
        machine.spawn(site.instance, role, described.command, described.environment)
        # What was spawned is seen as its role only once it runs its own program.
        processes.wait_until(
            lambda: processes.main_process(site.instance, role) is not None,
            30,
            f"{role} to run",
            instance=site.instance,
        )


def stop(site: Site, role: str, *, kill: bool = False) -> None:
    """Ends one process and waits until it is gone. ``kill``: without asking it first."""
    described = service(site, role)
    process = processes.main_process(site.instance, role)
    if process is not None:
        processes.stop([process], 0 if kill else described.grace_seconds)


def start_optional(site: Site, role: str) -> None:
    """Starts a process that is not among those that always run."""
    _write_config(site.instance, service(site, role))
    start(site, role)


def ctr(instance: Instance, *args: str, stdin: bytes | None = None) -> str:
    """containerd's own client, where the kubelet's images are."""
    command = [str(binary("ctr")), "--address", str(node.CONTAINERD_SOCKET), "--namespace", "k8s.io", *args]
    return machine.enter(instance, command, stdin)


def tear_down(instance: Instance, *, purge: bool = False, report: Report = lambda _: None) -> None:
    """Leaves nothing of the cluster, whatever state it is in. `purge` also forgets the images pushed to it."""
    with lock(instance, report):
        report(f"cluster {instance.name}: ending its processes, freeing its network and mounts")
        sweep(instance)
        if purge:
            shutil.rmtree(cache_root() / "registry" / instance.name, ignore_errors=True)
        instance.lock.unlink()


def sweep(instance: Instance) -> None:
    """Nothing of it is kept, so nobody is asked politely. The caller holds the lock."""
    machine.disconnect(instance)
    # The kubelet and containerd first, lest they start something.
    starters = [process for process in processes.find(instance) if process.role in ("kubelet", "containerd")]
    processes.stop(starters, grace_seconds=0)
    cgroups.kill(instance.cgroup)
    while found := processes.find(instance):
        processes.stop(found, grace_seconds=0)
    if instance.state.exists():
        shutil.rmtree(instance.state)


def _prepare(instance: Instance) -> Site:
    """All that must be there before the first process; the record, which makes it count, comes last."""
    for folder in (instance.state / "bin", cache_root() / "registry" / instance.name):
        folder.mkdir(parents=True, exist_ok=True)
    instance.state.chmod(0o700)
    for tool in _USER_TOOLS:
        (instance.state / "bin" / tool).symlink_to(binary(tool))
    machine.start(instance)
    site = Site(instance, machine.connect(instance))
    cgroups.create(instance.cgroup)
    secrets = instance.state / "pki"
    pki.create(secrets, pki.identities(instance, site.network))
    _write_config(instance, *services(site))
    instance.kubeconfig.touch(mode=0o600)
    instance.kubeconfig.write_text(pki.kubeconfig(instance.name, site.network.api_url, secrets, "admin", embed=True))
    partial = instance.record.with_suffix(".partial")
    partial.write_text(json.dumps({"slot": site.network.slot, "fingerprint": fingerprint(site)}))
    partial.rename(instance.record)
    return site


def _write_config(instance: Instance, *described: Service) -> None:
    for each in described:
        for name, text in each.files.items():
            path = instance.state / "config" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


def _start_all(site: Site) -> None:
    instance = site.instance

    def wait(condition: Callable[[], bool], what: str, *roles: str) -> None:
        processes.wait_until(condition, _PATIENCE_SECONDS, what, instance=instance, roles=roles)

    # The API server and what it needs first: others would only ask for it in vain and take its CPU time.
    for role in ("etcd", "kube-apiserver", "registry", "containerd"):
        start(site, role)
    # It listens long before it answers; somebody who waits for the answer would not see it die.
    with Api(instance.kubeconfig, timeout_seconds=2) as api:
        wait(api.is_ready, "the API server", "etcd", "kube-apiserver")
        roles = [each.role for each in services(site)]
        for role in roles:
            start(site, role)
        wait(lambda: _runtime_answers(instance), "containerd", "containerd")
        ctr(instance, "images", "import", "-", stdin=images.of_binary(binary("pause")).archive(node.PAUSE_IMAGE))
        wait(lambda: _is_node_ready(api, instance.node), "the node to be Ready", *roles)
        wait(lambda: _has_default_account(api), "the default service account", *roles)
    wait(lambda: answers(addons.dns_ready_url(site.network)), "cluster DNS", *roles)
    wait(lambda: answers(f"http://{site.network.registry}/v2/"), "the image registry", *roles)


def _runtime_answers(instance: Instance) -> bool:
    with suppress(CommandError):
        ctr(instance, "version")
        return True
    return False


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
    except ApiError as error:
        if error.status in (0, 404):
            return False
        raise
    return True
