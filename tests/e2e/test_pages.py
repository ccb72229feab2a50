"""The pages' commands for a cluster, as they are written there, where `make demo` has been; each page in its order."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from images.catalogue import GATEWAY
from tests.cluster import Cluster
from tests.docs.blocks import blocks, missing
from tests.docs.checkout import make_checkout
from tests.e2e import gateway
from tests.e2e.demo import FAKE_AGENT, MODEL, MODEL_NAMESPACE
from tests.e2e.install import ROOT, install, uninstall
from tests.e2e.manifest import model
from tests.e2e.models import OPERATOR_NAMESPACE, wait_ready
from tests.e2e.target import Target

pytestmark = pytest.mark.cluster

READY_SECONDS = 600
BLOCKS = [block for block in blocks() if block.runner in ("cluster", "output")]
# These change what others look at; the last one takes all of it away.
CHANGING = ["docs/autoscaling.md", "docs/guides/operations.md", "docs/getting-started.md", "docs/installation.md"]
PAGES = sorted({block.page for block in BLOCKS} - set(CHANGING)) + CHANGING
SECRETS = ((MODEL_NAMESPACE, "hub"), (MODEL_NAMESPACE, "keys"), (OPERATOR_NAMESPACE, "team-a"))


@dataclass(frozen=True, slots=True)
class Reader:
    """Somebody who types what the pages say."""

    target: Target
    checkout: Path
    variables: dict[str, str]

    def types(self, script: str) -> str:
        """What is printed, where nothing fails."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", f"trap 'kill $(jobs -p) 2> /dev/null || true' EXIT\n{script}"],
            cwd=self.checkout, env={**self.target.env, **self.variables}, text=True, check=False, timeout=READY_SECONDS,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-4000:]
        return done.stdout


@pytest.fixture(scope="module")
def reader(
    target: Target, cluster: Cluster, images: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Reader]:
    from images.build import build

    forget(target)
    target.run("kubectl", "delete", "stratanodes", "--all")
    image = build([GATEWAY], to=cluster.registry, push=True)[GATEWAY.name]
    here = {"agent.nodeSelector": {"kubernetes.io/hostname": cluster.node, "nvidia.com/gpu.present": None}}
    install(target, images, gateway.values(image) | FAKE_AGENT | here)
    target.run("kubectl", "rollout", "status", "daemonset/strata-agent", *gateway.HERE, "--timeout=300s")
    [spare] = cluster.add_gpu_nodes(1)
    target.run("kubectl", "taint", "node", spare, "tests/pretended=:NoSchedule")  # nothing runs there
    operator, engine = (images[name].rpartition(":")[2] for name in ("strata-operator", "strata-engine"))
    yield Reader(
        target,
        make_checkout(tmp_path_factory.mktemp("reader") / "checkout"),
        {
            "STRATA_CLUSTER": cluster.name,
            "REAL_NODE": cluster.node,
            "SPARE_NODE": spare,
            "REGISTRY": images["strata-operator"].partition("/strata-operator:")[0],
            "OPERATOR_TAG": operator,
            "ENGINE_TAG": engine,
        },
    )
    cluster.remove_gpu_nodes()
    forget(target)
    # Whatever the last page has come to, the release is there again for other tests.
    uninstall(target)
    target.run("kubectl", "delete", "-k", str(ROOT / "manifests" / "install"), "--ignore-not-found")
    install(target, images)


def forget(target: Target) -> None:
    """Secrets that the pages made, this time or in a run that was interrupted."""
    for namespace, name in SECRETS:
        target.run("kubectl", "delete", "secret", name, "-n", namespace, "--ignore-not-found")


@pytest.mark.parametrize("page", PAGES)
def test_a_page_does_what_it_says(page: str, reader: Reader) -> None:
    reader.target.run("kubectl", "apply", "-n", MODEL_NAMESPACE, "-f", "-", stdin=model(MODEL, {"replicas": 1}))
    wait_ready(reader.target, MODEL_NAMESPACE, MODEL, seconds=READY_SECONDS)
    own = [block for block in BLOCKS if block.page == page]
    commands = [f"echo {shlex.quote(f'--- {block}')}\n{block.code}" for block in own if block.runner == "cluster"]
    printed = reader.types("\n".join(commands))
    for block in own:
        if block.runner == "output":
            assert missing(block, printed) == [], printed
