"""Prompts of a given number of tokens, each another one: a prefix cache must not help."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

Count = Callable[[str], Awaitable[int]]

_ROUNDS = 8  # corrections of a prompt whose pieces together are not what they are alone
_SAMPLE = 48  # words whose cost is asked for
_PROBES = (16, 80)  # words, to learn what one costs where nobody counts
_FILL = ("!", "?", ";", ":")  # for a rest that is less than a word

# Frequent English words: one token each for most tokenizers, with the space before them.
_TEXT = """
time year people way day man thing woman life child world school state family student group country problem hand
part place case week company system program question work government number night point home water room mother area
money story fact month lot right study book eye job word business issue side kind head house service friend father
power hour game line end member law car city community name president team minute idea body information back parent
face others level office door health person art war history party result change morning reason research girl guy
moment air teacher force education good new first last long great little own other old big high different small
large next early young important few public bad same able
"""
_WORDS = _TEXT.split()


@dataclass(frozen=True, slots=True)
class Prompt:
    """``num_tokens`` as counted by the server, or as approximated; ``num_pieces``: words, and marks to fill up."""

    text: str
    num_tokens: int
    num_pieces: int


class PromptMaker:
    """``count``: asks the server how many tokens a text has; None approximates by words."""

    def __init__(self, count: Count | None, rng: random.Random) -> None:
        self.is_exact = count is not None
        self._count = count
        self._rng = rng
        self._words: dict[str, int] = {}  # pieces of text with their tokens
        self._fill: dict[str, int] = {}
        self._overhead = 0.0  # tokens that the server adds to every prompt: a chat template, a first token
        self._tokens_per_word = 1.0

    async def probes(self) -> list[Prompt]:
        """Prompts to send first; what the server reports for them goes to ``learn``."""
        if self.is_exact:
            return [await self.make(_PROBES[0])]
        return [self._approximate(words, words) for words in _PROBES]

    def learn(self, probes: Sequence[Prompt], reported: Sequence[int]) -> None:
        """How many prompt tokens the server counted for each probe: what comes next is right by that. Not all of them
        are told: nothing is learnt."""
        if len(reported) < len(probes):
            return
        first = probes[0]
        if self.is_exact:
            self._overhead = max(0, reported[0] - first.num_tokens)
            return
        more = probes[-1].num_pieces - first.num_pieces
        self._tokens_per_word = max(0.1, (reported[-1] - reported[0]) / more)
        self._overhead = max(0.0, reported[0] - self._tokens_per_word * first.num_pieces)

    async def make(self, num_tokens: int) -> Prompt:
        """A prompt that the server will count as ``num_tokens``, or near to it."""
        wanted = max(1, round(num_tokens - self._overhead))
        if self._count is None:
            return self._approximate(max(1, round(wanted / self._tokens_per_word)), num_tokens)
        # Of its own: prompts are made at the same time, and a seed must give the same ones again.
        rng = random.Random(self._rng.random())
        if not self._words:
            await self._measure(self._count)
        pieces = self._pieces(wanted, rng)
        counted = await self._count("".join(pieces))
        for _ in range(_ROUNDS):
            if counted == wanted:
                break
            left = wanted - counted
            while left < 0 and len(pieces) > 1:
                left += self._cost(pieces.pop())
            pieces += self._pieces(left, rng)
            counted = await self._count("".join(pieces))
        return Prompt("".join(pieces), counted, len(pieces))

    def _approximate(self, num_words: int, num_tokens: int) -> Prompt:
        return Prompt(" ".join(self._rng.choices(_WORDS, k=num_words)), num_tokens, num_words)

    async def _measure(self, count: Count) -> None:
        base = self._rng.choice(_WORDS)
        alone = await count(base)
        for word in self._rng.sample(_WORDS, _SAMPLE):
            self._words[f" {word}"] = max(1, await count(f"{base} {word}") - alone)
        for mark in _FILL:
            self._fill[mark] = max(1, await count(f"{base}{mark}") - alone)

    def _pieces(self, num_tokens: int, rng: random.Random) -> list[str]:
        """Pieces of text that take ``num_tokens`` together, as far as they can."""
        pieces: list[str] = []
        while num_tokens > 0:
            fitting = [word for word, cost in self._words.items() if cost <= num_tokens]
            fitting = fitting or [mark for mark, cost in self._fill.items() if cost <= num_tokens]
            if not fitting:
                break
            pieces.append(rng.choice(fitting))
            num_tokens -= self._cost(pieces[-1])
        return pieces

    def _cost(self, piece: str) -> int:
        return self._words.get(piece) or self._fill[piece]
