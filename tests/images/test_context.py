from __future__ import annotations

from pathlib import Path

import pytest

from images import context
from images.buildah import ROOT
from images.catalogue import ENGINE, GATEWAY, OPERATOR
from images.context import Context


@pytest.fixture
def filled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Context:
    monkeypatch.setattr(context, "CONTEXT", tmp_path)
    for name in ("torch", "engine", "operator"):
        (tmp_path / f"{name}.txt").write_text(f"{name}==1\n")
    return Context(wheel="wheels/abc/strata.whl")


def tags(filled: Context, base: str = "debian:bookworm-slim") -> tuple[str, str]:
    return filled.tag(ENGINE, base), filled.tag(OPERATOR, base)


def test_the_same_inputs_give_the_same_tag(filled: Context) -> None:
    assert tags(filled) == tags(filled)
    assert len(set(tags(filled))) == 2


def test_a_pin_changes_the_tag_of_the_image_that_holds_it(filled: Context, tmp_path: Path) -> None:
    engine, operator = tags(filled)
    (tmp_path / "torch.txt").write_text("torch==2\n")
    assert filled.tag(ENGINE, "debian:bookworm-slim") != engine
    assert filled.tag(OPERATOR, "debian:bookworm-slim") == operator


def test_code_and_base_change_the_tag_of_both(filled: Context) -> None:
    before = set(tags(filled))
    assert before.isdisjoint(tags(Context(wheel="wheels/def/strata.whl")))
    assert before.isdisjoint(tags(filled, base="debian:trixie-slim"))


def test_the_gateway_s_image_is_made_from_the_files_beside_its_containerfile_and_not_from_the_wheel(
    filled: Context, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = filled.tag(GATEWAY, "debian:bookworm-slim")
    assert Context(wheel="wheels/def/strata.whl").tag(GATEWAY, "debian:bookworm-slim") == before
    names = {path.name for path in context.sources(GATEWAY)}
    assert {"Containerfile", "requirements.txt", "serve.py", "custom_auth.py", "config.yaml"} == names
    monkeypatch.setattr(context, "ROOT", tmp_path)
    beside = tmp_path / "images" / GATEWAY.name
    beside.mkdir(parents=True)
    (beside / "serve.py").write_text("1")
    one = filled.tag(GATEWAY, "debian:bookworm-slim")
    (beside / "serve.py").write_text("2")
    assert filled.tag(GATEWAY, "debian:bookworm-slim") != one


def test_no_pin_of_the_operator_belongs_to_torch() -> None:
    assert not [pin for pin in context.requirements("operator") if context.LARGE.match(pin)]


def test_the_engines_pins_are_those_of_the_constraints() -> None:
    constraints = (ROOT / "constraints.txt").read_text().splitlines()
    pins = context.requirements("serve")
    assert [pin for pin in pins if pin.startswith("torch==")] == [c for c in constraints if c.startswith("torch==")]
    assert set(pins) <= set(constraints)


@pytest.fixture
def checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """With a wheel that says how many were built before it, in place of one that is compiled."""
    for name in ("constraints.txt", "README.md", "LICENSE"):
        (tmp_path / name).write_text(name)
    (tmp_path / "pyproject.toml").write_text('[tool.scikit-build]\nwheel.packages = ["engine/strata"]\n')
    (tmp_path / "engine" / "strata" / "native").mkdir(parents=True)
    (tmp_path / "engine" / "strata" / "a.py").write_text("A = 1\n")
    built: list[Path] = []

    def uv(*arguments: str, **env: str) -> str:
        place = Path(arguments[arguments.index("--out-dir") + 1])
        place.mkdir(parents=True)
        (place / "strata.whl").write_text(f"{len(built)}")
        built.append(place)
        return ""

    monkeypatch.setattr(context, "uv", uv)
    monkeypatch.setattr(context, "ROOT", tmp_path)
    monkeypatch.setattr(context, "BUILD", tmp_path / "build")
    monkeypatch.setattr(context, "CONTEXT", tmp_path / "build" / "context")
    return tmp_path


def number(checkout: Path, path: str) -> str:
    return (checkout / "build" / "context" / path).read_text()


def test_a_wheel_is_built_once_for_the_same_sources(checkout: Path) -> None:
    assert [number(checkout, context.wheel()) for _ in range(2)] == ["0", "0"]
    (checkout / "engine" / "strata" / "native" / "libstrata.so").write_text("built in place")
    (checkout / "engine" / "strata" / "a.pyc").write_text("compiled")
    assert number(checkout, context.wheel()) == "0"


@pytest.mark.parametrize("file", ["engine/strata/a.py", "engine/strata/new.py", "pyproject.toml", "constraints.txt"])
def test_another_wheel_is_built_for_other_sources(checkout: Path, file: str) -> None:
    context.wheel()
    with (checkout / file).open("a") as changed:
        changed.write("# another line\n")
    assert number(checkout, context.wheel()) == "1"


def test_a_wheel_that_is_gone_is_built_again(checkout: Path) -> None:
    (checkout / "build" / "context" / context.wheel()).unlink()
    assert number(checkout, context.wheel()) == "1"
