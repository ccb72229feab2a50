from __future__ import annotations

from pathlib import Path

import pytest

from images import context
from images.buildah import ROOT
from images.context import Context

ENGINE, OPERATOR = "strata-engine", "strata-operator"


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


def test_no_pin_of_the_operator_belongs_to_torch() -> None:
    assert not [pin for pin in context.requirements("operator") if context.LARGE.match(pin)]


def test_the_engines_pins_are_those_of_the_constraints() -> None:
    constraints = (ROOT / "constraints.txt").read_text().splitlines()
    pins = context.requirements("serve")
    assert [pin for pin in pins if pin.startswith("torch==")] == [c for c in constraints if c.startswith("torch==")]
    assert set(pins) <= set(constraints)
