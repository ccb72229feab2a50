from __future__ import annotations

from ipaddress import IPv4Network
from itertools import combinations

import pytest

from tests.cluster.errors import ClusterError
from tests.cluster.instance import Instance, Network, candidates


def slots(*routes: str) -> list[int]:
    return [network.slot for network in candidates(IPv4Network(route) for route in routes)]


@pytest.mark.parametrize("slot", [0, 31])
def test_a_networks_ranges_lie_in_its_block_and_apart(slot: int) -> None:
    network = Network(slot)
    ranges = [network.services, network.pods, network.pretend_pods, network.link]
    assert all(inner.subnet_of(network.block) for inner in ranges)
    assert not any(one.overlaps(other) for one, other in combinations(ranges, 2))
    assert {network.host, network.node} == set(network.link.hosts())


def test_no_two_slots_share_an_address() -> None:
    blocks = [Network(slot).block for slot in Network.SLOTS]
    assert not any(one.overlaps(other) for one, other in combinations(blocks, 2))


def test_a_machine_without_such_routes_offers_every_slot_in_order() -> None:
    assert slots("192.168.1.0/24", "0.0.0.0/0") == list(Network.SLOTS)


@pytest.mark.parametrize("route", ["10.96.0.0/16", "10.96.255.0/30", "10.96.1.2/32"], ids=["whole", "link", "host"])
def test_a_block_that_holds_a_route_is_not_offered(route: str) -> None:
    assert slots(route) == list(Network.SLOTS)[1:]


def test_blocks_inside_a_wider_route_come_last() -> None:
    assert slots("10.96.0.0/12") == [*range(16, 32), *range(16)]


def test_a_wider_route_over_all_leaves_the_blocks_usable() -> None:
    assert slots("10.0.0.0/8") == list(Network.SLOTS)


@pytest.mark.parametrize("name", ["", "Strata", "a b", "../x", "-a", "a-", "9lives", "a" * 31])
def test_a_name_that_could_not_name_nodes_and_folders_is_refused(name: str) -> None:
    with pytest.raises(ClusterError, match="cannot name a cluster"):
        Instance.named(name)


def test_the_same_name_in_two_homes_is_two_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/home/one")
    one = Instance.named("demo")
    monkeypatch.setenv("XDG_STATE_HOME", "/home/two")
    two = Instance.named("demo")
    assert one.state != two.state
    assert one.cgroup != two.cgroup
