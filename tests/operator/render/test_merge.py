from __future__ import annotations

from typing import Any

import pytest

from strata_operator.api.errors import InvalidSpecError
from strata_operator.render.merge import merge

POD: dict[str, Any] = {
    "dnsPolicy": "ClusterFirst",
    "nodeSelector": {"disk": "nvme"},
    "tolerations": [{"key": "gpu"}],
    "volumes": [{"name": "tmp", "emptyDir": {}}, {"name": "cache", "hostPath": {"path": "/x"}}],
    "containers": [
        {
            "name": "engine",
            "args": ["serve"],
            "ports": [{"containerPort": 8000, "name": "http"}],
            "volumeMounts": [{"mountPath": "/tmp", "name": "tmp"}],
        }
    ],
}


def changed(**fields: Any) -> dict[str, Any]:
    return {**POD, **fields}


def engine(**fields: Any) -> list[dict[str, Any]]:
    return [{**POD["containers"][0], **fields}]


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        pytest.param({}, POD, id="nothing"),
        pytest.param({"dnsPolicy": "Default"}, changed(dnsPolicy="Default"), id="a scalar"),
        pytest.param({"hostNetwork": True}, changed(hostNetwork=True), id="a new field"),
        pytest.param(
            {"nodeSelector": {"zone": "a"}}, changed(nodeSelector={"disk": "nvme", "zone": "a"}), id="a table"
        ),
        pytest.param({"nodeSelector": {"disk": None}}, changed(nodeSelector={}), id="null removes"),
        pytest.param(
            {"nodeSelector": {"$patch": "replace", "zone": "a"}}, changed(nodeSelector={"zone": "a"}), id="replaced"
        ),
        pytest.param({"tolerations": [{"key": "x"}]}, changed(tolerations=[{"key": "x"}]), id="an atomic list"),
        pytest.param(
            {"containers": [{"name": "engine", "args": ["serve", "x"]}]},
            changed(containers=engine(args=["serve", "x"])),
            id="a container by name",
        ),
        pytest.param(
            {"containers": [{"name": "engine", "ports": [{"containerPort": 9, "name": "y"}]}]},
            changed(
                containers=engine(ports=[{"containerPort": 8000, "name": "http"}, {"containerPort": 9, "name": "y"}])
            ),
            id="a port by number",
        ),
        pytest.param(
            {"containers": [{"name": "engine", "volumeMounts": [{"mountPath": "/tmp", "readOnly": True}]}]},
            changed(containers=engine(volumeMounts=[{"mountPath": "/tmp", "name": "tmp", "readOnly": True}])),
            id="a mount by its path",
        ),
        pytest.param(
            {"containers": [{"name": "sidecar", "image": "s"}]},
            changed(containers=[*POD["containers"], {"name": "sidecar", "image": "s"}]),
            id="a second container",
        ),
        pytest.param(
            {"volumes": [{"name": "tmp", "$patch": "delete"}]},
            changed(volumes=POD["volumes"][1:]),
            id="an element gone",
        ),
        pytest.param({"volumes": [{"name": "not there", "$patch": "delete"}]}, POD, id="an element gone already"),
        pytest.param(
            {"volumes": [{"name": "cache", "hostPath": None, "emptyDir": {}}]},
            changed(volumes=[POD["volumes"][0], {"name": "cache", "emptyDir": {}}]),
            id="another volume of that name",
        ),
    ],
)
def test_merge(patch: dict[str, Any], expected: dict[str, Any]) -> None:
    before = repr(POD)
    assert merge(POD, patch, "spec.podTemplate.spec") == expected
    assert repr(POD) == before


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        ({"containers": [{"args": ["x"]}]}, r"p.containers\[0\] has no name"),
        ({"volumes": ["tmp"]}, r"p.volumes\[0\] has no name"),
        ({"$setElementOrder/volumes": []}, r"p.\$setElementOrder/volumes is not known"),
    ],
)
def test_what_cannot_be_merged_is_named(patch: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSpecError, match=words):
        merge(POD, patch, "p")
