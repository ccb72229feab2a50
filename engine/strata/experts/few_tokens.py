"""Steps of few tokens, whose missing experts are dealt with one by one: fetched into slots, or left to the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from strata.experts.cpu import CpuExperts
from strata.experts.part import Part
from strata.experts.prefetch import Prefetch
from strata.experts.slots import Slots
from strata.experts.tier import TierStep
from strata.experts.ways import Way
from strata.kernels.layer import ExpertsFn, Routed, Router
from strata.kernels.misses.table import MissSteps


class FewTokens:
    """``way``: that steps go now."""

    def __init__(
        self,
        slots: Slots,
        cpu: CpuExperts,
        misses: MissSteps,
        part: Part,
        top_k: int,
        way: Way,
        prefetch_probability: float,
    ) -> None:
        """``prefetch_probability``: see ``Prefetch``."""
        self.slots, self.cpu, self.misses, self.part, self.top_k = slots, cpu, misses, part, top_k
        self.layout = part.blobs
        self._prefetch = Prefetch(misses, self.layout, slots.spare, prefetch_probability, slots.device)
        self._in_slots: list[ExpertsFn] = []
        self.begin(way)

    def begin(self, way: Way) -> None:
        """As ``Tier.begin``."""
        self.way = way
        self._prefetch.predictor = way.predictor
        self.slots.begin(way.split)

    def layer(self, router: Router, in_slots: ExpertsFn) -> TierStep:
        """The step of the next layer. ``in_slots``: adds up those of its experts that VRAM has."""
        row = len(self._in_slots)
        self._in_slots.append(in_slots)
        self._prefetch.add(self.slots.tables[row], router)

        def step(x: Tensor, onto: Tensor) -> Tensor:
            if self.way.routed_on == "cpu":
                return self._run_routed_there(row, router, x, onto)
            return self.run(row, router(x), x, onto, closes=self._is_last(row))

        return step

    def announce_replay(self) -> None:
        """As ``Tier.announce_replay``."""
        asks_twice = self.way.routed_on == "cpu" and not self._leaves_all
        self.cpu.expect(len(self.slots.tables) * (2 if asks_twice else 1))

    def run(self, row: int, routed: Routed, x: Tensor, onto: Tensor, *, closes: bool) -> Tensor:
        """onto + the experts ``routed``, chosen for x, of layer number ``row`` of those that have any. ``closes``: no
        layer of the step comes after it."""
        table, mailbox = self.slots.tables[row], self.cpu.mailbox
        with self._prefetch.around(row, routed.ids, x):
            self.misses.share_out(routed.ids, routed.shares, routed.inner, table, mailbox, row, closes)
            self._expect_request()  # only now: the kernel may be built first, for longer than the pool waits
            self.misses.untile(table.copy_sources, table.copy_targets, table.count, self.layout)
        return self.misses.add_answer(self._in_slots[row](routed, onto), mailbox, table.counters)

    # --- inside

    @property
    def _leaves_all(self) -> bool:
        """Whether the CPU, where it chooses, knows by itself what to compute: no expert is another rank's, and what
        VRAM has never changes, and is the first experts alone."""
        is_fixed = self.way.leaves_all and self.way.predictor == "off" and not self.cpu.num_fixed
        return is_fixed and self.part.rank.is_alone

    def _is_last(self, row: int) -> bool:
        return row + 1 == len(self.slots.tables)

    def _run_routed_there(self, row: int, router: Router, x: Tensor, onto: Tensor) -> Tensor:
        """The CPU chooses. Where it computes all that is missing it does so at once, and the card finds out beside it
        which experts it has; else the card waits for the choice and goes on as ever."""
        table, mailbox, leaves_all = self.slots.tables[row], self.cpu.mailbox, self._leaves_all
        scored = router.score(x)
        self.misses.ask_route(scored.scores, scored.inner if leaves_all else None, mailbox, row)
        self._expect_request()
        if not leaves_all:
            ids, shares = self.misses.take_choice(mailbox, len(x), self.top_k, table.counters)
            return self.run(row, Routed(self.part.own(ids), shares, scored.inner), x, onto, closes=self._is_last(row))
        routed = router.routed(scored)
        self.misses.share_out(routed.ids, routed.shares, routed.inner, table, None, row, False)  # for what it counts
        return self.misses.add_answer(self._in_slots[row](routed, onto), mailbox, table.counters)

    def _expect_request(self) -> None:
        """Of a captured step ``announce_replay`` tells."""
        if not (self.slots.device.type == "cuda" and torch.cuda.is_current_stream_capturing()):
            self.cpu.expect(1)
