"""The chart's rules in Prometheus' own promtool: what is recorded, and each alert firing and silent."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from manifests.generate import CHART, ROOT

RULES = CHART / "files" / "rules.yaml"
ENERGY, TOKENS = "strata_gpu_energy_joules_total", "strata_generation_tokens_total"
RECORD = "strata:joules_per_token:rate5m"
Series = tuple[str, str]  # name with labels, and its values of each minute

CARD = 'node="n",uuid="GPU-1",product="p"'
LIMIT = "strata_gpu_power_limit_watts{" + CARD + ',kind="%s"}'
UP, CONNECTED = "strata_gpu_up{" + CARD + "}", 'strata_agent_connected{node="n"}'
XIDS = 'strata_gpu_xids_total{node="n",uuid="GPU-1",xid="%s"}'


@pytest.fixture(autouse=True)
def promtool() -> None:
    if shutil.which("promtool") is None:
        pytest.skip("needs promtool (Debian's package prometheus)")


def check(folder: Path, series: list[Series], **expected: Any) -> None:
    """``expected``: as promtool's test file has it."""
    given = [{"series": name, "values": values} for name, values in series]
    cases = {"rule_files": [str(RULES)], "tests": [{"interval": "1m", "input_series": given, **expected}]}
    (folder / "cases.yaml").write_text(json.dumps(cases))
    command = ["promtool", "test", "rules", "cases.yaml"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_joules_per_token_are_of_all_cards_and_engines_of_a_node_that_generates(tmp_path: Path) -> None:
    series = [
        (f'{ENERGY}{{node="busy",uuid="GPU-1"}}', "0+12000x10"),
        (f'{ENERGY}{{node="busy",uuid="GPU-2"}}', "0+6000x10"),
        (f'{TOKENS}{{node="busy",pod="a"}}', "0+3000x10"),
        (f'{TOKENS}{{node="busy",pod="b"}}', "0+1500x10"),
        (f'{ENERGY}{{node="idle",uuid="GPU-3"}}', "0+1200x10"),
        (f'{TOKENS}{{node="idle",pod="c"}}', "0x10"),
        (f'{TOKENS}{{node="without-agent",pod="d"}}', "0+3000x10"),
    ]
    joules = {"labels": f'{RECORD}{{node="busy"}}', "value": 18_000 / 4_500}
    check(tmp_path, series, promql_expr_test=[{"expr": RECORD, "eval_time": "8m", "exp_samples": [joules]}])


@pytest.mark.parametrize(
    ("alert", "minute", "firing", "silent"),
    [
        pytest.param("StrataGpuDown", 4, [(UP, "1 0x10")], [(UP, "0 0 1x10")], id="a card is down"),
        pytest.param(
            "StrataGpuFault", 1, [(XIDS % 79, "1x10")], [(XIDS % 31, "5x10")], id="the driver told of a fault"
        ),
        pytest.param(
            "StrataPowerLimitNotInForce",
            6,
            [(LIMIT % "enforced", "350x10"), (LIMIT % "requested", "280x10")],
            [(LIMIT % "enforced", "250x10"), (LIMIT % "requested", "280x10")],
            id="more than models ask for",
        ),
        pytest.param(
            "StrataPowerLimitNotInForce",
            6,
            [(LIMIT % "enforced", "350x10"), (LIMIT % "requested", "280x10")],
            [(LIMIT % "enforced", "350x10")],
            id="nobody asks for anything",
        ),
        pytest.param(
            "StrataGpuHeldDown",
            31,
            [(LIMIT % "governor", "200x40")],
            [(LIMIT % "governor", "200x20 stale _x4 200x15")],
            id="heat holds it down",
        ),
        pytest.param("StrataAgentDisconnected", 11, [(CONNECTED, "0x20")], [(CONNECTED, "0x5 1x15")], id="unheard of"),
    ],
)
def test_an_alert_fires_and_is_silent(
    alert: str, minute: int, firing: list[Series], silent: list[Series], tmp_path: Path
) -> None:
    (rule,) = [one for group in _rules()["groups"] for one in group["rules"] if one.get("alert") == alert]
    names = {"eval_time": f"{minute}m", "alertname": alert}
    check(tmp_path, silent, alert_rule_test=[{**names, "exp_alerts": []}])
    asked = {"expr": f'count by (alertstate) (ALERTS{{alertname="{alert}"}})', "eval_time": f"{minute}m"}
    told = {"labels": '{alertstate="firing"}', "value": 1}
    check(tmp_path, firing, promql_expr_test=[{**asked, "exp_samples": [told]}])
    assert rule["labels"]["severity"] in ("warning", "critical")


def test_the_document_has_every_alert() -> None:
    page = (ROOT / "docs" / "node-agent.md").read_text()
    alerts = [rule["alert"] for group in _rules()["groups"] for rule in group["rules"] if "alert" in rule]
    assert [alert for alert in alerts if f"| `{alert}` |" not in page] == []


def _rules() -> Any:
    return yaml.safe_load(RULES.read_text())
