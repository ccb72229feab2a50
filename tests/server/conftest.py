"""A tiny store (a real tokenizer and chat template, no weights), and servers over the fake engine."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import pytest
import tokenizers
import uvicorn
import uvloop
from fastapi.testclient import TestClient
from tokenizers import decoders, models, pre_tokenizers, trainers

from strata.engine.fake import FAKE_READY, FakeEngine
from strata.request import GenerationRequest
from strata.server.access_log import log_access
from strata.server.app import EVERYBODY, Access, create_app
from strata.server.lifetime import http_config
from strata.server.middleware import Observer
from strata.server.record import RequestRecord
from strata.server.service import Service
from tests.server.families import TEMPLATES

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|end|>", "<|im_start|>", "<|im_end|>"]  # ids 0, 1, 2; 0 ends a sequence of the fake engine


@pytest.fixture(scope="session", autouse=True)
def direct() -> Iterator[None]:
    """Clients reach this machine's servers directly, whatever proxy the environment names. The certificates that none
    of them needs are read once, which takes longer than most requests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "127.0.0.1")
        patch.setattr("httpx._transports.default.create_ssl_context", cache(httpx.create_ssl_context))
        yield


def write_store(directory: Path, chat_template: str, special_tokens: Sequence[str]) -> Path:
    """A directory as the engine reports it, with a tokenizer whose first ids are the special tokens."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=list(special_tokens), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(["the quick brown fox jumps over the lazy dog, hello world"] * 3, trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"chat_template": chat_template, "bos_token": None, "eos_token": special_tokens[0]}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a chat template that knows neither tools nor reasoning."""
    return write_store(tmp_path_factory.mktemp("store"), CHAT_TEMPLATE, SPECIAL)


@pytest.fixture(scope="session")
def family_store(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The store of a model with a family's chat template, its marks being special tokens."""

    @cache
    def make(family: str) -> Path:
        marks = sorted(set(re.findall(r"<\|\w+\|>|\[[A-Z_/]+\]|</?tool_call>|</?think>", TEMPLATES[family])))
        extra = [mark for mark in ("<|python_tag|>", "<|call|>", "<|end|>") if mark not in marks]
        return write_store(tmp_path_factory.mktemp(family), TEMPLATES[family], ["<|endoftext|>", *marks, *extra])

    return make


@cache
def encoder(directory: Path) -> Callable[[str], list[int]]:
    """Text to the ids of a store's tokenizer."""
    tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


@pytest.fixture(scope="session")
def encode(store: Path) -> Callable[[str], list[int]]:
    """Text to the ids of the tiny tokenizer."""
    return encoder(store)


def new_record() -> RequestRecord:
    """That of a request which has just come."""
    return RequestRecord("r1", "127.0.0.1", "POST", "/v1/completions", {})


async def wait_ready(service: Service) -> None:
    """Wait for the end of loading. Raises what ended it."""
    while service.backend.state == "loading":  # noqa: ASYNC110 - the service tells nobody
        await asyncio.sleep(0.001)
    if service.backend.error is not None:
        raise service.backend.error


@dataclass(frozen=True)
class Served:
    """A server in this process, without sockets."""

    engine: FakeEngine
    service: Service
    client: TestClient

    def chat(self, **fields: Any) -> Any:
        """POST a chat of one message, with these fields beside it or instead."""
        body = {"messages": [{"role": "user", "content": "hello"}], **fields}
        return self.client.post("/v1/chat/completions", json=body)

    def metric(self, name: str, **labels: str) -> float | None:
        """The value of one sample of the registry."""
        return self.service.metrics.registry.get_sample_value(name, labels)


Serve = Callable[..., Served]


@pytest.fixture
def make_engine(store: Path) -> Callable[..., FakeEngine]:
    """A fake engine over the tiny store or another, which answers every request with ``text``."""

    def make(
        text: str = "hello world",
        *,
        max_model_len: int = 256,
        directory: Path = store,
        kind: type[FakeEngine] = FakeEngine,
        generation_config: Mapping[str, Any] = MappingProxyType({"temperature": 0.6, "top_k": 20}),
        **options: Any,
    ) -> FakeEngine:
        def script(_: GenerationRequest) -> list[int]:
            return encoder(directory)(text)

        ready = replace(
            FAKE_READY,
            store_path=str(directory),
            max_model_len=max_model_len,
            vocab_size=300,
            generation_config=generation_config,
        )
        return kind(options.pop("script", script), ready=ready, **options)

    return make


@pytest.fixture
def serve(make_engine: Callable[..., FakeEngine]) -> Iterator[Serve]:
    """Start a server over a fake engine (its options are those of ``make_engine``) and wait until it is ready."""
    with ExitStack() as stack:

        def start(text: str = "hello world", *, wait: bool = True, **options: Any) -> Served:
            engine = make_engine(text, **options)
            service = Service(engine, model_names=("tiny", "alias"))
            client = stack.enter_context(TestClient(create_app(service), raise_server_exceptions=False))
            if wait:
                assert client.portal is not None
                client.portal.call(wait_ready, service)
            return Served(engine, service, client)

        yield start


ServeFamily = Callable[..., Served]


@pytest.fixture
def serve_family(serve: Serve, family_store: Callable[[str], Path]) -> ServeFamily:
    """Serve a model of a family that answers with a text."""

    def start(family: str, text: str, **options: Any) -> Served:
        return serve(text, directory=family_store(family), **{"max_model_len": 2000, **options})

    return start


@dataclass(frozen=True)
class Live:
    """A server behind a real socket, in a thread of its own."""

    engine: FakeEngine
    service: Service
    port: int
    loop: asyncio.AbstractEventLoop

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def wait_until(self, condition: Callable[[FakeEngine], bool]) -> None:
        """Wait until the engine is in a state; the test's own timeout ends what never comes."""
        asyncio.run_coroutine_threadsafe(self.engine.wait_until(condition), self.loop).result()


@contextmanager
def run_live(
    engine: FakeEngine, access: Access = EVERYBODY, *, name: str = "tiny", observers: Sequence[Observer] = (log_access,)
) -> Iterator[Live]:
    """uvicorn as ``strata serve`` runs it, on a free port."""
    service = Service(engine, model_names=(name,))
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(http_config(service, access, observers))
    started: list[asyncio.AbstractEventLoop] = []
    ready = threading.Event()

    async def main() -> None:
        started.append(asyncio.get_running_loop())
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        await wait_ready(service)
        ready.set()
        await serving

    thread = threading.Thread(target=lambda: uvloop.run(main()), daemon=True)
    thread.start()
    assert ready.wait(30), "the server did not start"
    try:
        yield Live(engine, service, listener.getsockname()[1], started[0])
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture
def live(make_engine: Callable[..., FakeEngine]) -> Iterator[Callable[..., Live]]:
    """Start a server behind a real socket over a fake engine; options are those of ``make_engine``."""
    with ExitStack() as stack:
        yield lambda text="hello world", **options: stack.enter_context(run_live(make_engine(text, **options)))


Answering = Callable[..., Live]


@pytest.fixture
def answering(live: Callable[..., Live], family_store: Callable[[str], Path]) -> Answering:
    """Serve a model of Qwen's family that gives these answers, one after the other."""

    def start(*answers: str) -> Live:
        directory, texts = family_store("qwen"), iter(answers)

        def script(_: GenerationRequest) -> list[int]:
            return encoder(directory)(next(texts))

        return live(script=script, directory=directory, max_model_len=4000)

    return start
