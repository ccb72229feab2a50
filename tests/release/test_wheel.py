from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from images.buildah import ROOT
from release import wheel
from release.state import ReleaseError

LIBRARY = ROOT / "engine" / "strata" / "native" / "libstrata.so"
NAME, INFO = "strata_engine-1.2.3-py3-none-linux_x86_64.whl", "strata_engine-1.2.3.dist-info"


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """A wheel with the library as `make native` built it, and nothing else."""
    if not LIBRARY.exists():
        pytest.skip("the CPU kernels are not built; `make native` does it")
    with zipfile.ZipFile(tmp_path / NAME, "w") as opened:
        opened.write(LIBRARY, "strata/native/libstrata.so")
        opened.writestr(f"{INFO}/METADATA", "Metadata-Version: 2.1\nName: strata-engine\nVersion: 1.2.3\n")
        opened.writestr(f"{INFO}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-linux_x86_64\n")
        opened.writestr(f"{INFO}/RECORD", "strata/native/libstrata.so,,\n")
    return tmp_path / NAME


def test_the_library_runs_where_the_tag_says(built: Path, tmp_path: Path) -> None:
    target = tmp_path / wheel.file_name(built)
    wheel.tag(built, target)
    assert target.name == f"strata_engine-1.2.3-py3-none-{wheel.PLATFORM}.whl"
    with zipfile.ZipFile(target) as opened:
        assert f"Tag: py3-none-{wheel.PLATFORM}\n" in opened.read(f"{INFO}/WHEEL").decode()
        assert opened.read("strata/native/libstrata.so") == LIBRARY.read_bytes()


def test_a_tag_that_is_not_true_is_refused(built: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(wheel, "PLATFORM", "manylinux_2_17_x86_64")
    with pytest.raises(ReleaseError, match=r"not manylinux_2_17_x86_64: .*too-recent versioned symbols"):
        wheel.tag(built, tmp_path / "tagged.whl")
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
