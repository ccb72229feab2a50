from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import pytest
from prometheus_client import CollectorRegistry

from strata.server.metrics import Metrics
from strata_operator.agent.exporter import Exporter
from strata_operator.agent.fake import h200, rtx3090
from strata_operator.render.monitor import Monitors, monitor
from tests.operator.agent.conftest import NODE, World
from tests.operator.live.harness import CHART
from tests.operator.samples import model

if TYPE_CHECKING:
    from strata.engine.api import Engine

Make = Callable[..., World]


class Shown:
    """An exporter over a world's agent."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.exporter = Exporter(NODE, lambda: world.agent.snapshot)
        self.registry = CollectorRegistry()
        self.registry.register(self.exporter)

    def value(self, name: str, number: int = 0, **labels: str) -> float | None:
        card = self.world.cards[number]
        product = card.name.replace(" ", "-")
        found = self.registry.get_sample_value(name, {"node": NODE, "uuid": card.uuid, "product": product, **labels})
        return None if found is None else float(found)


@pytest.fixture
def shown(world: Make) -> Shown:
    return Shown(world(rtx3090(load=1.0), h200()))


def test_every_figure_of_a_card(shown: Shown) -> None:
    shown.world.turn(100)
    assert shown.value("strata_gpu_up") == 1
    assert shown.value("strata_gpu_temperature_celsius", sensor="core") == 80
    assert shown.value("strata_gpu_temperature_celsius", sensor="memory") is None  # a 30-series card
    assert shown.value("strata_gpu_temperature_celsius", 1, sensor="memory") == 45
    assert shown.value("strata_gpu_power_watts") == 350
    assert shown.value("strata_gpu_energy_joules_total") == pytest.approx(350 * 500)
    assert shown.value("strata_gpu_clock_megahertz", clock="sm") == 1750
    assert shown.value("strata_gpu_clock_megahertz", clock="memory") == 9751
    assert shown.value("strata_gpu_utilization_ratio") == 1
    assert shown.value("strata_gpu_fan_ratio") == 0.71
    assert shown.value("strata_gpu_memory_bytes", state="total") == 24 << 30
    assert shown.value("strata_gpu_memory_bytes", state="usable") == (24 << 30) - (400 << 20)
    assert shown.value("strata_gpu_memory_bytes", state="used") == 512 << 20
    assert shown.value("strata_gpu_pcie_generation", state="now") == 4
    assert shown.value("strata_gpu_pcie_generation", 1, state="now") == 1
    assert shown.value("strata_gpu_pcie_lanes", state="max") == 16
    assert shown.value("strata_gpu_pcie_bytes_per_second", direction="rx") == 1e9
    assert shown.value("strata_gpu_throttle", reason="power_cap") == 1
    assert shown.value("strata_gpu_throttle", 1, reason="power_cap") == 0
    assert shown.value("strata_gpu_uncorrected_ecc_errors_total") is None
    assert shown.value("strata_gpu_uncorrected_ecc_errors_total", 1) == 0


def test_limits_by_what_sets_them(shown: Shown) -> None:
    shown.world.turn()
    shown.world.cards[0].ambient = 45.0
    shown.world.want({"model": "llm/a", "powerLimitWatts": 300, "maxCoreTemperatureC": 75})
    shown.world.turn(300)
    limits = {
        kind: shown.value("strata_gpu_power_limit_watts", kind=kind)
        for kind in ("enforced", "requested", "governor", "default", "min", "max")
    }
    assert (limits["requested"], limits["default"], limits["min"], limits["max"]) == (300, 350, 100, 400)
    assert limits["governor"] is not None
    assert limits["enforced"] == limits["governor"] < 300
    assert shown.value("strata_gpu_power_limit_watts", 1, kind="governor") is None


def test_faults_are_counted_over_turns(shown: Shown) -> None:
    def turn(*codes: int) -> None:
        for code in codes:
            shown.world.driver.send_xid(shown.world.cards[0], code)
        shown.world.turn()
        assert shown.world.agent.snapshot.turn is not None
        shown.exporter.count(shown.world.agent.snapshot.turn)

    turn(31, 31)
    turn()
    turn(31, 79)
    labels = {"node": NODE, "uuid": shown.world.cards[0].uuid}
    assert shown.registry.get_sample_value("strata_gpu_xids_total", {**labels, "xid": "31"}) == 3
    assert shown.registry.get_sample_value("strata_gpu_xids_total", {**labels, "xid": "79"}) == 1


def test_the_rule_for_joules_per_token_joins_what_agent_and_engines_show(shown: Shown) -> None:
    expression = (CHART / "files" / "rules.yaml").read_text().partition("expr: |")[2]
    shown.world.turn()
    engine = Metrics(cast("Engine", None), model_name="m").generation_tokens
    relabeled = monitor(model(), Monitors())["spec"]["podMetricsEndpoints"][0]["relabelings"]
    labels = {
        sample.name: {*sample.labels, *extra}
        for collected, extra in (
            (shown.registry.collect(), ()),
            (engine.collect(), tuple(one["targetLabel"] for one in relabeled)),
        )
        for metric in collected
        for sample in metric.samples
    }
    asked = re.findall(r"sum by \((\w+)\) \(rate\((\w+)\[5m]\)\)", expression)
    assert [name for _, name in asked] == ["strata_gpu_energy_joules_total", "strata_generation_tokens_total"]
    assert all(label in labels[name] for label, name in asked)


def test_a_lost_card_is_down(shown: Shown) -> None:
    shown.world.turn()
    lost = shown.world.cards[0]
    lost.lost = True
    shown.world.turn()
    labels = {"node": NODE, "uuid": lost.uuid, "product": ""}
    assert shown.registry.get_sample_value("strata_gpu_up", labels) == 0
    assert shown.value("strata_gpu_power_watts") is None
    assert shown.value("strata_gpu_up", 1) == 1


def test_conditions_are_those_of_the_strata_node(shown: Shown) -> None:
    def told() -> dict[str, Any]:
        names = ("Healthy", "Tuned", "PcieDegraded", "ThermallyLimited", "GpuLost")
        get = shown.registry.get_sample_value
        return {name: get("strata_node_condition", {"node": NODE, "condition": name}) for name in names}

    assert set(told().values()) == {None}
    shown.world.turn()
    good = {"Healthy": 1, "Tuned": 1, "PcieDegraded": 0, "ThermallyLimited": 0, "GpuLost": 0}
    assert told() == good
    shown.world.cards[0].lost = True
    shown.world.turn(3)
    assert told() == {**good, "Healthy": 0, "GpuLost": 1}
    assert {one["type"]: float(one["status"] == "True") for one in shown.world.status["conditions"]} == told()


def test_pages_and_the_connection(shown: Shown) -> None:
    def connected() -> Any:
        return shown.registry.get_sample_value("strata_agent_connected", {"node": NODE})

    assert connected() == 0
    shown.world.turn()
    shown.world.want({"model": "llm/a", "hugepages": [{"size": "1Gi", "pages": 4}]})
    shown.world.turn()
    labels = {"node": NODE, "numa_node": "1", "size": "1Gi", "state": "reserved"}
    assert shown.registry.get_sample_value("strata_node_hugepages_bytes", labels) == 2 << 30
    assert connected() == 1
    shown.world.outage(is_down=True)
    shown.world.want()
    shown.world.agent.turn()
    shown.world.cards[0].lost = True
    shown.world.agent.turn()
    assert connected() == 0
    assert shown.value("strata_gpu_up", 1) == 1  # the cards are shown nevertheless
