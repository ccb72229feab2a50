"""The chart's rules in Prometheus' own promtool: what is recorded, and each alert firing and silent."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dashboards.promql import RULES, rules
from manifests.charts import ROOT
from strata.cli.main import build_parser
from tests.environment import find_prometheus

RUNBOOKS = ROOT / "docs" / "runbooks"
ALERTS = {rule["alert"]: rule for rule in rules() if "alert" in rule}
ENERGY, TOKENS = "strata_gpu_energy_joules_total", "strata_generation_tokens_total"
RECORD = "strata:joules_per_token:rate5m"
Series = tuple[str, str]  # name with labels, and its values of each minute

CARD = 'node="n",uuid="GPU-1",product="p"'
MODEL = 'namespace="llm",model="m"'
LIMIT = "strata_gpu_power_limit_watts{" + CARD + ',kind="%s"}'
UP, CONNECTED = "strata_gpu_up{" + CARD + "}", 'strata_agent_connected{node="n"}'
XIDS = 'strata_gpu_xids_total{node="n",uuid="GPU-1",xid="%s"}'
THROTTLE = "strata_gpu_throttle{" + CARD + ',reason="%s"}'
NODE = 'strata_node_condition{node="n",condition="%s"}'
CONDITION = "strata_model_condition{" + MODEL + ',pod="o",condition="%s"}'
WANTED = "strata_model_replicas{" + MODEL + ',pod="o",state="wanted"}'
FIRST_TOKENS = "strata_time_to_first_token_seconds_%s"
WAITING = "strata_requests_waiting_by_reason{" + MODEL + ',pod="a",reason="%s"}'
USES = "strata_expert_uses_total{" + MODEL + ',layer="0",source="%s"}'
DISK = "strata_cache_disk_bytes{" + MODEL + ',node="n",pod="a",state="%s"}'
LEADER, QUEUE = 'strata_operator_leader{pod="%s"}', 'strata_operator_queue_depth{pod="%s"}'
RECONCILES = 'strata_operator_reconciles_total{pod="a",outcome="changed"}'


def requests(*phases: tuple[int, int]) -> list[Series]:
    """Ten requests a minute: minutes, and how many are slow of the ten."""
    within, total = [0], [0]
    for minutes, slow in phases:
        for _ in range(minutes):
            within.append(within[-1] + 10 - slow)
            total.append(total[-1] + 10)
    labels = "{" + MODEL + ',pod="a"%s}'
    return [
        (FIRST_TOKENS % "bucket" + labels % ',le="5.0"', " ".join(map(str, within))),
        (FIRST_TOKENS % "count" + labels % "", " ".join(map(str, total))),
    ]


def speed(tokens: int, *, waiting: int, expected: int = 100) -> list[Series]:
    """Tokens of a second of steps, half of the time."""
    labels = "{" + MODEL + ',pod="a"}'
    return [
        ("strata_generation_tokens_total" + labels, f"0+{30 * tokens}x30"),
        ("strata_step_seconds_total" + labels, "0+30x30"),
        ("strata_requests_waiting" + labels, f"{waiting}x30"),
        ("strata_model_tokens_per_second{" + MODEL + ',pod="o",kind="expected"}', f"{expected}x30"),
    ]


def hits(before: int, after: int) -> list[Series]:
    """Of a hundred experts a minute, in 12 hours and the half hour after them."""
    found = [f"0+{before}x720 {before * 720 + after}+{after}x30", f"0+{100 - before}x720"]
    return [(USES % "vram", found[0]), (USES % "cpu", f"{found[1]} {(100 - before) * 720}+{100 - after}x30")]


@pytest.fixture
def promtool() -> str:
    found = find_prometheus("promtool")
    if found is None:
        pytest.skip("needs promtool (make prometheus)")
    return found


@pytest.fixture
def check(promtool: str, tmp_path: Path) -> Any:
    def run(series: list[Series], **expected: Any) -> None:
        """``expected``: as promtool's test file has it."""
        given = [{"series": name, "values": values} for name, values in series]
        files = [str(path) for path in RULES]
        cases = {"rule_files": files, "tests": [{"interval": "1m", "input_series": given, **expected}]}
        (tmp_path / "cases.yaml").write_text(json.dumps(cases))
        command = [promtool, "test", "rules", "cases.yaml"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    return run


def test_joules_per_token_are_of_all_cards_and_engines_of_a_node_that_generates(check: Any) -> None:
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
    check(series, promql_expr_test=[{"expr": RECORD, "eval_time": "8m", "exp_samples": [joules]}])


CASES = [
    # Alert, minute, series that let it fire, series that do not.
    ("StrataGpuDown", 4, [(UP, "1 0x10")], [(UP, "0 0 1x10")]),
    ("StrataGpuFault", 1, [(XIDS % 79, "1x10")], [(XIDS % 31, "5x10")]),
    (
        "StrataGpuHot",
        6,
        [(THROTTLE % "thermal", "1x10")],
        [(THROTTLE % "thermal", "1x3 0x7"), (THROTTLE % "idle", "1x10")],
    ),
    (
        "StrataPcieDegraded",
        6,
        [(NODE % "PcieDegraded", "1x10")],
        [(NODE % "PcieDegraded", "0x10"), (NODE % "Healthy", "1x10")],
    ),
    (
        "StrataPowerLimitNotInForce",
        6,
        [(LIMIT % "enforced", "350x10"), (LIMIT % "requested", "280x10")],
        [(LIMIT % "enforced", "250x10"), (LIMIT % "requested", "280x10")],
    ),
    (
        "StrataPowerLimitNotInForce",
        6,
        [(LIMIT % "enforced", "350x10"), (LIMIT % "requested", "280x10")],
        [(LIMIT % "enforced", "350x10")],  # nobody asks for anything
    ),
    ("StrataGpuHeldDown", 31, [(LIMIT % "governor", "200x40")], [(LIMIT % "governor", "200x20 stale _x4 200x15")]),
    ("StrataAgentDisconnected", 11, [(CONNECTED, "0x20")], [(CONNECTED, "0x5 1x15")]),
    ("StrataFirstTokensSlow", 425, requests((360, 0), (70, 8)), requests((360, 0), (70, 7))),  # 72 % in the last hour
    ("StrataFirstTokensSlow", 425, requests((360, 0), (70, 8)), requests((360, 0), (60, 8), (10, 0))),  # it is over
    ("StrataFirstTokensSlow", 400, requests((410, 4)), requests((410, 2))),  # 30 % in six hours
    (
        "StrataModelNotReady",
        11,
        [(CONDITION % "Ready", "0x20"), (CONDITION % "Progressing", "0x20"), (WANTED, "1x20")],
        [(CONDITION % "Ready", "0x20"), (CONDITION % "Progressing", "1x20"), (WANTED, "1x20")],
    ),
    (
        "StrataModelNotReady",
        11,
        [(CONDITION % "Ready", "0x20"), (WANTED, "2x20")],
        [(CONDITION % "Ready", "0x20"), (WANTED, "0x20")],  # suspended
    ),
    ("StrataRolloutStuck", 61, [(CONDITION % "Progressing", "1x70")], [(CONDITION % "Progressing", "1x40 0 1x30")]),
    ("StrataKvCacheExhausted", 11, [(WAITING % "kv_blocks", "2x20")], [(WAITING % "max_num_seqs", "9x20")]),
    ("StrataExpertHitsCollapsed", 747, hits(80, 10), hits(80, 60)),
    ("StrataSlowerThanPlanned", 21, speed(40, waiting=1), speed(60, waiting=1)),
    ("StrataSlowerThanPlanned", 21, speed(40, waiting=1), speed(40, waiting=0)),  # its batch is not full
    (
        "StrataCacheDiskFull",
        16,
        [(DISK % "free", "4e9x20"), (DISK % "total", "1e11x20")],
        [(DISK % "free", "6e9x20"), (DISK % "total", "1e11x20")],
    ),
    (
        "StrataOperatorNotReconciling",
        11,
        [(UP, "1x20")],  # nothing of an operator
        [
            (LEADER % "a", "1x20"),
            (LEADER % "b", "0x20"),
            (QUEUE % "a", "0x20"),
            (QUEUE % "b", "5x20"),
            (RECONCILES, "0+1x20"),
        ],
    ),
    (
        "StrataOperatorNotReconciling",
        11,
        [(LEADER % "a", "0x20"), (LEADER % "b", "0x20"), (QUEUE % "a", "0x20")],
        [(QUEUE % "a", "0x20"), (RECONCILES, "5x20")],  # of one without a Lease, which has nothing to do
    ),
    (
        "StrataOperatorNotReconciling",
        16,
        [(LEADER % "a", "1x20"), (QUEUE % "a", "3x20"), (RECONCILES, "5x20")],
        [(LEADER % "a", "1x20"), (QUEUE % "a", "3x20"), (RECONCILES, "0+1x20")],
    ),
]


@pytest.mark.real
@pytest.mark.parametrize(("alert", "minute", "firing", "silent"), CASES, ids=[case[0] for case in CASES])
def test_an_alert_fires_and_is_silent(
    alert: str, minute: int, firing: list[Series], silent: list[Series], check: Any
) -> None:
    asked = {
        "expr": f'count by (alertstate) (ALERTS{{alertname="{alert}",alertstate="firing"}})',
        "eval_time": f"{minute}m",
    }
    check(silent, promql_expr_test=[{**asked, "exp_samples": []}])
    check(firing, promql_expr_test=[{**asked, "exp_samples": [{"labels": '{alertstate="firing"}', "value": 1}]}])


def test_every_alert_is_tried() -> None:
    assert {case[0] for case in CASES} == set(ALERTS)


def test_what_an_alert_says_is_of_labels_that_it_has(check: Any) -> None:
    told = {
        "alertname": "StrataCacheDiskFull",
        "eval_time": "16m",
        "exp_alerts": [
            {
                "exp_labels": {"severity": "warning", "namespace": "llm", "model": "m", "node": "n", "pod": "a"},
                "exp_annotations": {
                    "summary": "The disk with the cache of pod a on node n has 4GiB left.",
                    "description": "The next model, or the next revision, will not fit.",
                    "runbook_url": "docs/runbooks/StrataCacheDiskFull.md",
                },
            }
        ],
    }
    check([(DISK % "free", f"{4 << 30}x20"), (DISK % "total", "1e11x20")], alert_rule_test=[told])


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_is_written_about(alert: str) -> None:
    rule: Any = ALERTS[alert]
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"] == f"docs/runbooks/{alert}.md"
    page = (RUNBOOKS / f"{alert}.md").read_text("utf-8")
    assert page.startswith(f"# {alert}\n")
    assert re.findall(r"^## (.*)", page, re.MULTILINE) == ["What it means", "Look", "Do"]
    assert re.search(r"^```\n(?:[A-Z]+=.*\n)?(kubectl|strata|promtool|nvidia-smi|journalctl) ", page, re.MULTILINE), (
        "no command to run"
    )
    assert f"| [`{alert}`](runbooks/{alert}.md) | {rule['labels']['severity']} |" in (
        ROOT / "docs" / "alerts.md"
    ).read_text("utf-8")


def test_every_runbook_is_of_an_alert() -> None:
    assert {page.stem for page in RUNBOOKS.glob("*.md")} == set(ALERTS)


@pytest.mark.parametrize("alert", ALERTS)
def test_a_runbook_names_fields_and_commands_that_there_are(alert: str) -> None:
    page = (RUNBOOKS / f"{alert}.md").read_text("utf-8")
    fields = set(re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs" / "strata-model.md").read_text("utf-8"), re.MULTILINE))
    named = re.findall(r"`(?:spec\.)?((?:engine|power|hardware|cache)\.[A-Za-z.]+)", page)
    assert [name for name in named if name not in fields] == []
    for command in re.findall(r"^strata (.*?)(?:\s+#.*)?$", page, re.MULTILINE):
        assert build_parser().parse_args(command.split())
