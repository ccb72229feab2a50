from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster import processes
from tests.cluster.errors import StartError
from tests.cluster.instance import Instance

Start = Callable[[str, str], "subprocess.Popen[bytes]"]


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    return Instance("try", tmp_path / "try")


@pytest.fixture
def start(instance: Instance) -> Iterator[Start]:
    """start(role, script): a shell of the cluster, and back once it is recognised."""
    started = []

    def run(role: str, script: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(["sh", "-c", script], env=processes.environment(instance, role, []))
        started.append(process)
        while process.pid not in [found.pid for found in processes.find(instance)]:
            time.sleep(0.01)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()


def test_a_process_is_found_by_its_mark_with_its_role(instance: Instance, start: Start) -> None:
    pid = start("etcd", "sleep 60; :").pid
    assert {process.role for process in processes.find(instance)} == {"etcd"}
    found = processes.main_process(instance, "etcd")
    assert found is not None
    assert found.pid == pid


def test_another_clusters_processes_are_not_ours(instance: Instance, start: Start) -> None:
    start("etcd", "sleep 60; :")
    assert processes.find(Instance("try", instance.state.with_name("try-2"))) == []


def test_what_a_role_started_itself_is_not_its_main_process(instance: Instance, start: Start) -> None:
    shell = start("containerd", "exec sleep 60")
    while processes.main_process(instance, "containerd") is not None:  # until it is `sleep`
        time.sleep(0.01)
    assert [process.pid for process in processes.find(instance)] == [shell.pid]


def test_stop_ends_processes_that_do_not_listen(instance: Instance, start: Start, tmp_path: Path) -> None:
    stubborn = start("kubelet", f"trap : TERM; touch {tmp_path}/deaf; while :; do sleep 0.05; done")
    while not (tmp_path / "deaf").exists():
        time.sleep(0.01)
    processes.stop(processes.find(instance), grace_seconds=0.2)
    # A sleep that it began meanwhile may still be there for an instant.
    assert stubborn.pid not in [process.pid for process in processes.find(instance)]
    assert stubborn.wait() == -9


def test_stop_spares_a_stranger_who_got_the_pid(instance: Instance, start: Start) -> None:
    stranger = start("kubelet", "sleep 60; :")
    (found,) = (process for process in processes.find(instance) if process.pid == stranger.pid)
    earlier = processes.Process(found.pid, found.role, found.program, found.start - 100)
    processes.stop([earlier], grace_seconds=0)
    assert stranger.poll() is None


def test_waiting_for_a_dead_process_ends_at_once_with_its_log(instance: Instance) -> None:
    log = instance.log("etcd")
    log.parent.mkdir(parents=True)
    log.write_text("listen tcp: address already in use\n")
    with pytest.raises(StartError, match=r"waiting for the API server: etcd ended(.|\n)*address already in use"):
        processes.wait_until(lambda: False, 600, "the API server", instance=instance, roles=["etcd"])


def test_waiting_in_vain_names_what_for(instance: Instance) -> None:
    with pytest.raises(StartError, match=r"waiting for the moon: not within 0 s"):
        processes.wait_until(lambda: False, 0.1, "the moon", instance=instance)


def test_a_process_sees_nothing_of_the_callers_environment(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    assert "HTTPS_PROXY" in os.environ
    assert "HTTPS_PROXY" not in processes.environment(instance, "etcd", [])
