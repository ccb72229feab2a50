"""Which metrics, labels and values an expression of PromQL asks for. Whether it is valid, Prometheus says."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import yaml

from dashboards.catalogue import metrics
from manifests.charts import CHART

RULES = (CHART / "files" / "rules.yaml", CHART / "files" / "model-rules.yaml")
# Labels that no exporter sets, and who does: Prometheus's operator, the PodMonitors of models, Prometheus itself.
OUTSIDE_LABELS = {
    "namespace": "Prometheus's operator",
    "pod": "Prometheus's operator",
    "job": "Prometheus",
    "instance": "Prometheus",
    "node": "the PodMonitors of models",
    "model": "the PodMonitors of models",
    "alertname": "Prometheus",
    "alertstate": "Prometheus",
    "severity": "the alerts",
}
# Metrics of others, with their owner and their labels.
OUTSIDE_METRICS: Mapping[str, tuple[str, frozenset[str]]] = {
    "up": ("Prometheus", frozenset()),
    "ALERTS": ("Prometheus", frozenset({"alertname", "alertstate", "severity"})),
}

_TOKEN = re.compile(
    r"""(?P<text>"(?:\\.|[^"])*"|'[^']*')|(?P<range>\[[^\]]*\])|(?P<number>\d[\w.]*)|(?P<word>[a-zA-Z_:][\w:]*)"""
    r"|=~|!~|!=|\S"
)
_GROUPS = {"by", "without", "on", "ignoring", "group_left", "group_right"}
_WORDS = {"and", "or", "unless", "bool", "offset", "inf", "nan"}


@dataclass
class Asked:
    """``selectors``: metrics, each with matchers (label, operator, text). ``grouped``: labels of ``by``, ``on``, …"""

    selectors: list[tuple[str, list[tuple[str, str, str]]]] = field(default_factory=list)
    grouped: set[str] = field(default_factory=set)


def asked(expression: str) -> Asked:
    """Of one expression; ``$name`` of a dashboard is a value like any other."""
    tokens = list(_TOKEN.finditer(re.sub(r"(?m)#.*$", "", expression)))
    found, place = Asked(), 0
    while place < len(tokens):
        word, after = tokens[place]["word"], tokens[place + 1][0] if place + 1 < len(tokens) else ""
        place += 1
        if word is None:
            continue
        if word in _GROUPS and after == "(":
            while tokens[place][0] != ")":
                if tokens[place]["word"]:
                    found.grouped.add(tokens[place][0])
                place += 1
        elif after == "{":
            matchers = []
            while tokens[place][0] != "}":
                if tokens[place]["word"]:
                    matchers.append((tokens[place][0], tokens[place + 1][0], tokens[place + 2][0][1:-1]))
                    place += 2
                place += 1
            found.selectors.append((word, matchers))
        elif after not in ("(", "by", "without") and word not in _WORDS and word not in _GROUPS:
            found.selectors.append((word, []))
    return found


def known_series() -> dict[str, dict[str, tuple[str, ...]]]:
    """Labels of every series that there may be, with the values that are known."""
    known: dict[str, dict[str, tuple[str, ...]]] = {}
    for metric in (one for some in metrics().values() for one in some):
        for name, labels in metric.series.items():
            known[name] = {label: metric.labels.get(label, ()) for label in labels}
    for name, (_, labels) in OUTSIDE_METRICS.items():
        known[name] = dict.fromkeys(labels, ())
    for rule in rules():
        if "record" in rule:
            known[rule["record"]] = dict.fromkeys(asked(rule["expr"]).grouped, ())
    return known


def rules() -> list[dict[str, str]]:
    """All of the chart's."""
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text("utf-8"))["groups"]]
    return [rule for group in groups for rule in group["rules"]]


def faults(expression: str, known: Mapping[str, Mapping[str, tuple[str, ...]]]) -> list[str]:
    """What an expression asks for that nobody has, in words."""
    found: list[str] = []
    query, labels = asked(expression), set(OUTSIDE_LABELS)
    if not query.selectors:
        found.append("asks for no metric")
    for name, matchers in query.selectors:
        if name not in known:
            found.append(f"nobody exports {name}")
            continue
        labels |= set(known[name])
        for label, operator, value in matchers:
            if label not in known[name] and label not in OUTSIDE_LABELS:
                found.append(f"{name} has no label {label}")
            elif values := known[name].get(label):
                found += [f"{name} has no {label} {one!r}" for one in _plain(operator, value) if one not in values]
    return found + [f"nothing there has the label {label}" for label in sorted(query.grouped - labels)]


def _plain(operator: str, value: str) -> Iterable[str]:
    """Values that a matcher names, as far as it is no pattern."""
    parts = value.split("|") if operator in ("=~", "!~") else [value]
    return [part for part in parts if re.fullmatch(r"\w+", part)]
