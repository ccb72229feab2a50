"""Writes the version into the charts, and from them ``manifests/``, the table in ``docs/strata-model.md``, and their
README.md and schemas.

With ``--check`` it says what is out of date.

The charts are the one source. People without helm apply what lies here::

    kubectl apply --server-side -k manifests/install
    kubectl apply --server-side -k manifests/agent           # on GPU nodes
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import strata
from manifests import reference, schema, values
from manifests.charts import CHART, MODEL_CHART, ROOT, find_helm

NAMESPACE, MODELS_NAMESPACE = "strata-system", "models"
AGENT = ("serviceaccount", "clusterrole", "clusterrolebinding", "role", "rolebinding", "daemonset")
_HEAD = "# Generated from charts/strata by `make manifests`; change it there.\n"


def rendered(helm: str) -> Iterator[tuple[Path, str]]:
    """What every generated file should hold. The charts' version comes first, since the others are rendered with it."""
    for chart in (CHART, MODEL_CHART):
        path = chart / "Chart.yaml"
        yield path, re.sub(r'(?m)^((?:appV|v)ersion: "?)[^"\n]+', rf"\g<1>{strata.__version__}", path.read_text())
    yield from _others(helm).items()


def _others(helm: str) -> dict[Path, str]:
    files = {ROOT / "manifests" / "crds" / crd.name: crd.read_text() for crd in sorted((CHART / "crds").glob("*.yaml"))}
    agents = [f"--show-only=templates/agent-{name}.yaml" for name in AGENT]
    namespace = f"---\napiVersion: v1\nkind: Namespace\nmetadata:\n  name: {NAMESPACE}\n"
    for name, text in {
        "install/strata.yaml": namespace + _template(helm),
        "overlays/namespaced/strata.yaml": namespace + _template(helm, f"--set=watchNamespaces={{{MODELS_NAMESPACE}}}"),
        "agent/strata-agent.yaml": _template(helm, "--set=agent.enabled=true", *agents),
    }.items():
        files[ROOT / "manifests" / name] = _HEAD + text
    files |= values.generated(CHART)
    files |= values.generated(MODEL_CHART, spec=schema.json_schema(reference.spec()))
    files[reference.DOCUMENT] = reference.with_reference(reference.DOCUMENT.read_text())
    return files


def _template(helm: str, *options: str) -> str:
    command = [helm, "template", "strata", str(CHART), "--namespace", NAMESPACE, "--no-hooks", *options]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main() -> int:
    """Exit code 1 with ``--check`` where a file differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 where a file is out of date")
    check = parser.parse_args().check
    stale = 0
    for path, text in rendered(find_helm()):
        if path.exists() and path.read_text() == text:
            continue
        stale += 1
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        sys.stdout.write(f"{'out of date' if check else 'written'}: {path.relative_to(ROOT)}\n")
    if check and stale:
        sys.stdout.write("run `make manifests`\n")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
