"""Which lengths the requests have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from strata.errors import OptionError

if TYPE_CHECKING:
    import random


@dataclass(frozen=True, slots=True)
class Shape:
    """One kind of request; ``weight`` is its part of the mix, relative to the others'."""

    weight: float
    prompt_tokens: int
    output_tokens: int


# The published load: short questions, ordinary ones, long ones, from so many streams at once.
PUBLISHED = (Shape(30, 80, 200), Shape(50, 200, 600), Shape(20, 800, 1200))
PUBLISHED_STREAMS = (8, 16, 32, 64)


def parse_mix(text: str) -> tuple[Shape, ...]:
    """ "30:80:200,50:200:600" is weight:prompt:output of each shape. Raises OptionError saying how it is written."""
    shapes = []
    for part in text.split(","):
        try:
            weight, prompt, output = part.split(":")
            shape = Shape(float(weight), int(prompt), int(output))
        except ValueError:
            shape = Shape(0, 0, 0)
        if not 0 < shape.weight < float("inf") or min(shape.prompt_tokens, shape.output_tokens) < 1:
            raise OptionError(
                f"mix {text!r}: {part!r} is not weight:prompt:output, three numbers above 0 as in "
                f"{format_mix(PUBLISHED)}"
            )
        shapes.append(shape)
    return tuple(shapes)


def format_mix(mix: tuple[Shape, ...]) -> str:
    """The inverse of ``parse_mix``."""
    return ",".join(f"{shape.weight:g}:{shape.prompt_tokens}:{shape.output_tokens}" for shape in mix)


def draw(mix: tuple[Shape, ...], count: int, rng: random.Random) -> list[Shape]:
    """``count`` shapes in random order, each as often as its weight says (largest remainders), so that every level of a
    sweep gets the same work."""
    total = sum(shape.weight for shape in mix)
    exact = [count * shape.weight / total for shape in mix]
    counts = [int(number) for number in exact]
    by_remainder = sorted(range(len(mix)), key=lambda index: counts[index] - exact[index])
    for index in by_remainder[: count - sum(counts)]:
        counts[index] += 1
    drawn = [shape for shape, number in zip(mix, counts, strict=True) for _ in range(number)]
    rng.shuffle(drawn)
    return drawn
