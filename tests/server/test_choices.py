"""Answers of several choices, and several prompts in one request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import openai
import pytest

from strata.engine.fake import FakeEngine
from strata.errors import EngineError, OverloadedError
from strata.request import FinishReason, GenerationRequest
from strata.server.choice import merge
from strata.server.job import Piece
from strata.server.parse import parse
from strata.server.schemas import CompletionRequest
from strata.server.service import Service
from tests.server.conftest import Live, Serve, new_record, wait_ready
from tests.server.test_app import error_of, events

Encode = Callable[[str], list[int]]


def index_of(request: GenerationRequest) -> int:
    return int(request.request_id.rsplit("-", 1)[1])


@pytest.fixture
def numbered(encode: Encode) -> Callable[[GenerationRequest], list[int]]:
    """Each choice says its number, and goes on for longer than those before it."""
    return lambda request: encode(f"choice {index_of(request)}" + " 😀" * index_of(request))


def test_n_choices_are_counted_with_one_prompt(serve: Serve, numbered: Any) -> None:
    served = serve(script=numbered)
    answer = served.chat(n=3).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    texts = [choice["message"]["content"] for choice in answer["choices"]]
    assert texts == ["choice 0", "choice 1 😀", "choice 2 😀 😀"]
    prompt = len(served.engine.requests[0].prompt_token_ids)
    assert answer["usage"]["prompt_tokens"] == prompt
    alone = [serve(text).chat().json()["usage"]["completion_tokens"] for text in texts]
    assert answer["usage"]["completion_tokens"] == sum(alone)
    assert served.metric("strata_prompt_tokens_total") == prompt
    assert served.metric("strata_generation_tokens_total") == sum(alone)
    assert served.metric("strata_requests_total", outcome="stop") == 1


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_stream_of_n_choices_has_each_in_order_and_one_end(serve: Serve, numbered: Any, path: str) -> None:
    served = serve(script=numbered)
    body = {"messages": [{"role": "user", "content": "a"}]} if "chat" in path else {"prompt": "a"}
    options = {"n": 3, "stream": True, "stream_options": {"include_usage": True}}
    chunks = events(served.client.post(path, json=body | options))
    assert chunks.pop() == "[DONE]"
    usage = chunks.pop()
    assert usage["choices"] == []
    assert usage["usage"] == served.client.post(path, json=body | {"n": 3}).json()["usage"]
    choices = [chunk["choices"][0] for chunk in chunks]
    for index in range(3):
        own = [choice for choice in choices if choice["index"] == index]
        texts = [choice["text"] if "text" in choice else choice["delta"].get("content", "") for choice in own]
        assert "".join(texts) == f"choice {index}" + " 😀" * index
        assert [choice["finish_reason"] for choice in own] == [None] * (len(own) - 1) + ["stop"]
    ends = [choice["index"] for choice in choices if choice["finish_reason"]]
    assert ends == [0, 1, 2], "the shorter answer ends first"


async def test_choices_come_side_by_side(make_engine: Callable[..., FakeEngine], numbered: Any) -> None:
    engine = make_engine(script=numbered)
    service = Service(engine, model_names=("tiny",))
    await service.backend.start()
    await wait_ready(service)
    engine.pause()
    job = await service.admit(parse(CompletionRequest, b'{"prompt": "a", "n": 3}'), new_record())
    async with aclosing(service.generate(job)) as pieces:
        for _ in range(3):
            waiting = asyncio.ensure_future(anext(pieces))
            await engine.wait_until(lambda fake: fake.num_open == 3)
            engine.release()
            together = [await waiting, await anext(pieces), await anext(pieces)]
            assert [piece.choice for piece in together] == [0, 1, 2]
    assert len(engine.aborted) == 3
    await service.backend.close()


def test_choices_have_seeds_of_their_own_and_the_first_the_requests(serve: Serve) -> None:
    served = serve()
    for _ in range(2):
        served.chat(n=3, seed=7)
    served.chat(seed=7)
    served.chat(n=2)
    seeds = [request.sampling.seed for request in served.engine.requests]
    assert seeds[0] == seeds[6] == 7
    assert seeds[:3] == seeds[3:6]
    assert len(set(seeds[:3])) == 3
    assert seeds[7:] == [None, None]


def test_each_choice_meets_its_own_stop_string(serve: Serve, encode: Encode) -> None:
    texts = ["a quick one", "a lazy one", "nothing"]
    served = serve(script=lambda request: encode(texts[index_of(request)]))
    choices = served.chat(n=3, stop=["ick", " lazy"]).json()["choices"]
    assert [choice["message"]["content"] for choice in choices] == ["a qu", "a", "nothing"]
    assert served.engine.num_open == 0


def test_several_prompts_are_answered_in_their_order(serve: Serve, encode: Encode) -> None:
    served = serve(script=lambda request: request.prompt_token_ids)
    texts = ["hello", "lazy dog", "fox"]
    for prompt in (texts, [encode(text) for text in texts]):
        answer = served.client.post("/v1/completions", json={"prompt": prompt, "n": 2}).json()
        assert [choice["text"] for choice in answer["choices"]] == [text for text in texts for _ in range(2)]
        assert [choice["index"] for choice in answer["choices"]] == list(range(6))
        assert answer["usage"]["prompt_tokens"] == sum(len(encode(text)) for text in texts)


@pytest.mark.parametrize("as_ids", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_echo_puts_the_prompt_before_its_answer(serve: Serve, encode: Encode, stream: bool, as_ids: bool) -> None:
    prompt = encode("hello") if as_ids else "hello"
    body = {"prompt": [prompt, prompt], "echo": True, "stream": stream}
    response = serve(" world").client.post("/v1/completions", json=body)
    choices = [chunk["choices"] for chunk in events(response)[:-1]] if stream else [response.json()["choices"]]
    flat = [choice for part in choices for choice in part]
    for index in range(2):
        assert "".join(choice["text"] for choice in flat if choice["index"] == index) == "hello world"


def test_a_choice_that_is_refused_ends_the_others(serve: Serve) -> None:
    served = serve(max_open=2)
    served.engine.pause()
    for stream in (False, True):
        served.engine.reject_next(OverloadedError("later"))
        assert error_of(served.chat(n=2, stream=stream), 429)["code"] == "engine_overloaded"
        assert served.engine.num_open == 0
    served.engine.resume()
    served.engine.reject_next(OverloadedError("later"))
    assert error_of(served.chat(n=2), 429)["message"] == "later"
    assert served.chat(n=2).status_code == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [({"prompt": "a", "n": 4}, "n"), ({"prompt": ["a", "b"], "n": 2}, "n"), ({"prompt": ["a"] * 4}, "prompt")],
)
def test_more_choices_than_ever_run_are_the_requests_fault(serve: Serve, body: dict[str, Any], param: str) -> None:
    served = serve(max_open=3)
    error = error_of(served.client.post("/v1/completions", json=body), 400)
    assert (error["param"], error["code"]) == (param, "invalid_value")
    assert "4 answers" in error["message"]
    assert served.engine.requests == []
    assert served.chat(n=3).status_code == 200


async def test_choices_begin_together_or_not_at_all(make_engine: Callable[..., FakeEngine], numbered: Any) -> None:
    engine = make_engine(script=numbered, max_open=4)
    service = Service(engine, model_names=("tiny",))
    await service.backend.start()
    await wait_ready(service)
    engine.pause()

    async def ask(num_choices: int) -> list[Piece]:
        body = parse(CompletionRequest, json.dumps({"prompt": "a", "n": num_choices}).encode())
        return [piece async for piece in service.generate(await service.admit(body, new_record()))]

    first = asyncio.create_task(ask(3))
    await engine.wait_until(lambda fake: fake.num_open == 3)
    with pytest.raises(OverloadedError, match="3 requests are in flight, 4 are allowed, and this one is 2"):
        await ask(2)
    assert len(engine.requests) == 3
    # A choice that has ended leaves its place, though the others go on.
    engine.release(len(list(numbered(engine.requests[0]))) + 1)
    await engine.wait_until(lambda fake: fake.num_open == 2)
    second = asyncio.create_task(ask(2))
    await engine.wait_until(lambda fake: len(fake.requests) == 5)
    engine.resume()
    for answer, num_choices in ((await first, 3), (await second, 2)):
        assert sum(piece.finish_reason is FinishReason.STOP for piece in answer) == num_choices
    await service.drain()
    await service.backend.close()


def test_a_client_that_leaves_ends_every_choice(live: Callable[..., Live]) -> None:
    running = live(script=lambda _: iter(lambda: 70, None), max_model_len=100_000)
    with openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:
        stream = client.completions.create(model="tiny", prompt="a", n=3, stream=True)
        assert next(iter(stream)).choices[0].text
        stream.close()
    running.wait_until(lambda engine: len(engine.aborted) == 3)
    assert running.engine.num_open == 0


async def test_merge_raises_the_first_error_and_ends_the_rest() -> None:
    ended: list[int] = []
    failing = asyncio.Event()

    async def choice(index: int) -> AsyncGenerator[Piece, None]:
        try:
            yield Piece(index, "a", None, 1)
            if index == 1:
                await failing.wait()
                raise EngineError("gone")
            await asyncio.Event().wait()
        finally:
            ended.append(index)

    pieces = merge([choice(index) for index in range(3)])
    first = [await anext(pieces) for _ in range(3)]
    assert [piece.choice for piece in first] == [0, 1, 2]
    failing.set()
    with pytest.raises(EngineError, match="gone"):
        await anext(pieces)
    assert sorted(ended) == [0, 1, 2]


async def test_merge_ends_when_all_have_ended() -> None:
    async def choice(index: int) -> AsyncGenerator[Piece, None]:
        yield Piece(index, "a", FinishReason.STOP, 1)

    assert [piece.choice async for piece in merge([choice(index) for index in range(2)])] == [0, 1]
