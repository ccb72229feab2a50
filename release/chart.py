"""Charts as helm packages them, with the images that belong to them by digest."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from manifests.charts import find_helm
from release.state import ReleaseError


def pinned(values: str, digests: Mapping[str, str]) -> str:
    """A values.yaml's text with ``digest`` set below each key (``image``, ``a.image``). Raises ReleaseError."""
    for key, digest in digests.items():
        block, indent = "", ""
        for part in key.split("."):
            block += rf"^{indent}{re.escape(part)}:\n(?:{indent}  .*\n|\n)*?"
            indent += "  "
        values, count = re.subn(rf'(?m)({block}^{indent}digest: )""$', rf'\g<1>"{digest}"', values)
        if count != 1:
            raise ReleaseError(f"the chart's values have no empty `{key}.digest` to be filled; see images/catalogue.py")
    return values


def state(chart: Path) -> str:
    """Digest of all files of a chart."""
    found = hashlib.sha256()
    for path in sorted(path for path in chart.rglob("*") if path.is_file()):
        found.update(f"{path.relative_to(chart)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()


def package(chart: Path, digests: Mapping[str, str], target: Path) -> None:
    """Write the chart to ``target`` as .tgz. Raises ReleaseError."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        copy = Path(folder) / chart.name
        shutil.copytree(chart, copy)
        values = copy / "values.yaml"
        values.write_text(pinned(values.read_text(), digests))
        command = [find_helm(), "package", str(copy), "--destination", folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ReleaseError(f"`helm package {chart.name}` failed: {done.stderr.strip()}")
        [made] = Path(folder).glob("*.tgz")
        shutil.move(made, target)
