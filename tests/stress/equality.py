"""What a model answers, and how far another answer is from it.

Greedy tokens come from the engine's own loop, as a server has them; logits from decode steps through a text that is
given, so that one token that differs does not hide what follows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from strata.bench.loaded import together
from strata.config import EngineConfig
from strata.engine.loop import EngineLoop
from strata.request import GenerationRequest, SamplingParams
from strata.runner.runner import Runner
from strata.scheduler.batch import Batch, ScheduledSequence
from strata.store.reader import Store

GIVEN = 24  # tokens of a text that are its prompt; what follows is decoded


@dataclass(frozen=True, slots=True)
class Task:
    """prompts: each is continued by ``tokens`` greedy ones. text: of which each sequence of a batch has another part,
    decoded for ``steps``."""

    prompts: Sequence[Sequence[int]]
    tokens: int
    text: Sequence[int]
    steps: int

    @property
    def max_model_len(self) -> int:
        """That it takes."""
        return max(max(map(len, self.prompts)) + self.tokens, GIVEN + self.steps) + 1


@dataclass(frozen=True, slots=True)
class Answer:
    """tokens: of each prompt. logits: float32 [steps + 1, batch, vocab], on the CPU."""

    tokens: list[list[int]]
    logits: Tensor


def answer(store: Store, runner: Runner, config: EngineConfig, task: Task, batch_size: int) -> Answer:
    """Of ``batch_size`` sequences at a time."""
    loop = EngineLoop(store, runner, config)
    tokens: list[list[int]] = [[] for _ in task.prompts]
    sampling = SamplingParams(max_tokens=task.tokens, temperature=0.0, ignore_eos=True)
    for begin in range(0, len(task.prompts), batch_size):
        for number, prompt in list(enumerate(task.prompts))[begin : begin + batch_size]:
            loop.add(GenerationRequest(str(number), tuple(prompt), sampling))
        while loop.has_work:
            for output in loop.step().outputs:
                tokens[int(output.request_id)] += output.token_ids
    loop.check_integrity()
    return Answer(tokens, _forced(runner, task, batch_size))


def _forced(runner: Runner, task: Task, batch_size: int) -> Tensor:
    length = GIVEN + task.steps
    stride = (len(task.text) - length) // batch_size
    assert stride > 0, f"a text of {len(task.text)} tokens is too short for {batch_size} parts of {length}"
    parts = [task.text[i * stride :][:length] for i in range(batch_size)]
    found = []
    for start, end in ((0, GIVEN), *((i, i + 1) for i in range(GIVEN, length))):
        step = together(runner, [part[start:end] for part in parts], start, length)
        found.append(runner.run(step).logits.float().cpu().clone())
    runner.check()
    return torch.stack(found)


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token of a prompt's continuation that is another one. behind: by how much its logit is smaller than the
    expected token's, as the model with which all is compared has them; margin: between that model's two likeliest."""

    prompt: int
    position: int
    expected: int
    found: int
    behind: float
    margin: float

    def __str__(self) -> str:
        return (
            f"prompt {self.prompt}, token {self.position}: {self.found} for {self.expected}, "
            f"{self.behind:.3f} behind, margin {self.margin:.3f}"
        )


@dataclass(frozen=True, slots=True)
class Compared:
    """same: share of the tokens that come before the first other one of their prompt. whole: prompts that are continued
    alike, of ``prompts``. error: of all logits, relative; worst: of one token's. spread: the standard deviation of a
    token's logits."""

    same: float
    whole: int
    prompts: int
    error: float
    worst: float
    spread: float
    differences: tuple[Difference, ...]

    @property
    def farthest(self) -> Difference | None:
        """What is hardest to explain by rounding."""
        return max(self.differences, key=lambda difference: difference.behind, default=None)

    @property
    def behind(self) -> float:
        """Of ``farthest``; 0 where all tokens are the same."""
        return 0.0 if self.farthest is None else self.farthest.behind

    def problems(self, error_bound: float, behind_bound: float) -> list[str]:
        """Why these are not the same model's answers. ``behind_bound``: of ``Difference.behind``."""
        found = []
        if not self.error <= error_bound:  # NaN is no small number
            found.append(f"relative error {self.error:.4f} is above {error_bound:g}")
        far = self.farthest
        if far is not None and not self.behind <= behind_bound:
            found.append(f"{far}; allowed are {behind_bound:.3f}")
        return found


def compare(found: Answer, expected: Answer, task: Task, resident: Runner) -> Compared:
    """``resident``: of the expected answer."""
    differences = []
    same = 0
    for number, (mine, theirs) in enumerate(zip(found.tokens, expected.tokens, strict=True)):
        assert len(mine) == len(theirs) == task.tokens, "greedy requests have as many tokens as they ask for"
        at = next((i for i, pair in enumerate(zip(mine, theirs, strict=True)) if pair[0] != pair[1]), len(theirs))
        same += at
        if at < len(theirs):
            behind, margin = _distances(resident, [*task.prompts[number], *theirs[:at]], theirs[at], mine[at])
            differences.append(Difference(number, at, theirs[at], mine[at], behind, margin))
    error, worst, spread = _errors(found.logits, expected.logits)
    num_tokens = sum(map(len, expected.tokens))
    whole = len(expected.tokens) - len(differences)
    return Compared(same / num_tokens, whole, len(expected.tokens), error, worst, spread, tuple(differences))


def _distances(runner: Runner, token_ids: list[int], expected: int, found: int) -> tuple[float, float]:
    blocks = tuple(range(-(-len(token_ids) // runner.block_size)))
    step = Batch((ScheduledSequence("a", tuple(token_ids), 0, blocks, samples=True),))
    logits = runner.run(step).logits[0].float()
    first, second = logits.topk(2).values.tolist()
    return float(logits[expected] - logits[found]), first - second


def _errors(found: Tensor, expected: Tensor) -> tuple[float, float, float]:
    """About each token's mean: what all logits have in common changes no probability."""
    mine, theirs = found - found.mean(-1, keepdim=True), expected - expected.mean(-1, keepdim=True)
    error, size = (mine - theirs).norm(dim=-1), theirs.norm(dim=-1)
    spread = float(size.square().mean().sqrt()) / expected.shape[-1] ** 0.5
    return float(error.norm() / size.norm()), float((error / size).max()), spread
