"""Which slot of the states of linear attention belongs to which request: ids only."""

from __future__ import annotations


class StateSlots:
    """Hands out slots 0 .. num_slots - 1, one to each request that runs.

    A slot is given anew whatever lies in it: a request that begins at position 0 finds zeros. So a step that still runs
    for one that has ended may write to it: it ends before any step of the next owner begins.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._free = list(range(num_slots - 1, -1, -1))
        self._owned: dict[str, int] = {}

    @property
    def num_used(self) -> int:
        return len(self._owned)

    def owned_by(self, request_id: str) -> int | None:
        """The request's slot; None for one that has none."""
        return self._owned.get(request_id)

    def take(self, request_id: str) -> None:
        """Give the request a slot; one must be free."""
        assert request_id not in self._owned, f"request {request_id} has a slot already"
        assert self._free, "more requests run than there are slots for states"
        self._owned[request_id] = self._free.pop()

    def free(self, request_id: str) -> None:
        """Take back the slot of the request, which may own none."""
        slot = self._owned.pop(request_id, None)
        if slot is not None:
            self._free.append(slot)

    def check_integrity(self) -> None:
        """Raise AssertionError unless every slot is free or has one owner."""
        seen = sorted([*self._free, *self._owned.values()])
        if seen != list(range(self.num_slots)):
            raise AssertionError(f"{self.num_slots} slots for states exist; free and used ones together are {seen}")
