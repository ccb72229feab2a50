"""The HTTP surface over a fake engine: answers, errors, probes."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import tokenizers
from tokenizers.processors import TemplateProcessing

from strata.engine.fake import FakeEngine
from strata.engine.messages import EngineFailed, LoadProgress
from strata.errors import EngineError, OverloadedError, UsageError
from strata.server import routes
from strata.server.parse import parse
from strata.server.tokenizer import Tokenizer
from tests.server.conftest import Serve, Served, wait_ready

_Result = TypeVar("_Result")


def events(response: Any) -> list[Any]:
    """The chunks of a stream; "[DONE]" stays as it is."""
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def error_of(response: Any, status: int) -> dict[str, Any]:
    """The error object of a refused request; all of them have OpenAI's four keys."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return dict(error)


# --- answers


def test_a_chat_answers_with_text_reason_and_usage(serve: Serve, encode: Callable[[str], list[int]]) -> None:
    served = serve("hello world")
    answer = served.chat(model="tiny").json()
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "tiny"
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "hello world", "refusal": None}
    assert answer["choices"][0]["finish_reason"] == "stop"
    prompt, completion = len(served.engine.requests[0].prompt_token_ids), len(encode("hello world")) + 1
    assert answer["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": completion,  # the token that ends the answer was generated too
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_a_chat_goes_through_the_template(serve: Serve, encode: Callable[[str], list[int]]) -> None:
    served = serve()
    messages = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": "hello"}]
    served.chat(messages=messages)
    text = "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert list(served.engine.requests[0].prompt_token_ids) == encode(text)


def test_a_streamed_chat_has_role_pieces_reason_and_end(serve: Serve) -> None:
    chunks = events(serve("hello 😀 world").chat(stream=True))
    assert chunks.pop() == "[DONE]"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert not any("usage" in chunk for chunk in chunks)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    texts = [choice["delta"]["content"] for choice in choices[1:-1]]
    assert "😀" in texts, "a character comes whole, in one piece"
    assert "".join(texts) == "hello 😀 world"
    assert choices[-1]["delta"] == {}
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]


def test_a_stream_ends_with_usage_when_asked(serve: Serve) -> None:
    served = serve("hello")
    chunks = events(served.chat(stream=True, stream_options={"include_usage": True}))
    whole = served.chat().json()
    assert chunks[-1] == "[DONE]"
    assert chunks[-2]["choices"] == []
    assert chunks[-2]["usage"] == whole["usage"]
    assert all(chunk["usage"] is None for chunk in chunks[:-2])


def test_a_completion_answers_text_and_tokens(serve: Serve, encode: Callable[[str], list[int]]) -> None:
    served = serve(" world")
    for prompt in ("hello", encode("hello")):
        answer = served.client.post("/v1/completions", json={"prompt": prompt}).json()
        assert answer["object"] == "text_completion"
        assert answer["choices"] == [{"index": 0, "text": " world", "logprobs": None, "finish_reason": "stop"}]
    assert served.engine.requests[0].prompt_token_ids == served.engine.requests[1].prompt_token_ids


def test_a_streamed_completion_has_pieces_reason_and_end(serve: Serve) -> None:
    chunks = events(serve(" world").client.post("/v1/completions", json={"prompt": "hello", "stream": True}))
    assert chunks.pop() == "[DONE]"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == " world"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}


def test_generate_answers_text_and_usage(serve: Serve) -> None:
    body = {"prompt": "hello", "max_tokens": 50, "temperature": 0.5, "top_p": 0.9}
    answer = serve(" world").client.post("/generate", json=body).json()
    assert answer["text"] == " world"
    assert answer["finish_reason"] == "stop"
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] + answer["usage"]["completion_tokens"]


def test_the_limit_ends_an_answer(serve: Serve) -> None:
    answer = serve("hello world").chat(max_tokens=2).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_answer_and_generation(serve: Serve, stream: bool) -> None:
    served = serve("the quick brown fox")
    response = served.chat(stop=["ick b", "nothing"], stream=stream)
    if stream:
        choices = [chunk["choices"][0] for chunk in events(response)[:-1]]
        text, reason = "".join(c["delta"].get("content", "") for c in choices), choices[-1]["finish_reason"]
    else:
        choice = response.json()["choices"][0]
        text, reason = choice["message"]["content"], choice["finish_reason"]
    assert (text, reason) == ("the qu", "stop")
    assert served.engine.aborted == [served.engine.requests[0].request_id]
    assert served.engine.num_open == 0


def test_a_beginning_of_a_stop_string_at_the_end_is_shown(serve: Serve) -> None:
    assert serve("the quick").chat(stop="ick brown").json()["choices"][0]["message"]["content"] == "the quick"


def test_a_stop_token_ends_an_answer_without_its_text(serve: Serve, encode: Callable[[str], list[int]]) -> None:
    served = serve("hello world")
    choice = served.chat(stop_token_ids=encode("hello world")[-1:]).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("hello", "stop")


@pytest.mark.parametrize("stream", [False, True])
def test_a_character_cut_by_the_limit_is_marked(serve: Serve, stream: bool) -> None:
    response = serve("😀").client.post("/v1/completions", json={"prompt": "a", "max_tokens": 3, "stream": stream})
    chunks = events(response)[:-1] if stream else [response.json()]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "\ufffd"


def test_a_bare_text_gets_its_bos_and_a_chat_only_what_the_template_writes(
    serve: Serve, store: Path, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer_config.json").write_bytes((store / "tokenizer_config.json").read_bytes())
    tokenizer = tokenizers.Tokenizer.from_file(str(store / "tokenizer.json"))
    tokenizer.post_processor = TemplateProcessing(single="<|end|> $A", special_tokens=[("<|end|>", 0)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    served = serve(directory=tmp_path)
    served.client.post("/generate", json={"prompt": "hello"})
    served.chat()
    text, chat = (request.prompt_token_ids for request in served.engine.requests)
    assert text[0] == 0
    assert 0 not in chat


# --- sampling


def test_sampling_values_reach_the_engine(serve: Serve) -> None:
    served = serve()
    served.chat(
        temperature=0,
        top_p=0.5,
        top_k=3,
        repetition_penalty=1.2,
        seed=-7,
        max_tokens=9,
        stop_token_ids=[5],
        ignore_eos=True,
    )
    sampling = served.engine.requests[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0, 0.5, 3)
    assert (sampling.repetition_penalty, sampling.seed, sampling.max_tokens) == (1.2, -7, 9)
    assert (sampling.stop_token_ids, sampling.ignore_eos) == ((5,), True)


def test_defaults_come_from_the_checkpoint_and_the_context(serve: Serve) -> None:
    served = serve(max_model_len=100)
    served.chat()
    request = served.engine.requests[0]
    assert (request.sampling.temperature, request.sampling.top_k) == (0.6, 20)  # generation_config.json
    assert (request.sampling.top_p, request.sampling.repetition_penalty) == (1.0, 1.0)
    assert request.sampling.max_tokens == 100 - len(request.prompt_token_ids)


def test_minus_one_switches_top_k_off_as_zero_does(serve: Serve) -> None:
    served = serve()
    served.chat(top_k=-1)
    assert served.engine.requests[0].sampling.top_k == 0


def test_a_default_out_of_range_is_left_out_with_a_warning(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    served = serve(generation_config={"temperature": 7, "top_p": 0.9, "repetition_penalty": 1e-38})
    served.chat()
    sampling = served.engine.requests[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.repetition_penalty) == (1.0, 0.9, 1.0)
    assert "temperature is 7" in caplog.text


# --- refusals


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/generate"])
@pytest.mark.parametrize(
    ("body", "code"),
    [
        pytest.param(b'{"prompt"', "invalid_json", id="broken JSON"),
        pytest.param(b'{"prompt": "\xc3"}', "invalid_encoding", id="not UTF-8"),
        pytest.param(b"{}", "missing_required_parameter", id="nothing asked"),
        pytest.param(b'{"max_tokens": 0, "prompt": "a", "messages": []}', None, id="no tokens"),
    ],
)
def test_every_route_refuses_a_bad_body(serve: Serve, path: str, body: bytes, code: str | None) -> None:
    served = serve()
    error = error_of(served.client.post(path, content=body), 400)
    assert error["type"] == "invalid_request_error"
    assert code is None or error["code"] == code
    assert served.engine.requests == []
    assert served.metric("strata_requests_total", outcome="rejected") == 1


def test_max_tokens_of_zero_or_less_is_refused(serve: Serve) -> None:
    served = serve()
    for given in (0, -1):
        error = error_of(served.chat(max_tokens=given), 400)
        assert error["param"] == "max_tokens"
        assert str(given) in error["message"]
        assert "1 or more" in error["message"]


def test_a_prompt_longer_than_the_context_names_both_numbers(serve: Serve) -> None:
    served = serve(max_model_len=32)
    error = error_of(served.client.post("/v1/completions", json={"prompt": [5] * 32}), 400)
    assert error["code"] == "context_length_exceeded"
    assert "32 tokens; max-model-len is 32" in error["message"]
    assert served.engine.requests == []


def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenised(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve(max_model_len=32)
    text = "a" * 100_000
    bodies: dict[str, dict[str, Any]] = {
        "/v1/completions": {"prompt": text},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": text}]},
    }
    monkeypatch.setattr(Tokenizer, "encode", lambda *_, **__: pytest.fail("tokenised"))
    for path, body in bodies.items():
        error = error_of(served.client.post(path, json=body), 400)
        assert (error["param"], error["code"]) == (next(iter(body)), "context_length_exceeded")
        assert "has 1000" in error["message"]  # a chat with what its template adds
        assert "max-model-len is 32" in error["message"]


def test_stop_token_ids_outside_the_vocabulary_are_refused(serve: Serve) -> None:
    served = serve()
    error = error_of(served.client.post("/v1/completions", json={"prompt": [5], "stop_token_ids": [300]}), 400)
    assert error["param"] == "stop_token_ids"
    assert "0 to 299" in error["message"]


def test_an_answer_longer_than_the_context_leaves_is_refused(serve: Serve) -> None:
    served = serve(max_model_len=32)
    error = error_of(served.client.post("/v1/completions", json={"prompt": [5] * 20, "max_tokens": 13}), 400)
    assert error["code"] == "context_length_exceeded"
    assert "leaves 12" in error["message"]
    assert served.client.post("/v1/completions", json={"prompt": [5] * 20, "max_tokens": 12}).status_code == 200


def test_a_token_outside_the_vocabulary_is_refused(serve: Serve) -> None:
    served = serve()
    for token_id in (-1, 300):
        error = error_of(served.client.post("/v1/completions", json={"prompt": [5, token_id]}), 400)
        assert f"token id {token_id}" in error["message"]
        assert "0 to 299" in error["message"]


def test_long_input_is_cut_in_the_message(serve: Serve) -> None:
    served = serve()
    given = "m" * 50_000
    for error in (
        error_of(served.chat(model=given), 404),
        error_of(served.chat(**{given: 1}), 400),
        error_of(served.client.get(f"/{given}"), 404),
    ):
        assert "mmm" in error["message"]
        assert len(error["message"]) < 3_000
    assert "'tiny'" in error_of(served.chat(model=given), 404)["message"]  # what is allowed stays


def test_a_trailing_slash_is_not_redirected(serve: Serve) -> None:
    error = error_of(serve().client.post("/v1/chat/completions/", json={}), 404)
    assert "/v1/chat/completions" in error["message"]


def test_an_unknown_model_is_not_found(serve: Serve) -> None:
    served = serve()
    error = error_of(served.chat(model="gpt-4"), 404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert "'gpt-4'" in error["message"]
    assert "'tiny', 'alias'" in error["message"]
    assert served.chat(model="alias").json()["model"] == "alias"


def test_a_checkpoint_without_a_chat_template_serves_completions_only(
    serve: Serve, store: Path, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.json").write_bytes((store / "tokenizer.json").read_bytes())
    served = serve(directory=tmp_path)
    assert "/v1/completions" in error_of(served.chat(), 400)["message"]
    assert served.client.post("/v1/completions", json={"prompt": "hello"}).status_code == 200


def test_a_body_beyond_the_limit_is_refused(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "MAX_BODY_BYTES", 1 << 20)
    error = error_of(serve().client.post("/generate", content=b" " * ((1 << 20) + 1)), 413)
    assert "1 MiB" in error["message"]


def test_a_long_body_is_checked_beside_the_event_loop(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def spy(schema: Any, body: bytes) -> Any:
        threads.append(threading.get_ident())
        return parse(schema, body)

    monkeypatch.setattr(routes, "parse", spy)
    served = serve()
    assert served.client.portal is not None
    loop = served.client.portal.call(lambda: _call(threading.get_ident))
    for length in (10, routes.LONG_BODY_BYTES):
        assert served.chat(metadata={"note": "a" * length}).status_code == 200
    assert [thread == loop for thread in threads] == [True, False]


def test_a_conversation_is_tokenised_in_a_thread(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits there for the process that runs the template."""
    threads = []
    encode = Tokenizer.encode

    def spy(self: Tokenizer, text: str, *, add_special_tokens: bool) -> list[int]:
        threads.append(threading.get_ident())
        return encode(self, text, add_special_tokens=add_special_tokens)

    monkeypatch.setattr(Tokenizer, "encode", spy)
    served = serve(max_model_len=100_000)
    assert served.client.portal is not None
    loop = served.client.portal.call(lambda: _call(threading.get_ident))
    assert served.chat().status_code == 200
    assert [thread != loop for thread in threads] == [True]


def test_unknown_routes_and_methods_say_what_there_is(serve: Serve) -> None:
    client = serve().client
    assert "/v1/chat/completions" in error_of(client.post("/v1/embeddings", json={}), 404)["message"]
    response = client.get("/v1/chat/completions")
    assert "it takes POST" in error_of(response, 405)["message"]
    assert response.headers["allow"] == "POST"


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/metrics"])
def test_head_is_get_without_the_body(serve: Serve, path: str) -> None:
    client = serve().client
    asked, got = client.head(path), client.get(path)
    assert (asked.status_code, asked.headers["content-type"]) == (200, got.headers["content-type"])
    assert asked.content == b""
    assert client.head("/v1/chat/completions").status_code == 405


def test_a_full_queue_is_429_with_a_time_to_wait(serve: Serve) -> None:
    served = serve()
    for stream in (False, True):
        served.engine.reject_next(OverloadedError("256 requests wait; try later"))
        response = served.chat(stream=stream)
        assert error_of(response, 429)["code"] == "engine_overloaded"
        assert response.headers["retry-after"] == "1"
    assert served.metric("strata_requests_total", outcome="overloaded") == 2


def test_an_engine_that_fails_before_the_first_token_is_500(serve: Serve) -> None:
    served = serve()
    served.engine.reject_next(EngineError("out of luck"))
    assert error_of(served.chat(stream=True), 500)["message"] == "out of luck"
    assert served.metric("strata_requests_total", outcome="error") == 1


def test_a_fault_of_the_server_is_an_error_object_without_details(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve()
    monkeypatch.setattr(served.service, "check_name", lambda _: 1 / 0)
    error = error_of(served.chat(), 500)
    assert error["code"] == "internal_error"
    assert "ZeroDivisionError" in error["message"]


# --- models and probes


def test_models_lists_every_name_with_its_context(serve: Serve) -> None:
    client = serve(max_model_len=77).client
    models = client.get("/v1/models").json()
    assert [(entry["id"], entry["max_model_len"]) for entry in models["data"]] == [("tiny", 77), ("alias", 77)]
    assert client.get("/v1/models/tiny").json() == models["data"][0]
    assert error_of(client.get("/v1/models/org/other"), 404)["code"] == "model_not_found"


def test_loading_is_shown_by_ready_and_answered_with_a_time_to_wait(serve: Serve) -> None:
    stages = (LoadProgress("convert", 0, 50), LoadProgress("load", 30, 100))
    served = serve(wait=False, hold_load=True, stages=stages)

    def steer(engine: FakeEngine = served.engine) -> None:
        assert served.client.portal is not None
        served.client.portal.call(lambda: _call(engine.next_stage))

    assert error_of(served.client.get("/ready"), 503)["code"] == "model_loading"
    steer()
    steer()
    body = served.client.get("/ready").json()
    assert (body["status"], body["phase"], body["bytes_done"], body["bytes_total"]) == ("loading", "load", 30, 100)
    assert served.client.get("/health").status_code == 200
    for response in (served.chat(), served.client.get("/v1/models")):
        assert "30 B of 100 B" in error_of(response, 503)["message"]
        assert int(response.headers["retry-after"]) > 0
    assert served.metric("strata_engine_ready") == 0
    assert served.metric("strata_load_bytes", state="done") == 30
    assert served.metric("strata_requests_total", outcome="unavailable") == 1
    steer()
    assert served.client.portal is not None
    served.client.portal.call(wait_ready, served.service)
    assert served.client.get("/ready").json() == {"status": "ready"}
    assert served.chat().status_code == 200
    assert served.metric("strata_engine_ready") == 1


async def _call(function: Callable[[], _Result]) -> _Result:
    return function()


def test_a_model_that_cannot_be_loaded_is_shown_with_its_reason(serve: Serve) -> None:
    served = serve(wait=False, load_failure=EngineFailed(UsageError("/models/x has no config.json")))
    _assert_failed(served, "/models/x has no config.json")


def test_a_missing_tokenizer_is_shown_with_its_name(serve: Serve, tmp_path: Path) -> None:
    served = serve(wait=False, directory=tmp_path)
    _assert_failed(served, str(tmp_path / "tokenizer.json"))


def test_an_engine_that_dies_is_shown(serve: Serve) -> None:
    served = serve()
    served.engine.fail("the engine process ended with signal 9")
    _assert_failed(served, "signal 9")


def _assert_failed(served: Served, reason: str) -> None:
    assert served.client.portal is not None
    with pytest.raises(Exception, match=r".") as caught:
        served.client.portal.call(wait_ready, served.service)
    assert reason in str(caught.value)
    for path in ("/ready", "/health"):
        assert reason in error_of(served.client.get(path), 503)["message"]
    assert reason in error_of(served.chat(), 500)["message"]


# --- ids and logs


def test_a_request_id_is_echoed_or_made(serve: Serve) -> None:
    client = serve().client
    assert client.get("/health", headers={"X-Request-Id": "abc-1"}).headers["x-request-id"] == "abc-1"
    assert client.get("/nowhere", headers={"X-Request-Id": "abc-2"}).headers["x-request-id"] == "abc-2"
    made = client.get("/health", headers={"X-Request-Id": "a b\tc"}).headers["x-request-id"]
    assert len(made) == 32
    assert client.get("/health").headers["x-request-id"] != made


def test_the_access_log_has_no_prompts_and_no_queries(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    served = serve()
    messages = [{"role": "user", "content": "secret-prompt"}]
    served.client.post(
        "/v1/chat/completions?key=secret-query", json={"messages": messages}, headers={"X-Request-Id": "r1"}
    )
    lines = [record.getMessage() for record in caplog.records if record.name == "strata.access"]
    assert any("method=POST path=/v1/chat/completions status=200" in line and "id=r1" in line for line in lines)
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("strata")]
    assert not any("secret" in line for line in ours)
