"""The fake of ``strata-agent --fake FILE``: cards and host as a YAML file says, and as it says later.

.. code:: yaml

    cards:
    - {kind: rtx3090, power_limit: 300000, load: 0.5}   # any field of fake.SimulatedCard
    - {kind: rtx4090-48g, number: 2, lost: true}
    xids: [{card: 0, code: 79}]                         # each is sent once, when the list has grown
    numa_nodes: 2
    boot_id: 11111111-2222-3333-4444-555555555555

The file is looked at whenever the driver is asked; what it then says of a card that is there already is done to it.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import yaml

from strata_operator.agent.fake import CARDS, FakeDriver, SimulatedCard
from strata_operator.agent.fake_host import FakeSysfs
from strata_operator.api.errors import InvalidSpecError

_KEYS = {"cards", "xids", "numa_nodes", "boot_id"}


class FakeFile:
    """``driver`` and ``host`` follow the file. Raises InvalidSpecError where it cannot be read."""

    def __init__(self, path: Path, root: Path) -> None:
        self._path = path
        self._seen = 0
        self._sent = 0
        said = self._read()
        self.driver = FakeDriver([_card(number, one) for number, one in enumerate(said["cards"])], clock=self._clock)
        options = {"boot_id": said["boot_id"]} if "boot_id" in said else {}
        self.host = FakeSysfs(root, nodes=said.get("numa_nodes", 2), **options)
        for card in self.driver.cards:
            # By the class, for a card that is lost answers nothing.
            self.host.put_card(FakeDriver.nvmlDeviceGetPciInfo(self.driver, card).busId, 0)

    def _clock(self) -> float:
        if hasattr(self, "driver"):
            self._follow()
        return time.monotonic()

    def _follow(self) -> None:
        try:
            changed = self._path.stat().st_mtime_ns
            if changed == self._seen:
                return
            said = self._read()
        except (OSError, InvalidSpecError):  # it is being written
            return
        for number, one in enumerate(said["cards"]):
            if number < len(self.driver.cards):
                card = self.driver.cards[number]
                for name, value in _changes(one).items():
                    if name not in ("power_limit", "persistence"):  # those are for the start; now the agent has them
                        setattr(card, name, value)
            else:
                self.driver.cards.append(_card(number, one))
        for xid in said.get("xids", [])[self._sent :]:
            self.driver.send_xid(self.driver.cards[xid["card"]], xid["code"])
            self._sent += 1
        self._seen = changed

    def _read(self) -> dict[str, Any]:
        try:
            said = yaml.safe_load(self._path.read_text())
        except (OSError, yaml.YAMLError) as error:
            raise InvalidSpecError(f"--fake {self._path}: {error}") from error
        if not isinstance(said, dict) or not isinstance(said.get("cards"), list) or set(said) - _KEYS:
            raise InvalidSpecError(f"--fake {self._path}: a table with cards is needed; known are {sorted(_KEYS)}")
        return said


def _card(number: int, said: dict[str, Any]) -> SimulatedCard:
    kind = said.get("kind")
    if kind not in CARDS:
        raise InvalidSpecError(f"--fake: card {number} is of kind {kind!r}; known are {', '.join(CARDS)}")
    return CARDS[kind](said.get("number", number + 1), **_changes(said))


def _changes(said: dict[str, Any]) -> dict[str, Any]:
    changes = {name: value for name, value in said.items() if name not in ("kind", "number")}
    known = {field.name for field in dataclasses.fields(SimulatedCard)}
    if unknown := sorted(set(changes) - known):
        raise InvalidSpecError(f"--fake: a card has no {unknown[0]!r}; known are {', '.join(sorted(known))}")
    return changes
