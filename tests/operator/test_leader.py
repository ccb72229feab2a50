from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from strata_operator import leader
from strata_operator.api.errors import UnavailableError
from strata_operator.cluster.client import Client
from strata_operator.leader import DEADLINE_SECONDS, LEASE_SECONDS, Leader
from tests.operator.cluster.fake import FakeClient

KEY = ("Lease", "strata", "operator")


class Candidate:
    """One of several operators, each with a clock of its own; ``away`` shifts it from the others' clocks."""

    def __init__(self, client: FakeClient, name: str, away: float = 0.0) -> None:
        self.lost = 0
        self.now = away
        self.leader = Leader(
            cast("Client", client), "strata", "operator", name, on_lost=self._lose, clock=lambda: self.now
        )

    def _lose(self) -> None:
        self.lost += 1

    @property
    def leads(self) -> bool:
        return self.leader.leading.is_set()

    def turn(self, after: float = 2.0) -> None:
        self.now += after
        self.leader.turn()


def lease(client: FakeClient) -> dict[str, Any]:
    return dict(client.objects[KEY]["spec"])


def test_the_first_one_leads_and_the_second_waits_and_says_for_whom(caplog: pytest.LogCaptureFixture) -> None:
    client = FakeClient()
    first, second = Candidate(client, "a"), Candidate(client, "b", away=1000.0)
    first.turn()
    second.turn()
    second.turn()
    assert [one.message for one in caplog.records] == ["a works: it holds the lease strata/operator; this one waits"]
    assert (first.leads, second.leads) == (True, False)
    assert (lease(client)["holderIdentity"], lease(client)["leaseTransitions"]) == ("a", 0)


def test_a_lease_that_is_renewed_is_never_taken_however_far_the_clocks_are_apart() -> None:
    client = FakeClient()
    first, second = Candidate(client, "a"), Candidate(client, "b", away=-5000.0)
    for _ in range(30):
        first.turn()
        second.turn()
    assert (first.leads, second.leads, first.lost) == (True, False, 0)


def test_a_lease_that_is_not_renewed_is_taken_over_in_less_than_20_seconds() -> None:
    client = FakeClient()
    first, second = Candidate(client, "a"), Candidate(client, "b")
    first.turn()
    second.turn()
    died = second.now
    while not second.leads:
        second.turn()
    assert LEASE_SECONDS < second.now - died < 20
    assert (lease(client)["holderIdentity"], lease(client)["leaseTransitions"]) == ("b", 1)


def test_a_lease_that_is_given_up_is_taken_over_at_once() -> None:
    client = FakeClient()
    first, second = Candidate(client, "a"), Candidate(client, "b")
    first.turn()
    second.turn()
    first.leader.stop()
    second.turn()
    assert second.leads


@pytest.mark.parametrize("error", [UnavailableError("no answer"), ValueError("no JSON")], ids=["outage", "defect"])
def test_a_leader_that_cannot_renew_ends_before_another_takes_over(error: Exception) -> None:
    client = FakeClient()
    first = Candidate(client, "a")
    first.turn()
    client.failing["get Lease"] = error
    cut_off = first.now
    while first.leads:
        first.turn()
    assert DEADLINE_SECONDS < first.now - cut_off < LEASE_SECONDS
    assert first.lost == 1


def test_a_leader_whose_request_hangs_ends_without_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "RENEW_SECONDS", 0.01)
    monkeypatch.setattr(leader, "DEADLINE_SECONDS", 0.5)
    client, hangs, lost, over = FakeClient(), threading.Event(), threading.Event(), threading.Event()

    def hang(*_: Any, **__: Any) -> dict[str, Any]:
        hangs.set()
        over.wait(30)
        raise UnavailableError("no answer")

    client.merge = hang  # type: ignore[method-assign]
    alone = Leader(cast("Client", client), "strata", "operator", "a", on_lost=lost.set)
    alone.start()
    try:
        assert hangs.wait(10)
        assert lost.wait(10)
        assert not alone.leading.is_set()
    finally:
        over.set()
        alone.stop()


def test_words_that_come_back_every_two_seconds_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    client = FakeClient()
    first = Candidate(client, "a")
    client.failing["get Lease"] = UnavailableError("leases is forbidden", status=403)
    for _ in range(1800):  # an hour
        first.turn()
    client.failing.clear()
    first.turn()
    client.failing["merge Lease"] = client.failing["get Lease"] = UnavailableError("leases is forbidden", status=403)
    first.turn()
    first.turn()
    assert [one.message for one in caplog.records if one.levelname == "WARNING"] == [
        "the lease strata/operator: leases is forbidden"
    ] * 2


def test_a_moment_s_silence_is_no_loss() -> None:
    client = FakeClient()
    first = Candidate(client, "a")
    first.turn()
    client.failing["merge Lease"] = UnavailableError("no answer")
    first.turn()
    client.failing.clear()
    first.turn()
    assert (first.leads, first.lost) == (True, 0)


def test_a_leader_whose_lease_somebody_took_ends_at_once() -> None:
    client = FakeClient()
    first = Candidate(client, "a")
    for _ in range(3):
        first.turn()
    there = client.objects[KEY]
    there["spec"] |= {"holderIdentity": "b", "renewTime": "2026-01-01T00:00:00.000000Z"}
    client._written(KEY, there)
    first.turn(0.1)
    assert (first.leads, first.lost) == (False, 1)


def test_a_lease_that_was_deleted_is_made_again() -> None:
    client = FakeClient()
    first = Candidate(client, "a")
    for _ in range(3):
        first.turn()
    del client.objects[KEY]
    first.turn()
    assert (first.leads, lease(client)["holderIdentity"]) == (True, "a")


def test_a_renewal_is_one_request() -> None:
    client = FakeClient()
    first = Candidate(client, "a")
    first.turn()
    first.turn()
    client.calls.clear()
    for _ in range(1800):  # an hour
        first.turn()
    assert client.calls == ["merge Lease"] * 1800


def test_of_two_that_take_over_at_the_same_moment_one_leads() -> None:
    client = FakeClient()
    first, second = Candidate(client, "a"), Candidate(client, "b")
    get = client.get

    def both_have_read(kind: str, namespace: str | None, name: str) -> dict[str, Any]:
        found = get(kind, namespace, name)
        client.get = get  # type: ignore[method-assign]
        first.turn()  # writes between the other's reading and writing
        return found

    third = Candidate(client, "c")
    third.turn()
    third.leader.stop()
    client.get = both_have_read  # type: ignore[method-assign]
    second.turn()
    assert [one.leads for one in (first, second)] == [True, False]
    assert lease(client)["holderIdentity"] == "a"
