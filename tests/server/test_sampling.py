"""What a request asks of the sampler, and what it is told of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest

from strata.engine.fake import FakeEngine
from strata.request import FinishReason, GenerationRequest, TokenOutput
from tests.server.conftest import Serve
from tests.server.test_app import error_of, events


def test_every_field_reaches_the_engine(serve: Serve) -> None:
    served = serve()
    fields = {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 11,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.25,
        "seed": 3,
        "ignore_eos": True,
        "max_tokens": 4,
    }
    chat = {"logprobs": True, "top_logprobs": 7, "logit_bias": {"5": -100, "299": 1.5}}
    response = served.chat(**fields, **chat, stop_token_ids=[9], priority=-2, timeout=1.5)
    assert response.status_code == 200, response.text
    request = served.engine.requests[0]
    given = {name: getattr(request.sampling, name) for name in fields}
    assert given == fields
    assert request.sampling.logit_bias == ((5, -100.0), (299, 1.5))
    assert (request.sampling.logprobs, request.sampling.stop_token_ids) == (7, (9,))
    assert (request.priority, request.timeout_seconds) == (-2, 1.5)


def test_without_fields_nothing_is_paid(serve: Serve) -> None:
    served = serve(generation_config={})
    served.chat()
    request = served.engine.requests[0]
    assert request == replace(request, priority=0, timeout_seconds=None)
    sampling = request.sampling
    assert (sampling.logit_bias, sampling.logprobs, sampling.min_p) == ((), None, 0.0)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (0.0, 0.0, 1.0)


def test_a_default_of_min_p_comes_from_the_checkpoint(serve: Serve) -> None:
    served = serve(generation_config={"min_p": 0.1})
    served.chat()
    assert served.engine.requests[0].sampling.min_p == 0.1


def test_a_bias_for_a_token_that_is_not_there_is_refused(serve: Serve) -> None:
    error = error_of(serve().chat(logit_bias={"300": 1}), 400)
    assert error["param"] == "logit_bias"
    assert "token id 300; this model's ids go from 0 to 299" in error["message"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        pytest.param({"temperature": 1.21}, ["temperature is 1.21"], id="hot"),
        pytest.param({"temperature": 1.1, "top_p": 0.7}, ["top_p is 0.7"], id="warm with a small nucleus"),
        pytest.param({"temperature": 1.5, "top_p": 0.5}, ["temperature is 1.5", "top_p is 0.5"], id="both"),
        pytest.param({"temperature": 1.2, "top_p": 0.8}, [], id="at the edge"),
        pytest.param({"temperature": 1.0, "top_p": 0.1}, [], id="a small nucleus alone"),
    ],
)
def test_sampling_outside_of_the_safe_region_is_answered_with_warnings(
    serve: Serve, fields: dict[str, Any], words: list[str]
) -> None:
    served = serve("hello")
    generate = served.client.post("/generate", json={"prompt": "a", **fields}).json()
    for answer in (served.chat(**fields).json(), generate):
        found = answer.get("warnings", [])
        assert len(found) == len(words)
        assert all(word in warning for word, warning in zip(words, found, strict=True))
    chunks = events(served.chat(stream=True, **fields))[:-1]
    assert [chunk["warnings"] for chunk in chunks if "warnings" in chunk] == ([found] if words else [])
    assert chunks[-1].get("warnings", []) == found, "with the finish reason"


class SlowEngine(FakeEngine):
    """Has cached some of the prompt, and is out of time after the second token."""

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenOutput, None]:
        num_tokens = 0
        async for output in super().generate(request):
            num_tokens += 1
            reason = FinishReason.TIMEOUT if num_tokens == 2 else output.finish_reason
            yield replace(output, finish_reason=reason, num_cached_tokens=16)
            if reason is not None:
                return


def test_a_request_whose_time_is_over_has_what_there_is(serve: Serve) -> None:
    served = serve("hello world", kind=SlowEngine)
    answer = served.chat(timeout=0.5).json()
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "timeout"
    assert "hello world".startswith(choice["message"]["content"])
    assert answer["usage"]["completion_tokens"] == 2
    assert served.metric("strata_requests_total", outcome="timeout") == 1
    assert events(served.chat(stream=True))[-2]["choices"][0]["finish_reason"] == "timeout"


def test_cached_tokens_are_those_of_each_prompt_once(serve: Serve) -> None:
    served = serve("hello", kind=SlowEngine)
    for n in (1, 3):
        assert served.chat(n=n).json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 16}
    body = {"prompt": ["a", "b"], "n": 2}
    usage = served.client.post("/v1/completions", json=body).json()["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 32}
