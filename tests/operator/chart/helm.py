"""The real helm, and the charts as it renders them."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from manifests.charts import CHART

Objects = dict[tuple[str, str], dict[str, Any]]  # by kind and name


@dataclass(frozen=True, slots=True)
class Helm:
    program: str

    def run(self, *args: str, values: Mapping[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
        stdin = None if values is None else yaml.safe_dump(values)
        given = () if values is None else ("--values=-",)
        return subprocess.run([self.program, *args, *given], input=stdin, capture_output=True, text=True, check=False)

    def text(self, values: Mapping[str, Any], chart: Path = CHART) -> str:
        """What the API server would be given, hooks included. Raises AssertionError with what helm says."""
        done = self.run("template", "strata", str(chart), "--namespace=ns", "--kube-version=1.33.0", values=values)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def every(self, *sets: str) -> list[dict[str, Any]]:
        """All objects, those of one name in several namespaces too."""
        done = self.run("template", "strata", str(CHART), "-n", "ns", *(f"--set={one}" for one in sets))
        assert done.returncode == 0, done.stderr
        return [obj for obj in yaml.safe_load_all(done.stdout) if obj]

    def objects(self, *sets: str) -> Objects:
        return {(obj["kind"], obj["metadata"]["name"]): obj for obj in self.every(*sets)}


def by_name(text: str) -> Objects:
    return {(obj["kind"], obj["metadata"]["name"]): obj for obj in yaml.safe_load_all(text) if obj}
