"""The chart's recording rule, computed by Prometheus' own promtool."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from manifests.generate import CHART

ENERGY, TOKENS = "strata_gpu_energy_joules_total", "strata_generation_tokens_total"
RECORD = "strata:joules_per_token:rate5m"


def counter(metric: str, node: str, per_minute: int, **labels: str) -> dict[str, Any]:
    text = ",".join(f'{name}="{value}"' for name, value in {"node": node, **labels}.items())
    return {"series": f"{metric}{{{text}}}", "values": f"0+{per_minute}x10"}


SERIES = [
    counter(ENERGY, "busy", 12_000, uuid="GPU-1"),
    counter(ENERGY, "busy", 6_000, uuid="GPU-2"),
    counter(TOKENS, "busy", 3_000, pod="a"),
    counter(TOKENS, "busy", 1_500, pod="b"),
    counter(ENERGY, "idle", 1_200, uuid="GPU-3"),
    counter(TOKENS, "idle", 0, pod="c"),
    counter(TOKENS, "without-agent", 3_000, pod="d"),
]


def test_joules_per_token_are_of_all_cards_and_engines_of_a_node_that_generates(tmp_path: Path) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("needs promtool (Debian's package prometheus)")
    template = (CHART / "templates" / "agent-prometheusrule.yaml").read_text()
    rules = yaml.safe_load(template.partition("\nspec:\n")[2].partition("{{- end }}")[0])
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    expected = [{"labels": f'{RECORD}{{node="busy"}}', "value": 4}]  # 18 kJ and 4,500 tokens a minute
    asked = [{"expr": RECORD, "eval_time": "8m", "exp_samples": expected}]
    cases = [{"interval": "1m", "input_series": SERIES, "promql_expr_test": asked}]
    (tmp_path / "cases.yaml").write_text(json.dumps({"rule_files": ["rules.yaml"], "tests": cases}))
    done = subprocess.run(
        ["promtool", "test", "rules", "cases.yaml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
