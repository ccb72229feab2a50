"""The tuner against machines that are simulated: what a step takes with how many threads, and when."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from strata.runner.threads import LAST_INTERVAL, SPIN_TURNS, ThreadTuner, ThreadTuners, choices, spin_briefly


def simulate(tuner: ThreadTuner, steps: int, seconds: Callable[[int, int], float]) -> list[int]:
    """Run steps that take ``seconds(step, threads)``; the threads of each."""
    used = []
    for step in range(steps):
        threads = tuner.threads
        used.append(threads)
        tuner.record(seconds(step, threads))
    return used


@pytest.mark.parametrize(
    ("allowed", "expected"), [(1, (1,)), (2, (2, 1)), (3, (3, 1)), (4, (4, 2, 1)), (16, (16, 8, 1))]
)
def test_choices(allowed: int, expected: tuple[int, ...]) -> None:
    assert choices(allowed) == expected


@pytest.mark.parametrize(
    ("times", "best"),
    [
        pytest.param({2: 10.0, 1: 15.0}, 2, id="a quiet machine"),
        pytest.param({2: 100.0, 1: 15.0}, 1, id="a busy machine"),
        pytest.param({16: 5.0, 8: 4.0, 1: 20.0}, 8, id="memory that half of the threads fill"),
        pytest.param({16: 60.0, 8: 50.0, 1: 20.0}, 1, id="all of many CPUs busy"),
    ],
)
def test_it_settles_on_the_fastest(times: dict[int, float], best: int) -> None:
    used = simulate(ThreadTuner(tuple(times)), 3000, lambda _, threads: times[threads])
    assert used[0] == max(times)
    assert sum(threads == best for threads in used[200:]) > 0.97 * len(used[200:])


def test_noise_changes_nothing() -> None:
    used = simulate(ThreadTuner((2, 1)), 3000, lambda step, _: 10 + 0.3 * ((7 * step) % 5))
    assert sum(threads == 1 for threads in used) < 0.02 * len(used)


def test_it_follows_the_machine() -> None:
    """Quiet, then busy, then quiet again; within two trials' distance of each change it has followed."""
    phase = 2 * LAST_INTERVAL

    def seconds(step: int, threads: int) -> float:
        busy = phase <= step < 3 * phase
        return 15 if threads == 1 else 100 if busy else 10

    used = simulate(ThreadTuner((2, 1)), 6 * phase, seconds)
    assert set(used[phase - 100 : phase]) == {2}
    assert set(used[3 * phase - 100 : 3 * phase]) == {1}
    assert used[-100:].count(2) >= 99


def test_a_trial_that_is_clearly_lost_costs_one_step() -> None:
    used = simulate(ThreadTuner((1, 2)), LAST_INTERVAL, lambda _, threads: 15 if threads == 1 else 100)
    assert used.count(2) == 6  # trials after 16, 32, 64, 128, 256 and 512 steps


def test_each_size_of_step_has_its_own() -> None:
    tuners = ThreadTuners((2, 1))
    for _ in range(500):
        for num_tokens, times in ((1, {1: 10, 2: 20}), (300, {1: 3, 2: 2})):
            tuner = tuners.of(num_tokens)
            tuner.record(times[tuner.threads])
    assert tuners.of(1).threads == 1
    assert tuners.of(257).threads == 2
    assert tuners.of(300) is tuners.of(511)
    assert tuners.of(300) is not tuners.of(512)


def test_one_thread_has_no_rival() -> None:
    assert set(simulate(ThreadTuner((1,)), 100, lambda *_: 1.0)) == {1}


@pytest.mark.parametrize(
    ("given", "spin"),
    [
        pytest.param({}, str(SPIN_TURNS), id="nothing set"),
        pytest.param({"GOMP_SPINCOUNT": "5"}, "5", id="turns set by the user"),
        pytest.param({"OMP_WAIT_POLICY": "ACTIVE"}, None, id="policy set by the user"),
    ],
)
def test_what_the_user_set_stays(monkeypatch: pytest.MonkeyPatch, given: dict[str, str], spin: str | None) -> None:
    monkeypatch.setattr(os, "environ", dict(given))
    spin_briefly()
    assert os.environ.get("GOMP_SPINCOUNT") == spin


def test_it_comes_before_torch() -> None:
    code = "import strata.runner.threads, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
