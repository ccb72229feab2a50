"""The ring of requests: whatever is under way at once and whoever goes on without an answer, none gets another's."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from strata.errors import EngineError
from strata.kernels.router.reference import route
from strata.native import library
from strata.native.layout import TileLayout
from strata.native.library import VARIANTS, variants
from strata.native.mailbox import COMPUTE, DONE, KIND, LAYER, REQUEST, ROUTE, SKIPPED, TOKENS, MailboxLayout
from strata.native.pool import ExpertPool, PoolOptions, Routing
from tests.native.experts import Expert, aligned, expected

HIDDEN, NUM_EXPERTS, TOP_K, MAX_TOKENS = 32, 6, 2, 9
LAYOUT = TileLayout("int4", HIDDEN, 32)


class Layers:
    """Two layers of experts."""

    def __init__(self) -> None:
        self.experts = [
            {i: Expert.random(LAYOUT, seed=10 * layer + i) for i in range(NUM_EXPERTS)} for layer in range(2)
        ]
        self.blobs = [[expert.tiles() for expert in layer.values()] for layer in self.experts]
        self.table = torch.tensor([[blob.data_ptr() for blob in layer] for layer in self.blobs])

    def give(self, pool: ExpertPool) -> None:
        pool.set_table(self.table.data_ptr(), 2, NUM_EXPERTS, self)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request was, and the answer that it must get."""

    number: int
    kind: int
    tokens: int
    ids: Tensor
    shares: Tensor
    y: Tensor


class Sender:
    """The GPU's side of a ring."""

    def __init__(self, pool: ExpertPool, depth: int = 1, experts: int = NUM_EXPERTS, *, first: int = 1,
                 routing: Routing | None = None, max_tokens: int = MAX_TOKENS, top_k: int = TOP_K) -> None:  # fmt: skip
        self.pool, self.routing = pool, routing or Routing(normalize=True)
        self.layout = MailboxLayout(max_tokens, top_k, pool.layout.hidden, "float32", experts, depth)
        self.ring = aligned(self.layout.num_bytes)
        self.number = first - 1
        self.skipped = 0  # before the next request
        pool.attach(self.ring.data_ptr(), self.layout, self, self.routing, first)

    def word(self, number: int, offset: int) -> ctypes.c_uint32:
        at = self.ring.data_ptr() + number % self.layout.depth * self.layout.stride
        return ctypes.c_uint32.from_address(at + offset)

    def array(self, number: int, offset: int, rows: int, cols: int, dtype: torch.dtype = torch.float32) -> Tensor:
        at = number % self.layout.depth * self.layout.stride + offset
        return self.ring[at : at + rows * cols * 4].view(dtype).view(rows, cols)

    def answered(self, number: int) -> bool:
        return self.word(number, DONE).value == number

    def post(self, kind: int, layer: int, x: Tensor, scores: Tensor, ids: Tensor, shares: Tensor) -> int:
        number = self.number = (self.number + 1) % (1 << 32)
        tokens = len(x)
        for offset, values, dtype in (
            (self.layout.x_offset, x, torch.float32),
            (self.layout.scores_offset, scores, torch.float32),
            (self.layout.ids_offset, ids, torch.int32),
            (self.layout.weights_offset, shares, torch.float32),
        ):
            self.array(number, offset, tokens, values.shape[1], dtype).copy_(values)
        self.array(number, self.layout.y_offset, tokens, x.shape[1]).fill_(torch.nan)
        self.word(number, LAYER).value, self.word(number, TOKENS).value = layer, tokens
        self.word(number, KIND).value, self.word(number, SKIPPED).value = kind, self.skipped
        self.word(number, REQUEST).value = number
        return number

    def chosen(self, number: int, tokens: int) -> tuple[Tensor, Tensor]:
        ids = self.array(number, self.layout.y_offset, tokens, self.layout.top_k, torch.int32)
        behind = self.layout.y_offset + 4 * ids.numel()
        return ids, self.array(number, behind, tokens, self.layout.top_k)


def wait_for(condition: Callable[[], bool], seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not come to pass"
        time.sleep(0)


def make_pool(**changes: object) -> ExpertPool:
    options: dict[str, object] = {"top_k": TOP_K, "max_tokens": MAX_TOKENS, "number": "float32", "activations": "int16"}
    return ExpertPool(LAYOUT, PoolOptions(**{**options, "cores": [0, 1, 0], **changes}))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def layers() -> Layers:
    return Layers()


@pytest.fixture
def pool(layers: Layers) -> Iterator[ExpertPool]:
    with make_pool() as pool:
        layers.give(pool)
        yield pool


def ask(sender: Sender, layers: Layers, kind: int, layer: int, tokens: int) -> Asked:
    generator = torch.Generator().manual_seed(sender.number)
    x = torch.randn(tokens, HIDDEN, generator=generator)
    scores = torch.randn(tokens, NUM_EXPERTS, generator=generator)
    ids = torch.stack([torch.randperm(NUM_EXPERTS, generator=generator)[:TOP_K] for _ in range(tokens)]).int()
    shares = torch.rand(tokens, TOP_K, generator=generator)
    number = sender.post(kind, layer, x, scores, ids, shares)
    if kind & ROUTE:
        shares, ids = route(scores, TOP_K, sender.routing.normalize)
    here = torch.where(ids < sender.routing.resident, -1, ids) if kind & ROUTE else ids
    return Asked(number, kind, tokens, ids, shares, expected(layers.experts[layer], x, here, shares))


def assert_right(sender: Sender, asked: Asked) -> None:
    if asked.kind & COMPUTE:
        y = sender.array(asked.number, sender.layout.y_offset, asked.tokens, HIDDEN)
        assert (y.double() - asked.y).norm() <= 3e-4 * asked.y.norm()
    else:
        ids, shares = sender.chosen(asked.number, asked.tokens)
        assert torch.equal(ids.long(), asked.ids)
        assert torch.allclose(shares, asked.shares, rtol=1e-5)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    depth=st.integers(1, 8),
    first=st.sampled_from([1, (1 << 32) - 5]),
    threads=st.integers(1, 3),
    resident=st.sampled_from([0, 3]),
    # kind, layer, tokens, and whose answer is then waited for: of those under way, the oldest ... or none.
    steps=st.lists(
        st.tuples(
            st.sampled_from([COMPUTE, ROUTE, COMPUTE | ROUTE]),
            st.integers(0, 1),
            st.integers(1, MAX_TOKENS),
            st.one_of(st.none(), st.integers(0, 7)),
        ),
        min_size=1,
        max_size=30,
    ),
)
def test_no_interleaving_gives_an_answer_to_another_request(
    pool: ExpertPool,
    layers: Layers,
    depth: int,
    first: int,
    threads: int,
    resident: int,
    steps: list[tuple[int, int, int, int | None]],
) -> None:
    """Some requests wait, some are given up: what comes after them in their slot is right all the same."""
    sender = Sender(pool, depth, first=first, routing=Routing(False, threads, resident))
    pool.expect(len(steps))
    under_way: list[Asked] = []
    answers: list[Asked] = []
    for kind, layer, tokens, whose in steps:
        asked = ask(sender, layers, kind, layer, tokens)
        # Numbers that share a slot are the same modulo the depth; the older one is given up.
        under_way = [other for other in under_way if (other.number - asked.number) % depth] + [asked]
        if whose is not None:
            waited = under_way.pop(whose % len(under_way))
            wait_for(lambda waited=waited: sender.answered(waited.number))  # type: ignore[misc]
            assert_right(sender, waited)
            answers.append(waited)
    for asked in under_way:
        wait_for(lambda asked=asked: sender.answered(asked.number))  # type: ignore[misc]
        assert_right(sender, asked)
        answers.append(asked)
    pool.check()
    assert sum(asked.kind & COMPUTE for asked in answers) <= pool.work().jobs <= len(steps)


def test_several_requests_under_way_are_answered_in_turn(pool: ExpertPool, layers: Layers) -> None:
    sender = Sender(pool, depth=4)
    asked = [ask(sender, layers, COMPUTE, i % 2, 1 + i) for i in range(4)]
    assert not any(sender.answered(each.number) for each in asked), "nothing is expected yet"
    pool.expect(4)
    for each in reversed(asked):
        wait_for(lambda each=each: sender.answered(each.number))  # type: ignore[misc]
        assert_right(sender, each)
    assert (pool.work().jobs, pool.work().stale) == (4, 0)


@pytest.mark.parametrize("kind", [COMPUTE, ROUTE, COMPUTE | ROUTE])
def test_nobody_waits_for_requests_that_are_skipped(layers: Layers, kind: int) -> None:
    with make_pool(timeout_seconds=0.1) as pool:
        layers.give(pool)
        sender = Sender(pool, depth=2, routing=Routing(normalize=True, threads=2))
        sender.skipped = 2
        pool.expect(3)
        asked = ask(sender, layers, kind, 0, MAX_TOKENS)
        wait_for(lambda: sender.answered(asked.number))
        answered = time.monotonic()
        wait_for(lambda: time.monotonic() > answered + 0.3)  # the watchdog looks four times in a tenth
        assert_right(sender, asked)
        pool.check()


def test_a_request_may_tell_of_others_that_are_announced_behind_it(layers: Layers) -> None:
    """The GPU is faster than its host, which announces a layer once its kernel is launched."""
    with make_pool(timeout_seconds=0.1) as pool:
        layers.give(pool)
        sender = Sender(pool, depth=2)
        for _ in range(2):
            sender.skipped = 2
            pool.expect(1)
            asked = ask(sender, layers, COMPUTE, 0, 1)
            wait_for(lambda asked=asked: sender.answered(asked.number))  # type: ignore[misc]
            pool.expect(2)
        answered = time.monotonic()
        wait_for(lambda: time.monotonic() > answered + 0.3)
        pool.check()


def test_what_was_written_over_is_dropped(pool: ExpertPool, layers: Layers) -> None:
    sender = Sender(pool, depth=2)
    asked = [ask(sender, layers, COMPUTE, 0, 1) for _ in range(5)]
    pool.expect(5)
    for each in asked[3:]:
        wait_for(lambda each=each: sender.answered(each.number))  # type: ignore[misc]
        assert_right(sender, each)
    assert not any(sender.answered(each.number) for each in asked[:3])
    assert (pool.work().jobs, pool.work().stale) == (2, 3)


def test_the_numbers_begin_again_where_slots_are_not_in_turn(pool: ExpertPool, layers: Layers) -> None:
    """2^32 is no multiple of 3: behind it requests 4 apart share a slot, and those 3 apart do not."""
    sender = Sender(pool, depth=3, first=(1 << 32) - 3)
    asked = [ask(sender, layers, COMPUTE, 0, 1) for _ in range(5)]
    pool.expect(5)
    kept = [each for each in asked if sender.word(each.number, REQUEST).value == each.number]
    assert [each.number for each in kept] == [(1 << 32) - 2, 0, 1]
    for each in kept:
        wait_for(lambda each=each: sender.answered(each.number))  # type: ignore[misc]
        assert_right(sender, each)


def test_a_card_that_is_busy_for_longer_than_a_job_may_take_is_waited_for(layers: Layers) -> None:
    """What was given to it before its requests were announced comes first: a prompt's chunk over a slow link."""
    with make_pool(timeout_seconds=0.05) as pool:
        layers.give(pool)
        sender = Sender(pool, depth=2)
        pool.expect(2)
        announced = time.monotonic()
        for late in (0.4, 0.8):
            wait_for(lambda late=late: time.monotonic() > announced + late)  # type: ignore[misc]
            asked = ask(sender, layers, COMPUTE, 0, 1)
            wait_for(lambda asked=asked: sender.answered(asked.number))  # type: ignore[misc]
            assert_right(sender, asked)
        pool.check()


def test_the_watchdog_answers_all_that_is_under_way(layers: Layers) -> None:
    with make_pool(timeout_seconds=0.1, patience_seconds=0.1) as pool:
        layers.give(pool)
        sender = Sender(pool, depth=4)
        pool.expect(1)  # that never comes
        wait_for(lambda: library.load().strata_pool_state(pool._handle) != 0)
        asked = [ask(sender, layers, kind, 0, 2) for kind in (COMPUTE, ROUTE, COMPUTE | ROUTE)]
        for each in asked:
            wait_for(lambda each=each: sender.answered(each.number))  # type: ignore[misc]
        with pytest.raises(EngineError):
            pool.check()


# --- the choice of experts


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name not in variants():
        pytest.skip(f"this CPU has no {name}")
    return name


def choose(variant: str, scores: Tensor, top_k: int, normalize: bool, threads: int = 1) -> tuple[Tensor, Tensor]:
    """ids and shares [tokens, top_k], by way of a pool."""
    tokens, experts = scores.shape
    nothing = torch.zeros(tokens, top_k)
    with make_pool(variant=variant, top_k=top_k, max_tokens=tokens) as pool:
        sender = Sender(
            pool, 1, experts, routing=Routing(normalize, threads), max_tokens=tokens, top_k=top_k
        )  # fmt: skip
        pool.expect(1)
        number = sender.post(ROUTE, 0, torch.zeros(tokens, HIDDEN), scores, nothing, nothing)
        wait_for(lambda: sender.answered(number))
        pool.check()
        assert pool.work().routed == tokens
        ids, shares = sender.chosen(number, tokens)
        return ids.clone(), shares.clone()


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(
    ("experts", "top_k"),
    [
        pytest.param(8, 2, id="Mixtral"),
        pytest.param(60, 4, id="experts that are no multiple of 16"),
        pytest.param(512, 10, id="many experts"),
        pytest.param(16, 16, id="all of them"),
    ],
)
def test_the_choice_is_the_reference_s(variant: str, experts: int, top_k: int, normalize: bool) -> None:
    scores = 3 * torch.randn(13, experts, generator=torch.Generator().manual_seed(experts))
    shares, ids = route(scores, top_k, normalize)
    for threads in (1, 3):
        found_ids, found_shares = choose(variant, scores, top_k, normalize, threads)
        assert torch.equal(found_ids.long(), ids)
        assert torch.allclose(found_shares, shares, rtol=1e-5, atol=1e-12)


def test_of_equal_scores_the_lower_id_comes_first(variant: str) -> None:
    scores = torch.tensor([[0.0, 2.0, -0.0, 2.0, -1.0, 2.0]]).repeat(1, 6)
    ids, _ = choose(variant, scores, 20, True)
    assert ids.tolist() == [[6 * i + j for i in range(6) for j in (1, 3, 5)] + [0, 2]]


def test_what_is_no_number_names_an_expert_all_the_same(variant: str) -> None:
    scores = torch.full((2, 6), float("nan"))
    scores[1, 4] = 1.0
    ids, shares = choose(variant, scores, 3, True)
    assert ids.tolist() == [[0, 1, 2], [4, 0, 1]]
    assert shares[0].isnan().all(), "nobody takes it for a plausible share"
    assert torch.allclose(shares[1], torch.tensor([1.0, 0.0, 0.0]))
