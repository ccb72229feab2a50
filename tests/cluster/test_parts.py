from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from tests.cluster import parts
from tests.cluster.errors import ClusterError
from tests.cluster.parts import PARTS, Part, binary, part


@pytest.fixture
def own_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the pinned modules, to be changed at will."""
    shutil.copytree(parts.MODULES, tmp_path / "modules")
    monkeypatch.setattr(parts, "MODULES", tmp_path / "modules")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "modules"


def fresh(name: str) -> Part:
    """Without what it remembered of its files."""
    return dataclasses.replace(part(name))


@pytest.mark.parametrize("known", PARTS, ids=lambda p: p.name)
def test_every_part_is_pinned(known: Part) -> None:
    assert (known.source / "go.mod").is_file()
    assert known.go_version >= (1, 26)
    if known.upstream:
        assert (known.source / "go.sum").is_file()
        assert known.version.startswith("v")


def test_the_version_is_the_one_in_go_mod(own_modules: Path) -> None:
    go_mod = own_modules / "etcd" / "go.mod"
    go_mod.write_text(
        go_mod.read_text().replace("go.etcd.io/etcd/server/v3 v3.7.3", "go.etcd.io/etcd/server/v3 v3.9.9")
    )
    assert fresh("etcd").version == "v3.9.9"


def test_kubernetes_says_its_version_at_run_time() -> None:
    kubernetes = part("kubernetes")
    major, minor, _ = kubernetes.version.removeprefix("v").split(".")
    assert f"version.gitVersion={kubernetes.version} " in kubernetes.ldflags
    assert f"version.gitMajor={major} " in kubernetes.ldflags
    assert f"version.gitMinor={minor} " in kubernetes.ldflags


def test_a_changed_pin_rebuilds_that_part_only(own_modules: Path) -> None:
    before = {known.name: fresh(known.name).digest for known in PARTS}
    with (own_modules / "registry" / "go.sum").open("a") as file:
        file.write("example.org/m v1.0.0 h1:x=\n")
    after = {known.name: fresh(known.name).digest for known in PARTS}
    assert {name for name in before if before[name] != after[name]} == {"registry"}


@pytest.mark.parametrize("change", [{"tags": "no_cri"}, {"binaries": {"etcd": "."}}], ids=["tags", "packages"])
def test_changed_build_flags_rebuild(change: dict[str, object]) -> None:
    changed = dataclasses.replace(part("etcd"), **change)  # type: ignore[arg-type]
    assert changed.digest != part("etcd").digest


def test_binaries_are_found_in_their_parts_folder() -> None:
    assert binary("ctr") == part("containerd").folder / "ctr"


@pytest.mark.parametrize(("ask", "wrong"), [(part, "docker"), (binary, "dockerd")])
def test_an_unknown_name_is_answered_with_the_known_ones(ask: object, wrong: str) -> None:
    assert callable(ask)
    with pytest.raises(ClusterError, match=rf"'{wrong}'; there are .*kubelet|'{wrong}'; there are kubernetes"):
        ask(wrong)
