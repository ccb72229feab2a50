from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from strata_operator.api.errors import InvalidSpecError, UnavailableError
from strata_operator.chart import crds
from strata_operator.cluster.client import Client
from tests.operator.cluster.fake import FakeClient
from tests.operator.live.harness import CHART

SERVED = {"status": {"conditions": [{"type": "Established", "status": "True"}]}}


class Serving(FakeClient):
    """An API server that serves a definition after some looks."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.looks = looks

    def get(self, kind: str, namespace: str | None, name: str) -> dict[str, Any]:
        self.looks -= 1
        return super().get(kind, namespace, name) | (SERVED if self.looks < 0 else {})


def apply(client: FakeClient, folder: Path, *, turns: int = 5) -> None:
    times = iter([*[True] * turns, False])
    crds.apply(cast("Client", client), folder, has_time=lambda: next(times), pause=lambda: None)


def test_the_chart_s_definitions_are_applied_by_force_before_they_are_waited_for() -> None:
    client = Serving(3)
    apply(client, CHART / "crds")
    assert client.calls[:2] == [f"apply by force {crds.KIND}"] * 2
    assert set(client.calls[2:]) == {f"get {crds.KIND}"}
    names = {name for _, _, name in client.objects}
    assert names == {yaml.safe_load(path.read_text())["metadata"]["name"] for path in (CHART / "crds").iterdir()}


def test_one_that_is_never_served_is_told() -> None:
    with pytest.raises(UnavailableError, match=r"stratamodels\.strata\.ai is applied"):
        apply(Serving(100), CHART / "crds")


def test_a_folder_without_definitions_is_no_success(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpecError, match="holds no"):
        apply(Serving(0), tmp_path)
