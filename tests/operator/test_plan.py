from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from strata_operator.api.child import Child
from strata_operator.api.conditions import Trouble
from strata_operator.api.observed import Observed
from strata_operator.plan import lost_fields, plan
from strata_operator.render import children
from tests.operator.samples import child, fields_of, model

MODEL = model()
DESIRED = children(MODEL, engine_image="engine:1")


def observed(**changes: Any) -> Observed:
    """All children as applied; ``Kind=None`` takes one away, ``Kind={...}`` changes its fields."""
    there = {kind: child(manifest) for kind, manifest in DESIRED.items()}
    for kind, change in changes.items():
        if change is None:
            del there[kind]
        else:
            there[kind] = replace(there[kind], **change)
    return Observed(children=there)


def verbs(seen: Observed) -> list[tuple[str, str]]:
    return [(action.verb, action.kind) for action in plan(MODEL, DESIRED, seen).actions]


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param(observed(), [], id="all as it should be"),
        pytest.param(Observed(children={}), [("create", kind) for kind in DESIRED], id="nothing there"),
        pytest.param(observed(Service=None), [("create", "Service")], id="one gone"),
        pytest.param(observed(Service={"hash": "old"}), [("update", "Service")], id="rendered differently"),
        pytest.param(observed(Service={"hash": None}), [("update", "Service")], id="hash taken away"),
        pytest.param(
            observed(Service={"owned_fields": '{"f:spec":{"f:ports":{}}}'}), [("restore", "Service")], id="drift"
        ),
        pytest.param(observed(Service={"deleting": True}), [], id="on its way out, and the Deployment waits"),
    ],
)
def test_only_what_differs_is_applied(seen: Observed, expected: list[tuple[str, str]]) -> None:
    assert verbs(seen) == expected


HOLD = Trouble("NotEnoughVram", "needs more")


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param(
            Observed(children={}),
            [("create", kind) for kind in DESIRED if kind != "Deployment"],
            id="no pod is started",
        ),
        pytest.param(observed(Deployment={"hash": "old"}), [], id="what runs goes on"),
        pytest.param(observed(Deployment={"owned_fields": "{}"}), [("restore", "Deployment")], id="drift is put back"),
        pytest.param(observed(Service={"hash": "old"}), [("update", "Service")], id="the rest is as ever"),
    ],
)
def test_what_may_not_start_holds_the_deployment_alone(seen: Observed, expected: list[tuple[str, str]]) -> None:
    made = plan(MODEL, DESIRED, seen, hold=HOLD)
    assert [(action.verb, action.kind) for action in made.actions] == expected
    held = any(kept.hash == "old" for kept in seen.children.values() if kept.kind != "Service") or not seen.children
    assert made.held == (HOLD if held else None)


def test_a_webhook_s_last_word_is_not_fought() -> None:
    mutated = '{"f:spec":{"f:ports":{}}}'
    seen = observed(Service={"owned_fields": mutated})
    assert verbs(replace(seen, applied_fields={"Service": hash(mutated)})) == []
    assert verbs(replace(seen, applied_fields={"Service": hash("another set")})) == [("restore", "Service")]


def test_what_is_not_ours_is_named_and_left_alone() -> None:
    made = plan(MODEL, DESIRED, observed(ServiceAccount={"owner_uid": "other", "owner": "Deployment/x", "hash": "old"}))
    assert made.actions == ()
    assert made.blocked[0].reason == "NameConflict"
    assert "ServiceAccount m exists and belongs to Deployment/x" in made.blocked[0].message


def test_nothing_starts_with_a_foreign_account() -> None:
    seen = observed(ServiceAccount={"owner_uid": None, "owner": None}, Deployment=None, Service=None)
    assert verbs(seen) == []


def test_children_of_a_model_that_is_gone_are_waited_for() -> None:
    made = plan(MODEL, DESIRED, observed(Service={"owner_uid": "uid of before", "owner": "StrataModel/m"}))
    assert (made.actions, made.blocked, made.waiting) == ((), (), ("Service m",))


def test_an_update_goes_to_the_object_that_was_seen() -> None:
    (action,) = plan(MODEL, DESIRED, observed(Service={"hash": "old"})).actions
    assert isinstance(action.known, Child)
    assert action.known.uid == "uid-Service"


MANIFEST = {
    "apiVersion": "v1",
    "kind": "Thing",
    "metadata": {"name": "m", "namespace": "ns", "uid": "u", "labels": {"a": "1"}},
    "spec": {
        "plain": 1,
        "table": {"inner": True},
        "empty": {},
        "atomic": ["x", "y"],
        "keyed": [{"name": "engine", "image": "i", "ports": [{"containerPort": 80}]}],
        "set": ["one"],
    },
}
OWNED: dict[str, Any] = {
    "f:metadata": {"f:labels": {"f:a": {}}},
    "f:spec": {
        "f:plain": {},
        "f:table": {"f:inner": {}},
        "f:empty": {},
        "f:atomic": {},
        "f:keyed": {
            'k:{"name":"engine"}': {
                ".": {},
                "f:name": {},
                "f:image": {},
                "f:ports": {'k:{"containerPort":80,"protocol":"TCP"}': {".": {}, "f:containerPort": {}}},
            }
        },
        "f:set": {'v:"one"': {}},
    },
}


def test_fields_that_are_all_ours() -> None:
    assert lost_fields(MANIFEST, OWNED) == ()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (["f:metadata", "f:labels", "f:a"], ".metadata"),
        (["f:spec", "f:plain"], ".spec.plain"),
        (["f:spec", "f:table", "f:inner"], ".spec.table"),
        (["f:spec", "f:atomic"], ".spec.atomic"),
        (["f:spec", "f:empty"], ".spec.empty"),
        (["f:spec", "f:keyed", 'k:{"name":"engine"}', "f:image"], ".spec.keyed[0].image"),
        (["f:spec", "f:keyed", 'k:{"name":"engine"}', "f:ports", 'k:{"containerPort":80,"protocol":"TCP"}'], None),
        (["f:spec", "f:set", 'v:"one"'], None),
    ],
)
def test_a_field_that_somebody_took_is_named(path: list[str], expected: str | None) -> None:
    def without(fields: dict[str, Any], steps: list[str]) -> dict[str, Any]:
        if len(steps) == 1:
            return {key: value for key, value in fields.items() if key != steps[0]}
        rest = without(fields[steps[0]], steps[1:])
        kept = {key: value for key, value in fields.items() if key != steps[0]}
        return {**kept, **({steps[0]: rest} if rest else {})}  # the server drops what holds nothing

    lost = lost_fields(MANIFEST, without(OWNED, path))
    assert len(lost) == 1
    if expected is not None:
        assert lost == (expected,)


def test_what_we_render_is_found_in_what_we_own() -> None:
    for manifest in DESIRED.values():
        body = {key: value for key, value in manifest.items() if key not in ("apiVersion", "kind")}
        assert lost_fields(manifest, fields_of(body)) == ()


def test_an_object_of_which_we_own_nothing_is_lost_wholly() -> None:
    assert lost_fields(MANIFEST, {}) != ()
