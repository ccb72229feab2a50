from __future__ import annotations

from typing import Any

import pytest

from strata_operator.api.conditions import Trouble
from strata_operator.missing import explained
from tests.operator.samples import model

MOUNT = 'MountVolume.SetUp failed for volume "api-keys" : '
NAMED: dict[str, Any] = {
    "model": {"source": "hf://ORG/NAME", "secretRef": {"name": "hub", "key": "hf"}},
    "service": {"apiKeysSecretRef": {"name": "keys", "key": "team"}},
    "env": [
        {"name": "PROXY", "valueFrom": {"secretKeyRef": {"name": "proxy", "key": "url"}}},
        {"name": "REGION", "valueFrom": {"configMapKeyRef": {"name": "site", "key": "region"}}},
    ],
}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        pytest.param(
            f'{MOUNT}secret "keys" not found',
            'Secret "keys" not found in namespace ns; create it, or name another in spec.service.apiKeysSecretRef',
            id="of API keys",
        ),
        pytest.param(
            f"{MOUNT}references non-existent secret key: team",
            'Secret "keys" in namespace ns has no key "team"; add it, or name another in spec.service.apiKeysSecretRef',
            id="without the key of API keys",
        ),
        pytest.param(
            'secret "hub" not found',
            'Secret "hub" not found in namespace ns; create it, or name another in spec.model.secretRef',
            id="of the Hub",
        ),
        pytest.param(
            "couldn't find key hf in Secret ns/hub",
            'Secret "hub" in namespace ns has no key "hf"; add it, or name another in spec.model.secretRef',
            id="without the key of the Hub",
        ),
        pytest.param(
            'configmap "site" not found',
            'ConfigMap "site" not found in namespace ns; create it, or name another in spec.env',
            id="a variable's ConfigMap",
        ),
        pytest.param(
            'secret "proxy" not found',
            'Secret "proxy" not found in namespace ns; create it, or name another in spec.env',
            id="a variable's Secret",
        ),
        pytest.param(
            'MountVolume.SetUp failed for volume "mine" : secret "other" not found',
            'Secret "other" not found in namespace ns; create it, or name another in the spec',
            id="of the pod template",
        ),
    ],
)
def test_what_is_missing_is_named_with_the_field_and_what_to_do(said: str, expected: str) -> None:
    assert explained(model(**NAMED), Trouble("FailedMount", said)) == Trouble("FailedMount", expected)


def test_a_claim_is_named_with_the_source() -> None:
    said = Trouble("Unschedulable", '0/1 nodes are available: persistentvolumeclaim "weights" not found. not found')
    words = 'PersistentVolumeClaim "weights" not found in namespace ns; create it, or name another in spec.model.source'
    assert explained(model(model={"source": "pvc://weights/x"}), said) == Trouble("Unschedulable", words)


def test_other_words_are_left_as_they_are() -> None:
    assert explained(model(), Trouble("EngineFailed", "there is no model 'x'")) is None
    assert explained(model(), Trouble("FailedMount", f"{MOUNT}references non-existent secret key: team")) is None
