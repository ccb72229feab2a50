"""The blocks of the pages do what the pages say, as they are written there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from docs.site import ROOT
from manifests import reference, schema
from strata_operator.api.model import API_VERSION, KIND, StrataModel
from tests.docs.blocks import Block, blocks
from tests.docs.checkout import make_checkout
from tests.environment import find_prometheus
from tests.operator.chart.helm import Helm

ALONE = ("unshare", "--user", "--map-root-user", "--net", "--kill-child", "bash", "-euo", "pipefail", "-c")
# `strata serve` goes on while what follows it in the block is run, until another one takes its place.
PRELUDE = """
ip link set lo up
make() { command make -n "$@" > /dev/null; }
leave() { if [ -n "${server-}" ]; then kill -INT "$server"; wait "$server" || true; server=; fi; }
trap leave EXIT
strata() {
  if [ "$1" != serve ]; then
    command strata "$@" || [ "$1/$?" = doctor/1 ]  # 1: it has found what to mend
    return
  fi
  leave
  command strata "$@" &
  server=$!
  port=8000
  if [[ "$*" =~ --port\\ ([0-9]+) ]]; then port=${BASH_REMATCH[1]}; fi
  until curl --silent --fail --output /dev/null http://127.0.0.1:$port/ready; do kill -0 $server; sleep 0.1; done
}
"""
SERVER = "strata serve builtin://smollm2-135m --max-model-len 2048\n"


def parametrized(*runners: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("block", [block for runner in runners for block in blocks(runner)], ids=str)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home directory with a checkout and nothing else; with ``strata`` on the PATH."""
    home = tmp_path_factory.mktemp("home")
    (home / "bin").mkdir()
    strata = home / "bin" / "strata"
    strata.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m strata.cli.main "$@"\n')
    strata.chmod(0o755)
    make_checkout(home / "checkout")
    return home


def run(home: Path, script: str) -> None:
    if subprocess.run([*ALONE, "ip link set lo up"], capture_output=True, check=False).returncode != 0:
        pytest.skip("nobody here may make a network of his own: util-linux, iproute2 and user namespaces are needed")
    path = f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}"
    python = os.pathsep.join(str(ROOT / part) for part in ("engine", "operator", ""))
    own = {"HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache"), "PATH": path, "PYTHONPATH": python}
    done = subprocess.run(
        [*ALONE, PRELUDE + script],
        cwd=home / "checkout", env={**os.environ, **own}, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.real
@pytest.mark.timeout(600)
@parametrized("shell", "client", "python")
def test_commands_run_without_any_other_machine(block: Block, home: Path) -> None:
    before = "" if block.runner == "shell" else SERVER
    python = f"{shlex.quote(sys.executable)} -W error -c {shlex.quote(block.code)}"
    run(home, before + (python if block.runner == "python" else block.code))


def whole(obj: dict[str, Any]) -> dict[str, Any]:
    """A part of a spec, with the least that a model has."""
    least = {
        "model": {"source": "builtin://smollm2-135m"},
        "hardware": {"accelerator": "cpu", "cpu": 1, "memory": "8Gi"},
    }
    made: dict[str, Any] = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "m", "namespace": "n"}, **obj}
    return {**made, "metadata": {"namespace": "n", **made["metadata"]}, "spec": {**least, **made["spec"]}}


@parametrized("model")
def test_models_are_valid(block: Block) -> None:
    obj = whole(yaml.safe_load(block.code))
    jsonschema_rs.validate(schema.json_schema(reference.spec()), obj["spec"])
    StrataModel.parse({**obj, "metadata": {"uid": "u", "generation": 1, **obj["metadata"]}})


@pytest.mark.real
@parametrized("promql")
def test_queries_are_promql(block: Block, tmp_path: Path) -> None:
    promtool = find_prometheus("promtool")
    if promtool is None:
        pytest.skip("promtool is not here; `make prometheus` brings it")
    text = re.sub(r"[ ]+# .*", "", block.code)
    queries = [" ".join(query.split()) for query in re.split(r"\n(?![ ])", text) if query.strip()]
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries)]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    checked = subprocess.run(
        [promtool, "check", "rules", tmp_path / "rules.yaml"], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(queries)} rules found" in checked.stdout


@parametrized("values")
def test_helm_takes_the_options(block: Block, helm: Helm) -> None:
    """What follows `helm install` or `helm upgrade`, with the chart that it names."""
    commands = [shlex.split(line) for line in block.code.replace("\\\n", " ").splitlines() if line.startswith("helm ")]
    rendered = [words for words in commands if words[1] in ("install", "upgrade")]
    assert rendered
    for words in rendered:
        kept = [word for word in words[2:] if not word.startswith("--re")]  # values of a release that is there
        done = helm.run("template", *(str(ROOT / word) if (ROOT / word).exists() else word for word in kept))
        assert done.returncode == 0, done.stderr
