"""Rules and pages name no metric, label or value that no exporter has; the metrics' page is what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dashboards import generate, reference
from dashboards.promql import Asked, asked, faults, known_series, rules
from manifests.charts import ROOT

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
# Words of the pages that begin like a metric: packages, wheels, and files.
NO_METRICS = {"strata_operator", "strata_engine", "strata_interface"}


def test_what_is_generated_is_up_to_date() -> None:
    stale = [
        str(path) for path, text in generate.rendered().items() if not path.exists() or path.read_text("utf-8") != text
    ]
    assert stale == [], "run `make dashboards`"


def test_a_page_without_a_place_for_its_tables_is_no_page() -> None:
    with pytest.raises(ValueError, match="has 0 places"):
        reference.with_tables("# Metrics\n")


@pytest.mark.parametrize(
    ("expression", "metrics", "grouped"),
    [
        ("rate(a_total[5m])", ["a_total"], set()),
        ("sum by (x, y) (a) / on (z) group_left (w) b:c", ["a", "b:c"], set("xyzw")),
        ('histogram_quantile(0.95, sum by (le) (rate(h_bucket{a=~"b|c"}[$__rate_interval])))', ["h_bucket"], {"le"}),
        ("a offset 1d unless b == 0 or vector(1e3)", ["a", "b"], set()),
        ("sum(a) by (x) # of b", ["a"], {"x"}),
        ("max_over_time((a > bool 1.5)[1h:1m])", ["a"], set()),
    ],
)
def test_an_expression_is_taken_apart(expression: str, metrics: list[str], grouped: set[str]) -> None:
    found = asked(expression)
    assert ([name for name, _ in found.selectors], found.grouped) == (metrics, grouped)


def test_matchers_are_found() -> None:
    assert asked('m{a="x y",b!~"c|d"} + n{}') == Asked([("m", [("a", "=", "x y"), ("b", "!~", "c|d")]), ("n", [])])


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("strata_tokens", "nobody exports strata_tokens"),
        ('strata_kv_blocks{colour="red"}', "strata_kv_blocks has no label colour"),
        ('strata_kv_blocks{state="full"}', "strata_kv_blocks has no state 'full'"),
        ('strata_kv_blocks{state=~"free|full"}', "strata_kv_blocks has no state 'full'"),
        ("sum by (uuid) (strata_kv_blocks)", "nothing there has the label uuid"),
        ("strata_time_to_first_token_seconds", "nobody exports strata_time_to_first_token_seconds"),
        ("vector(1)", "asks for no metric"),
    ],
)
def test_what_nobody_has_is_found(expression: str, fault: str) -> None:
    assert faults(expression, known_series()) == [fault]


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.get("alert") or rule["record"])
def test_rules_ask_for_what_there_is(rule: dict[str, str]) -> None:
    assert faults(rule["expr"], known_series()) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_name_what_there_is(page: Path) -> None:
    text, known = page.read_text("utf-8"), known_series()
    stems = {re.sub("_(bucket|sum|count)$", "", name) for name in known} | set(known)
    named = set(re.findall(r"(?<![\w/.-])strata_[a-z0-9_]+[a-z0-9](?![\w./]*\.)", text)) - NO_METRICS
    assert named - stems == set()
    queries = re.findall(r"^    (.*(?:\n      .*)*)", text.partition("## Useful queries")[2], re.MULTILINE)
    found = [query for query in queries if "strata_" in query]
    assert [fault for query in found for fault in faults(query, known)] == []
    assert (page.name == "metrics.md") == bool(found)
