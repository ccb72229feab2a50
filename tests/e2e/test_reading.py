"""What the demo reads from models and metrics; no cluster needed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.e2e import chat, demo
from tests.e2e.manifest import model
from tests.e2e.models import conditions, is_true
from tests.e2e.target import JourneyError, Target


def test_a_condition_of_an_older_generation_says_nothing() -> None:
    ready = {"type": "Ready", "status": "True", "observedGeneration": 1}
    assert is_true({"metadata": {"generation": 1}, "status": {"conditions": [ready]}}, "Ready")
    assert not is_true({"metadata": {"generation": 2}, "status": {"conditions": [ready]}}, "Ready")
    assert conditions({"metadata": {"generation": 1}}) == {}


def test_speed_is_that_of_the_requests_between_two_looks() -> None:
    before = {f"{chat.TTFT}_count": 4, f"{chat.TTFT}_sum": 80, f"{chat.ITL}_count": 100, f"{chat.ITL}_sum": 900}
    after = {f"{chat.TTFT}_count": 6, f"{chat.TTFT}_sum": 81, f"{chat.ITL}_count": 150, f"{chat.ITL}_sum": 902}
    tokens = "strata_generation_tokens_total"
    speed = chat.speed({**before, tokens: 110}, {**after, tokens: 162})
    assert (speed.time_to_first_token, speed.tokens_per_second, speed.tokens) == (0.5, 25, 52)


def test_the_example_is_changed_by_path() -> None:
    made = json.loads(
        model("other", {"hardware.cpu": 2, "engine.maxNumSeqs": None, "scheduling.priorityClassName": "p"})
    )
    assert made["metadata"]["name"] == "other"
    assert made["spec"]["hardware"]["cpu"] == 2
    assert "maxNumSeqs" not in made["spec"]["engine"]
    assert made["spec"]["scheduling"] == {"priorityClassName": "p"}


def test_when_one_of_two_commands_fails_the_other_is_stopped() -> None:
    endless = [sys.executable, "-c", "import signal; signal.pause()"]
    with pytest.raises(JourneyError, match="exit 3"):
        demo.run_side_by_side(endless, [sys.executable, "-c", "import sys; sys.exit(3)  # exit 3"])


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        pytest.param({"STRATA_REGISTRY": ""}, "set STRATA_REGISTRY", id="no registry"),
        pytest.param({"STRATA_REGISTRY": "host:5000", "PATH": "/nonexistent"}, "kubectl, helm", id="no tools"),
    ],
)
def test_a_cluster_of_the_users_own_needs_a_registry_and_tools(
    variables: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kubeconfig = tmp_path / "config"
    kubeconfig.touch()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(JourneyError, match=f"(?i){words}"):
        Target.foreign(str(kubeconfig))
    with pytest.raises(JourneyError, match="is not a file"):
        Target.foreign(str(tmp_path / "absent"))
