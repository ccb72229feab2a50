"""What lies in manifests/: kustomizations that build, and examples that fit the cards they name."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
import yaml

from manifests.charts import ROOT
from strata_operator.api.model import StrataModel
from strata_operator.api.node import StrataNode
from strata_operator.fit import judge, shape_of
from tests.cluster.parts import binary
from tests.operator.chart.helm import Objects, by_name
from tests.operator.samples import gpu, node_object

MANIFESTS = ROOT / "manifests"
OVERLAYS = sorted(path.name for path in (MANIFESTS / "overlays").iterdir())


def built(folder: str) -> Objects:
    if not binary("kubectl").exists():
        pytest.skip("needs kubectl: `python3 -m tests.cluster build kubernetes`")
    command = [str(binary("kubectl")), "kustomize", str(MANIFESTS / folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return by_name(done.stdout)


def images(objects: Objects) -> set[str]:
    """Of all pods, and the engine's among an operator's arguments."""
    specs = [
        obj["spec"]["template"]["spec"] for (kind, _), obj in objects.items() if kind in ("Deployment", "DaemonSet")
    ]
    containers = [container for spec in specs for container in spec["containers"]]
    engines = {arg.partition("=")[2] for one in containers for arg in one["args"] if arg.startswith("--engine-image=")}
    return {one["image"] for one in containers} | engines


def test_the_base_is_definitions_and_operator() -> None:
    files = [*(MANIFESTS / "crds").glob("strata*.yaml"), MANIFESTS / "install" / "strata.yaml"]
    plain = {key: obj for path in files for key, obj in by_name(path.read_text()).items()}
    assert built("install") == plain
    assert built("agent") == by_name((MANIFESTS / "agent" / "strata-agent.yaml").read_text())


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_names_every_image_anew(overlay: str) -> None:
    names = {"operator": "OPERATOR_TAG", "engine": "ENGINE_TAG"}
    assert images(built(f"overlays/{overlay}")) == {
        f"registry.example.com/team/strata-{name}:{tag}" for name, tag in names.items()
    }


def test_an_overlay_with_agents_has_them_on_its_nodes() -> None:
    objects = built("overlays/gpu-nodes")
    assert built("overlays/registry").keys() | built("agent").keys() == objects.keys()
    spec = objects["DaemonSet", "strata-agent"]["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {"gpu.example.com/present": "true"}


def test_an_overlay_for_one_namespace_has_its_rights_there() -> None:
    objects = built("overlays/namespaced")
    assert objects["Role", "strata"]["metadata"]["namespace"] == "models"
    (container,) = objects["Deployment", "strata"]["spec"]["template"]["spec"]["containers"]
    assert "--namespaces=models" in container["args"]
    assert [rule["resources"] for rule in objects["ClusterRole", "strata"]["rules"]] == [["stratanodes"], ["nodes"]]


@pytest.mark.parametrize(
    ("example", "product", "memory_gib", "fits"),
    [
        ("qwen3-30b-rtx3090", "NVIDIA-GeForce-RTX-3090", 64, True),
        ("qwen3-30b-rtx3090", "NVIDIA-GeForce-RTX-3090", 16, False),
        ("gpt-oss-120b-rtx4090", "NVIDIA-GeForce-RTX-4090", 96, True),
        ("gpt-oss-120b-rtx4090", "NVIDIA-GeForce-RTX-4090", 64, False),
        ("two-gpus", "NVIDIA-GeForce-RTX-3090", 64, True),
        ("smollm2-gpu", "NVIDIA-GeForce-RTX-4090", 16, True),
        ("strata-model", "NVIDIA-GeForce-RTX-4090", 16, True),
        ("api-keys", "NVIDIA-GeForce-RTX-4090", 16, True),
        # Whose shape is not known before their files have been read.
        ("pvc", "NVIDIA-GeForce-RTX-4090", 64, None),
        ("air-gapped", "NVIDIA-GeForce-RTX-4090", 64, None),
    ],
)
def test_an_example_fits_the_card_that_it_names(example: str, product: str, memory_gib: int, fits: bool | None) -> None:
    obj: dict[str, Any] = yaml.safe_load((MANIFESTS / "examples" / f"{example}.yaml").read_text())
    obj["metadata"] |= {"namespace": "ns", "uid": "u", "generation": 1}
    model = StrataModel.parse(obj)
    node = StrataNode.parse(node_object(gpus=[gpu(product)], memory_gib=memory_gib))
    verdict = judge(model, shape_of(model), [node])
    assert verdict.fits is fits, verdict.message


def test_the_page_tells_of_every_example() -> None:
    page = (ROOT / "docs" / "installation.md").read_text()
    assert [path.name for path in (MANIFESTS / "examples").iterdir() if f"| `{path.name}` |" not in page] == []
