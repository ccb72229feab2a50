"""Drafts are run as far as they pay."""

from __future__ import annotations

import pytest

from strata.config.engine import MAX_DRAFT
from strata.scheduler.depth import FORGOTTEN_STEPS, DepthController, updated


def told(seconds: dict[int, float]) -> DepthController:
    controller = DepthController()
    for num_tokens, took in seconds.items():
        for _ in range(5):
            controller.record(num_tokens, took)
    return controller


@pytest.mark.parametrize(
    ("seconds", "acceptance", "depth"),
    [
        pytest.param({1: 1.0, 2: 1.0, 4: 1.0, 8: 1.0}, 0.9, MAX_DRAFT, id="tokens that cost nothing"),
        pytest.param({1: 1.0, 2: 2.0, 4: 4.0, 8: 8.0}, 0.9, 0, id="tokens that cost what a step does"),
        pytest.param({1: 1.0, 2: 1.1, 4: 1.3, 8: 4.0}, 0.8, 3, id="few are cheap"),
        pytest.param({1: 1.0, 2: 1.1, 4: 1.3, 8: 4.0}, 0.05, 0, id="cheap, but never right"),
        pytest.param({1: 1.0}, 0.5, MAX_DRAFT, id="what was never tried is"),
        pytest.param({1: 1.0}, 0.01, 0, id="unless it would gain next to nothing"),
        pytest.param({}, 0.5, MAX_DRAFT, id="nothing is known"),
    ],
)
def test_depth_of_one_sequence(seconds: dict[int, float], acceptance: float, depth: int) -> None:
    assert told(seconds).depths({"a": acceptance}, 1, 100).get("a", 0) == depth


def test_the_likelier_drafts_are_run_first() -> None:
    controller = told({2: 1.0, 4: 1.01, 8: 9.0})
    assert controller.depths({"sure": 0.9, "unsure": 0.3}, 2, 100) == {"sure": 2}
    assert controller.depths({"sure": 0.9, "unsure": 0.85}, 2, 100) == {"sure": 1, "unsure": 1}


def test_no_more_than_the_step_has_room_for() -> None:
    assert told({1: 1.0, 8: 1.0}).depths({"a": 0.9}, 1, 3) == {"a": 3}
    assert told({1: 1.0, 8: 1.0}).depths({"a": 0.9}, 1, 0) == {}


def test_what_did_not_pay_long_ago_is_tried_again() -> None:
    controller = told({8: 9.0, 4: 9.0, 2: 9.0, 1: 1.0})
    assert controller.depths({"a": 0.9}, 1, 7) == {}
    for _ in range(FORGOTTEN_STEPS):
        controller.record(1, 1.0)
    assert controller.depths({"a": 0.9}, 1, 7) == {"a": 7}
    controller.record(8, 9.0)
    assert controller.depths({"a": 0.9}, 1, 7) != {"a": 7}


def test_one_slow_step_does_not_end_it() -> None:
    controller = told({1: 1.0, 2: 1.2, 4: 1.2, 8: 1.2})
    controller.record(8, 5.0)
    assert controller.depths({"a": 0.9}, 1, 7) == {"a": 7}


def test_a_step_of_no_time_says_nothing() -> None:
    controller = told({1: 1.0})
    controller.record(1, 0.0)
    assert controller.seconds(1) == 1.0


def test_acceptance_follows_what_was_right() -> None:
    share = 0.5
    for _ in range(30):
        share = updated(share, was_right=True)
    assert share > 0.95
    for _ in range(30):
        share = updated(share, was_right=False)
    assert share < 0.05
