"""What the agent shows to Prometheus: the last turn, card by card. ``node`` and ``uuid`` join with other sources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client import Counter as PrometheusCounter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from strata_operator.agent.agent import Snapshot
from strata_operator.agent.hardware import Card, Reading
from strata_operator.agent.nvml import THROTTLE_REASONS
from strata_operator.agent.report import Turn, verdicts
from strata_operator.api.node import PAGE_BYTES

CARD = ("node", "uuid", "product")

# Name, what it says, further label; and the samples of one card by that label's value (None: not told).
Samples = Callable[[Card, Reading], Iterable[tuple[tuple[str, ...], float | None]]]
_GAUGES: tuple[tuple[str, str, tuple[str, ...], Samples], ...] = (
    (
        "strata_gpu_temperature_celsius",
        "Temperature of the chip (core) and, where the card tells it, of its memory.",
        ("sensor",),
        lambda card, now: ((("core",), now.core_temperature_c), (("memory",), now.memory_temperature_c)),
    ),
    ("strata_gpu_power_watts", "Power drawn now.", (), lambda card, now: (((), _thousandth(now.power)),)),
    (
        "strata_gpu_clock_megahertz",
        "Clock of the multiprocessors (sm) and of the card's memory.",
        ("clock",),
        lambda card, now: ((("sm",), now.sm_clock_mhz), (("memory",), now.memory_clock_mhz)),
    ),
    (
        "strata_gpu_utilization_ratio",
        "Share of the time in which something ran on the card.",
        (),
        lambda card, now: (((), _hundredth(now.utilization_percent)),),
    ),
    (
        "strata_gpu_fan_ratio",
        "Speed of the fan, of its highest.",
        (),
        lambda card, now: (((), _hundredth(now.fan_percent)),),
    ),
    (
        "strata_gpu_memory_bytes",
        "Memory of the card: used, usable (without what the driver keeps), total.",
        ("state",),
        lambda card, now: (
            (("used",), now.vram_used_bytes),
            (("usable",), card.usable_vram_bytes),
            (("total",), card.vram_bytes),
        ),
    ),
    (
        "strata_gpu_pcie_generation",
        "Generation of the link: now (1 while the card rests) and the most that card and slot can do.",
        ("state",),
        lambda card, now: ((("now",), now.pcie_generation), (("max",), card.max_pcie_generation)),
    ),
    (
        "strata_gpu_pcie_lanes",
        "Lanes of the link, now and at most.",
        ("state",),
        lambda card, now: ((("now",), now.pcie_width), (("max",), card.max_pcie_width)),
    ),
    (
        "strata_gpu_pcie_bytes_per_second",
        "Over the link, a sample of 20 ms and no mean: rx is to the card.",
        ("direction",),
        lambda card, now: ((("rx",), now.pcie_rx_bytes_per_second), (("tx",), now.pcie_tx_bytes_per_second)),
    ),
    (
        "strata_gpu_throttle",
        "1 while the card slows down for that reason.",
        ("reason",),
        lambda card, now: (((reason,), float(reason in now.throttle_reasons)) for reason in THROTTLE_REASONS),
    ),
)
_COUNTERS: tuple[tuple[str, str, Callable[[Reading], float | None]], ...] = (
    (
        "strata_gpu_energy_joules",
        "Energy since the driver was loaded.",
        lambda now: _thousandth(now.energy),
    ),
    (
        "strata_gpu_uncorrected_ecc_errors",
        "Memory errors that could not be corrected, since the driver was loaded.",
        lambda now: now.uncorrected_ecc_errors,
    ),
)


def api_requests(registry: CollectorRegistry) -> PrometheusCounter:
    """To be counted up after each request to the API server."""
    return PrometheusCounter(
        "strata_agent_api_requests",
        "Requests to the API server by verb and HTTP status; status 0 means no answer.",
        ["verb", "status"],
        registry=registry,
    )


class Exporter(Collector):
    """``snapshot`` gives what the last turn saw. XIDs are counted by whoever calls ``count``."""

    def __init__(self, node: str, snapshot: Callable[[], Snapshot]) -> None:
        self._node = node
        self._snapshot = snapshot
        self._xids: Counter[tuple[str, int]] = Counter()

    def count(self, turn: Turn) -> None:
        """To be called once after each turn."""
        for xid in turn.seen.xids:
            self._xids[xid.uuid or "unknown", xid.code] += 1

    def collect(self) -> Iterator[Metric]:
        snapshot = self._snapshot()
        connected = GaugeMetricFamily(
            "strata_agent_connected", "1 while the API server takes what the agent tells it.", labels=["node"]
        )
        connected.add_metric([self._node], float(snapshot.is_connected))
        yield connected
        xids = CounterMetricFamily(
            "strata_gpu_xids",
            "Faults that the driver told of, since the agent started.",
            labels=["node", "uuid", "xid"],
        )
        for (uuid, code), number in sorted(dict(self._xids).items()):
            xids.add_metric([self._node, uuid, str(code)], number)
        yield xids
        if snapshot.turn is not None:
            yield from self._cards(snapshot.turn)
            yield self._limits(snapshot)
            yield self._pages(snapshot.turn)
            yield self._conditions(snapshot.turn)

    def _labels(self, card: Card) -> list[str]:
        return [self._node, card.uuid, card.product]

    def _cards(self, turn: Turn) -> Iterator[Metric]:
        seen = turn.seen
        up = GaugeMetricFamily("strata_gpu_up", "1 while the card answers.", labels=CARD)
        for card in seen.cards:
            up.add_metric(self._labels(card), float(card.uuid in seen.readings))
        for uuid in sorted(set(seen.lost) - {card.uuid for card in seen.cards}):
            up.add_metric([self._node, uuid, ""], 0.0)
        yield up
        read = [(card, seen.readings[card.uuid]) for card in seen.cards if card.uuid in seen.readings]
        for name, text, further, samples in _GAUGES:
            gauge = GaugeMetricFamily(name, text, labels=(*CARD, *further))
            for card, now in read:
                for values, value in samples(card, now):
                    if value is not None:
                        gauge.add_metric([*self._labels(card), *values], value)
            yield gauge
        for name, text, sample in _COUNTERS:
            counter = CounterMetricFamily(name, text, labels=CARD)
            for card, now in read:
                value = sample(now)
                if value is not None:
                    counter.add_metric(self._labels(card), value)
            yield counter

    def _limits(self, snapshot: Snapshot) -> Metric:
        gauge = GaugeMetricFamily(
            "strata_gpu_power_limit_watts",
            "Power limit: enforced now, requested by models, allowed by the temperature governor while it interferes, "
            "the factory's default, and the least and the most that may be set.",
            labels=(*CARD, "kind"),
        )
        turn = snapshot.turn
        assert turn is not None
        for card in turn.seen.cards:
            wish, reading = turn.wishes.get(card.uuid), turn.seen.readings.get(card.uuid)
            low, high = card.power_limit_range or (None, None)
            for kind, milliwatts in (
                ("enforced", reading.power_limit if reading else None),
                ("requested", 1000 * wish.power_watts.value if wish and wish.power_watts else None),
                ("governor", turn.caps.get(card.uuid)),
                ("default", card.default_power_limit),
                ("min", low),
                ("max", high),
            ):
                if milliwatts is not None:
                    gauge.add_metric([*self._labels(card), kind], milliwatts / 1000)
        return gauge

    def _pages(self, turn: Turn) -> Metric:
        gauge = GaugeMetricFamily(
            "strata_node_hugepages_bytes",
            "Huge pages that are reserved, and those of them that are free.",
            labels=("node", "numa_node", "size", "state"),
        )
        for one in turn.seen.pages:
            for state, pages in (("reserved", one.total), ("free", one.free)):
                gauge.add_metric([self._node, str(one.node), one.size, state], pages * PAGE_BYTES[one.size])
        return gauge

    def _conditions(self, turn: Turn) -> Metric:
        gauge = GaugeMetricFamily(
            "strata_node_condition",
            "Conditions of the StrataNode: 1 while it is true, else 0.",
            labels=("node", "condition"),
        )
        for one in verdicts(turn) if turn.generation else ():  # before, what models want is not known
            if one.status is not None:
                gauge.add_metric([self._node, one.type], float(one.status))
        return gauge


def _thousandth(value: int | None) -> float | None:
    return None if value is None else value / 1000


def _hundredth(value: int | None) -> float | None:
    return None if value is None else value / 100
