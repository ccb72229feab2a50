"""States of linear attention that are kept for requests that begin alike: ids only."""

from __future__ import annotations

from collections import OrderedDict


class Snapshots:
    """Slots ``first`` .. ``first + num_slots - 1`` by the key of the block behind which each state is.

    A step that ends there fills one: it is reserved for the request when the step is planned, and kept when the step is
    taken in. The one used longest ago makes room. It may be copied from before the step at whose end it is written
    over.
    """

    def __init__(self, first: int, num_slots: int) -> None:
        self.num_slots = num_slots
        self._first = first
        self._free = list(range(first + num_slots - 1, first - 1, -1))
        self._kept: OrderedDict[bytes, int] = OrderedDict()  # the one used longest ago first
        self._coming: dict[str, tuple[bytes, int]] = {}  # of a request, whose step is not taken in yet

    @property
    def num_kept(self) -> int:
        return len(self._kept)

    @property
    def keys(self) -> frozenset[bytes]:
        """Of those that are kept."""
        return frozenset(self._kept)

    def has(self, key: bytes) -> bool:
        return key in self._kept

    def use(self, key: bytes) -> int:
        """The slot of a state that is kept, and is the last one to make room from now on."""
        self._kept.move_to_end(key)
        return self._kept[key]

    def reserve(self, request_id: str, key: bytes) -> int | None:
        """A slot for the state that the request's step ends with; None where others' steps are to fill all."""
        if not self._free and not self._kept:
            return None
        slot = self._free.pop() if self._free else self._kept.popitem(last=False)[1]
        self._coming[request_id] = key, slot
        return slot

    def keep(self, request_id: str) -> None:
        """The request's step has filled what was reserved for it, if anything was."""
        coming = self._coming.pop(request_id, None)
        if coming is None:
            return
        key, slot = coming
        if key in self._kept:  # another request's step ended with the same
            self._free.append(slot)
        else:
            self._kept[key] = slot

    def cancel(self, request_id: str) -> None:
        """Nobody waits for what was reserved any more, if anything was."""
        coming = self._coming.pop(request_id, None)
        if coming is not None:
            self._free.append(coming[1])

    def drop(self, key: bytes) -> None:
        """The block has gone, and with it all use of the state behind it, if one is kept."""
        slot = self._kept.pop(key, None)
        if slot is not None:
            self._free.append(slot)

    def check_integrity(self) -> None:
        """Raise AssertionError unless every slot is free, kept or reserved."""
        coming = [slot for _, slot in self._coming.values()]
        seen = sorted([*self._free, *self._kept.values(), *coming])
        if seen != list(range(self._first, self._first + self.num_slots)):
            raise AssertionError(f"{self.num_slots} slots for snapshots exist; free, kept and reserved ones are {seen}")
