"""Functions that take what hypothesis draws; each ends well or in an error of Strata's own tree, whatever that is."""

from __future__ import annotations

import asyncio
import io
import json
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from strata.cli.client import Client
from strata.errors import CheckpointError, EngineError, OptionError, RequestError
from strata.server.parse import parse
from strata.server.routes import BODIES
from strata.server.template import ChatTemplate
from strata.store.convert import convert
from strata.store.reader import Store
from strata.store.sources.gguf_file import GGUFFile
from strata.store.sources.safetensors_files import SafetensorsFiles
from tests.engine.tiny_llama import write_checkpoint
from tests.fuzz.mutations import CHANGES, Changes, changed, joined, mutated
from tests.server.output.reading import read
from tests.server.output.test_splits import FRAGMENTS, PARSERS, texts
from tests.server.test_malformed import VALID
from tests.server.test_protocol import Connection

ROUTES = dict(
    zip(
        BODIES,
        ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/generate", "/tokenize", "/detokenize"),
        strict=True,
    )
)
HTTP = [
    *[
        "GET / HTTP/1.1\r\n",
        "POST /v1/completions HTTP/1.1\r\n",
        "HTTP/1.1",
        "PRI * HTTP/2.0\r\n",
        "\r\n",
        "\r",
        "\n",
        "\0",
    ],
    *[
        "Host: a\r\n",
        "Content-Length: 3\r\n",
        "Content-Length: -1\r\n",
        "Transfer-Encoding: chunked\r\n",
        "3\r\nabc\r\n",
    ],
    *[
        "0\r\n\r\n",
        "ffffffffffffffffff\r\n",
        "1;a=b\r\n",
        "Connection: close\r\n",
        "Connection: upgrade\r\nUpgrade: h2c\r\n",
    ],
    *["Expect: 100-continue\r\n", "X: ", " folded\r\n", "abc", ":", "a" * 70_000],
]
JINJA = [
    *[
        "{{ ",
        " }}",
        "{% ",
        " %}",
        "{# ",
        " #}",
        ".",
        "|",
        "~",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "'",
        '"',
        "-",
        "%",
        "1",
        "== ",
    ],
    *["messages", "messages[0].content", "tools", "bos_token", "m.role", "loop.index", "self", "range(9)", "f(1)"],
    *[
        "{% for m in messages %}",
        "{% endfor %}",
        "{% if m %}",
        "{% else %}",
        "{% endif %}",
        "{% set x = ",
        "is defined",
    ],
    *["{% macro f(a) %}", "{% endmacro %}", "{% generation %}", "tojson", "__class__", "attr('__init__')"],
    *["namespace(a=1)", "raise_exception('a')", "strftime_now('%d')"],
]
EVENTS = [
    *[
        "data: ",
        "\n",
        "\n\n",
        "\r",
        "[DONE]",
        "{",
        "}",
        "]}",
        '{"choices":[',
        '{"delta":{"content":"a"}}',
        "null",
        "1",
        '"',
    ],
    *['{"error":{"message":"a"}}', '"finish_reason":"stop"', '{"choices":[{"delta":null}]}', ": comment", "event: x"],
]


# By name: makes what draws inputs and tries them, which takes hypothesis's settings once.
TARGETS: dict[str, Callable[[], Callable[[], None]]] = {}


def target(*strategies: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function with what its arguments are drawn from."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        TARGETS[function.__name__] = lambda: given(*strategies)(function)
        return function

    return register


@cache
def folder() -> Path:
    """For files, of this process."""
    kept = tempfile.TemporaryDirectory(prefix="strata-fuzz-")
    folder.kept = kept  # type: ignore[attr-defined]  # until the interpreter ends
    return Path(kept.name)


@cache
def sound_store() -> tuple[Path, dict[str, Any], bytes]:
    """A store, its table, and the bytes of its first shard."""
    checkpoint = write_checkpoint(folder() / "checkpoint")
    path = folder() / "store"
    convert(str(checkpoint), path, "int8")
    shard = next(path.rglob("*.safetensors"))
    return path, json.loads((path / "config.json").read_text()), shard.read_bytes()


@cache
def sound_gguf() -> bytes:
    """A small file with metadata of each kind, and tensors."""
    path = folder() / "sound.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_string("a", "text")
    writer.add_uint32("b", 7)
    writer.add_array("c", ["x", "y"])
    writer.add_array("d", [1, 2, 3])
    writer.add_float32("e", 0.5)
    writer.add_tensor("w", np.ones((2, 32), np.float32))
    writer.add_tensor("v", np.ones((64,), np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


@cache
def sound_safetensors() -> bytes:
    """The weights of a tiny checkpoint."""
    return (write_checkpoint(folder() / "weights") / "model.safetensors").read_bytes()


@target(st.data())
def request_bodies(data: st.DataObject) -> None:
    """Nearly sound bodies of every route."""
    schema: type[BaseModel] = data.draw(st.sampled_from(BODIES))
    raw = json.dumps(data.draw(mutated(VALID[ROUTES[schema]]))).encode()
    with suppress(RequestError):
        parse(schema, raw)  # type: ignore[type-var]


@target(st.sampled_from(BODIES), st.sampled_from(list(VALID)), CHANGES)
def request_bytes(schema: type[BaseModel], route: str, changes: Changes) -> None:
    """Bodies whose bytes were changed."""
    with suppress(RequestError):
        parse(schema, changed(json.dumps(VALID[route]).encode(), changes))  # type: ignore[type-var]


@target(joined(HTTP), st.sets(st.integers(1, 400), max_size=6))
def http_bytes(text: str, cuts: set[int]) -> None:
    """What comes over a connection, in pieces."""

    async def run() -> bytes:
        failures: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        connection = Connection()
        connection.answering.set()
        raw = text.encode("utf-8", "surrogatepass")
        borders = [0, *sorted(cut for cut in cuts if cut < len(raw)), len(raw)]
        for start, end in pairwise(borders):
            if not connection.wire.is_closed:
                connection.protocol.data_received(raw[start:end])
                await asyncio.sleep(0)
        connection.protocol.connection_lost(None)
        await asyncio.gather(*connection.state.tasks)
        assert not failures, failures
        return connection.wire.sent

    sent = asyncio.run(run())
    assert sent == b"" or sent.startswith(b"HTTP/1.1 "), sent[:80]


@target(
    joined(JINJA),
    st.lists(st.fixed_dictionaries({"role": st.text(max_size=4), "content": st.text(max_size=9)}), max_size=3),
)
def templates(source: str, messages: Sequence[dict[str, str]]) -> None:
    """Chat templates, and conversations."""
    with suppress(CheckpointError, RequestError):
        assert isinstance(ChatTemplate(source, {"bos_token": "<s>"}, origin="fuzz").render(messages), str)


@target(st.sampled_from(list(PARSERS)), texts() | joined(FRAGMENTS), st.sets(st.integers(1, 200), max_size=9))
def answers(name: str, text: str, cuts: set[int]) -> None:
    """What a model writes: calls and reasoning of each format, however it is cut."""
    borders = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    pieces = [text[start:end] for start, end in pairwise(borders)]
    assert read(PARSERS[name](), pieces) == read(PARSERS[name](), [text])


@target(joined(EVENTS))
def chat_events(text: str) -> None:
    """What a server sends to `strata chat`."""
    client = Client("http://127.0.0.1:1", "m")
    client._open = lambda *_: io.BytesIO(text.encode("utf-8", "surrogatepass"))  # type: ignore[method-assign]
    with suppress(EngineError, OptionError):
        for piece in client.stream([]):
            assert isinstance(piece.text, str)


@target(CHANGES)
def gguf_headers(changes: Changes) -> None:
    """Metadata and places of tensors."""
    path = folder() / "changed.gguf"
    path.write_bytes(changed(sound_gguf(), changes))
    with suppress(CheckpointError):
        file = GGUFFile(path)
        for info in file.tensors.values():
            assert len(file.read(info)) == info.num_bytes


@target(CHANGES)
def safetensors_headers(changes: Changes) -> None:
    """Names, types and places of tensors, and the tensors."""
    path = folder() / "changed"
    path.mkdir(exist_ok=True)
    (path / "model.safetensors").write_bytes(changed(sound_safetensors()[:4096], changes) + sound_safetensors()[4096:])
    with suppress(CheckpointError):
        files = SafetensorsFiles(path)
        for name, tensor in files.tensors.items():
            assert tuple(files.read(name).shape) == tensor.shape


@target(st.data())
def stores(data: st.DataObject) -> None:
    """A store's table, or its weights."""
    path, table, shard = sound_store()
    (file,) = list(path.rglob("*.safetensors"))[:1]
    if data.draw(st.booleans()):
        (path / "config.json").write_text(json.dumps(data.draw(mutated(table))))
        file.write_bytes(shard)
    else:
        (path / "config.json").write_text(json.dumps(table))
        file.write_bytes(changed(shard, data.draw(CHANGES)))
    with suppress(CheckpointError):
        for _ in Store.open(path).load():
            pass
