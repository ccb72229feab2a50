from __future__ import annotations

from typing import Any

import pytest

from strata_operator.cluster.cache import Key
from strata_operator.cluster.nodes import Nodes
from tests.operator.samples import gpu, node_object


class Heard:
    def __init__(self) -> None:
        self.fits = 0
        self.tuned: list[Key] = []
        self.nodes = Nodes(self._fit, self.tuned.append)

    def _fit(self) -> None:
        self.fits += 1

    def put(self, **fields: Any) -> None:
        self.nodes.put("StrataNode", node_object(**fields))

    def news(self) -> tuple[int, list[Key]]:
        found = self.fits, list(self.tuned)
        self.fits = 0
        self.tuned.clear()
        return found


@pytest.fixture
def heard() -> Heard:
    made = Heard()
    made.put(version=5)
    assert made.news() == (1, [])
    return made


@pytest.mark.parametrize(
    ("fields", "fits"),
    [
        pytest.param({}, 0, id="nothing"),
        pytest.param({"gpus": []}, 1, id="a card is gone"),
        pytest.param({"gpus": [gpu(), gpu(uuid="GPU-2")]}, 1, id="a card more"),
        pytest.param({"memory_gib": 32}, 1, id="less memory"),
        pytest.param({"host": {**node_object()["status"]["host"], "cores": 8}}, 1, id="fewer CPUs"),
        pytest.param({"calibration": {"dramMegabytesPerSecond": 1}}, 1, id="measured anew"),
        pytest.param({"conditions": [{"type": "Healthy", "status": "False"}]}, 1, id="ill"),
        pytest.param({"conditions": [{"type": "Healthy", "status": "True"}]}, 0, id="well"),
        pytest.param({"conditions": [{"type": "Tuned", "status": "False"}]}, 0, id="not tuned"),
        pytest.param(
            {"gpus": [gpu(power={"limitWatts": 250, "defaultWatts": 450, "minWatts": 100, "maxWatts": 600})]},
            0,
            id="a power limit that moves",
        ),
        pytest.param(
            {"gpus": [gpu(pcie=(4, 16)) | {"pcie": {"maxGeneration": 4, "maxWidth": 16, "generation": 1}}]},
            0,
            id="a link that rests",
        ),
    ],
)
def test_models_are_judged_again_when_what_they_need_changed(heard: Heard, fields: dict[str, Any], fits: int) -> None:
    heard.put(version=6, **fields)
    assert heard.news() == (fits, [])


def test_models_are_judged_again_once_for_a_whole_list(heard: Heard) -> None:
    heard.nodes.replace("StrataNode", [node_object(name) for name in ("gpu-2", "gpu-3", "gpu-4")])  # and gpu-1 is gone
    assert heard.news() == (1, [])


def test_models_hear_that_a_node_is_ill_in_another_way(heard: Heard) -> None:
    for version, reason in ((6, "GpuFails"), (7, "GpuLost"), (8, "GpuLost")):
        heard.put(version=version, conditions=[{"type": "Healthy", "status": "False", "reason": reason}])
    assert heard.news()[0] == 2


def test_models_with_a_wish_hear_of_every_change(heard: Heard) -> None:
    wishing = node_object(version=6)
    wishing["spec"] = {"tuning": {"models": [{"model": "ns/a"}, {"model": "ns/b"}]}}
    heard.nodes.put("StrataNode", wishing)
    assert heard.news() == (0, [("ns", "a"), ("ns", "b")])
    heard.put(version=7)  # the wishes are gone
    assert heard.news() == (0, [("ns", "a"), ("ns", "b")])


def test_an_older_version_is_no_news(heard: Heard) -> None:
    heard.put(version=4, gpus=[])
    assert heard.news() == (0, [])
    assert len(heard.nodes.all()[0].status.gpus) == 1


def test_a_node_that_went_counts_no_more(heard: Heard) -> None:
    heard.nodes.remove("StrataNode", node_object())
    assert (heard.nodes.all(), heard.news()) == ((), (1, []))
    heard.nodes.remove("StrataNode", node_object())
    assert heard.news() == (0, [])


def test_a_list_forgets_what_it_lacks_and_is_in_order(heard: Heard) -> None:
    heard.nodes.replace("StrataNode", [node_object("z"), node_object("a")])
    assert [node.name for node in heard.nodes.all()] == ["a", "z"]


def test_a_node_that_cannot_be_read_counts_as_absent(heard: Heard, caplog: pytest.LogCaptureFixture) -> None:
    edited = node_object(version=6)
    edited["spec"] = {"tuning": {"modelz": []}}
    heard.nodes.put("StrataNode", edited)
    assert heard.nodes.all() == ()
    assert "spec.tuning.modelz is not known" in caplog.text
