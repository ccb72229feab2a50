"""What the chart renders for each set of values: ``python -m tests.operator.chart.golden`` writes golden/ again.

golden/default.yaml has all of it, but for the definitions of the custom resources; agent.diff has what the agents add,
gateway.diff what the gateway adds, and each other file what differs from one of these three.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator
from pathlib import Path

from manifests.charts import find_helm
from tests.operator.chart.cases import CASES
from tests.operator.chart.helm import Helm

FOLDER = Path(__file__).parent / "golden"
_DEFINITIONS = "crds-configmap.yaml"


def files(helm: Helm) -> dict[Path, str]:
    """Every file as it should be."""
    default, agent, gateway = (documents(helm.text(CASES[name])) for name in ("default", "agent", "gateway"))
    made = {FOLDER / "default.yaml": "---\n".join(default.values())}
    for name, values in CASES.items():
        base = agent if values.get("agent", {}).get("enabled") and name != "agent" else default
        base = gateway if values.get("gateway", {}).get("enabled") and name != "gateway" else base
        if name != "default":
            made[FOLDER / f"{name}.diff"] = "".join(difference(base, documents(helm.text(values))))
    return made


def documents(text: str) -> dict[tuple[str, int], str]:
    """Each object by its template and its place among those of the same."""
    found: dict[tuple[str, int], str] = {}
    for document in text.split("---\n# Source: strata/templates/")[1:]:
        template = document.partition("\n")[0]
        if template == _DEFINITIONS:
            document = document.partition("\ndata:\n")[0] + "\n"
        number = sum(1 for other, _ in found if other == template)
        found[template, number] = f"# {document.rstrip()}\n"
    return found


def difference(old: dict[tuple[str, int], str], new: dict[tuple[str, int], str]) -> Iterator[str]:
    """Without numbers of lines, so that one object's change is in no other's way."""
    for key in sorted(old | new):
        if key not in new:
            yield f"=== without {key[0]}\n"
            continue
        before, after = (which.get(key, "").splitlines(keepends=True) for which in (old, new))
        lines = list(difflib.unified_diff(before, after, n=2))[2:]
        if lines:
            yield f"=== {key[0]}{f' {key[1]}' if key[1] else ''}\n"
            yield from ("...\n" if line.startswith("@@") else line for line in lines)


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    wanted = files(Helm(find_helm()))
    for path in set(FOLDER.iterdir()) - wanted.keys():
        path.unlink()
    for path, text in wanted.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
