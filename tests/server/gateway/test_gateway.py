"""The gateway: LiteLLM's proxy before servers, asked by OpenAI's client."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from strata.engine.fake import FakeEngine
from strata.server.app import Access
from strata.server.keys import ApiKeys
from tests.environment import gateway_python
from tests.server.conftest import Live, run_live
from tests.server.gateway.proxy import Proxy, key, secret_of

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        not gateway_python().exists(), reason="without LiteLLM's proxy: python3 tests/environment.py gateway"
    ),
]

HELLO: list[Any] = [{"role": "user", "content": "a secret of mine"}]
ENGINE_KEY = "the-engine-s-own-key"
Client = Callable[[str], openai.OpenAI]
Serve = Callable[..., Live]


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    made = Proxy(tmp_path_factory.mktemp("gateway"))
    made.tell({})
    with made.running():
        yield made


@pytest.fixture
def client(proxy: Proxy) -> Iterator[Client]:
    """OpenAI's client with the key of that Secret."""
    with ExitStack() as stack:

        def make(name: str) -> openai.OpenAI:
            return stack.enter_context(
                openai.OpenAI(base_url=f"{proxy.url}/v1", api_key=secret_of(name), max_retries=0, timeout=60)
            )

        yield make


@pytest.fixture
def served(make_engine: Callable[..., FakeEngine], tmp_path: Path) -> Iterator[Serve]:
    """A server that wants a key, and serves a model of that name."""
    with ExitStack() as stack:

        def start(name: str, text: str = "hello world") -> Live:
            (tmp_path / "keys").write_text(ENGINE_KEY)
            access = Access(ApiKeys(tmp_path / "keys"))
            return stack.enter_context(run_live(make_engine(text), access, name=name))

        yield start


def ask(opened: openai.OpenAI, model: str) -> str | None:
    return opened.chat.completions.create(model=model, messages=HELLO).choices[0].message.content


def rest(stream: Any) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def again_and_again(call: Callable[[], object]) -> None:
    """Until it raises."""
    while True:
        call()


def test_every_model_answers_at_one_url(proxy: Proxy, client: Client, served: Serve) -> None:
    llama, qwen = served("llama", "from llama"), served("qwen", "from qwen")
    proxy.tell({"a/llama": (llama.url, ENGINE_KEY), "b/qwen": (qwen.url, ENGINE_KEY)}, [key("all")])
    opened = client("all")
    assert sorted(model.id for model in opened.models.list()) == ["llama", "qwen"]
    assert ask(opened, "llama") == "from llama"
    assert ask(opened, "b/qwen") == "from qwen"
    stream = opened.chat.completions.create(
        model="qwen", messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert rest(chunks) == "from qwen"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 0
    assert opened.completions.create(model="llama", prompt="hello").choices[0].text == "from llama"
    assert opened.responses.create(model="llama", input="hello").output_text == "from llama"
    with pytest.raises(openai.BadRequestError, match="Invalid model name passed in model=other"):
        ask(opened, "other")


def test_of_two_namespaces_the_first_has_the_name(proxy: Proxy, client: Client, served: Serve) -> None:
    first, second = served("llama", "from the first"), served("llama", "from the second")
    proxy.tell({"a/llama": (first.url, ENGINE_KEY), "b/llama": (second.url, ENGINE_KEY)}, [key("all")])
    opened = client("all")
    assert sorted(model.id for model in opened.models.list()) == ["b/llama", "llama"]
    assert [ask(opened, name) for name in ("llama", "a/llama", "b/llama")] == [
        "from the first",
        "from the first",
        "from the second",
    ]


def test_anthropic_s_messages_become_chats(proxy: Proxy, served: Serve) -> None:
    proxy.tell({"a/llama": (served("llama", "from llama").url, ENGINE_KEY)}, [key("all")])
    body = {"model": "llama", "max_tokens": 100, "messages": HELLO}
    headers = {"x-api-key": secret_of("all")}
    answer = httpx.post(f"{proxy.url}/v1/messages", json=body, headers=headers, trust_env=False, timeout=60)
    assert answer.json()["content"][0]["text"] == "from llama"


def test_who_has_no_key_gets_nothing(proxy: Proxy, client: Client, served: Serve) -> None:
    llama = served("llama")
    proxy.tell({"a/llama": (llama.url, ENGINE_KEY)}, [key("all")])
    with pytest.raises(openai.AuthenticationError, match="none of the gateway's"):
        ask(client("somebody"), "llama")
    with pytest.raises(openai.AuthenticationError):
        client("somebody").models.list()
    for headers in ({}, {"Authorization": "Bearer"}, {"Authorization": "Basic c3RyYXRh"}):
        assert httpx.get(f"{proxy.url}/v1/models", headers=headers, trust_env=False).status_code == 401
    assert llama.engine.requests == []


def test_a_key_s_models(proxy: Proxy, client: Client, served: Serve) -> None:
    llama, qwen = served("llama", "from llama"), served("qwen")
    models = {"a/llama": (llama.url, ENGINE_KEY), "b/qwen": (qwen.url, ENGINE_KEY)}
    proxy.tell(models, [key("team", models="a/*"), key("nobody", models="gone")])
    opened = client("team")
    assert [model.id for model in opened.models.list()] == ["llama"]
    assert ask(opened, "llama") == ask(opened, "a/llama") == "from llama"
    for name in ("qwen", "b/qwen"):
        with pytest.raises(openai.PermissionDeniedError, match="is not available for this API key"):
            ask(opened, name)
    assert list(client("nobody").models.list()) == []
    with pytest.raises(openai.PermissionDeniedError):
        ask(client("nobody"), "llama")
    assert qwen.engine.requests == []


def test_requests_a_minute(proxy: Proxy, client: Client, served: Serve) -> None:
    llama = served("llama")
    proxy.tell({"a/llama": (llama.url, ENGINE_KEY)}, [key("slow", requests_per_minute="2"), key("all")])
    for _ in range(2):
        ask(client("slow"), "llama")
    with pytest.raises(openai.RateLimitError, match=r"for api_key: slow\. Limit type: requests\. Current limit: 2"):
        ask(client("slow"), "llama")
    assert ask(client("all"), "llama") == "hello world"
    assert len(llama.engine.requests) == 3


def test_tokens_a_minute(proxy: Proxy, client: Client, served: Serve) -> None:
    proxy.tell({"a/llama": (served("llama").url, ENGINE_KEY)}, [key("brief", tokens_per_minute="1")])
    with pytest.raises(openai.RateLimitError, match=r"for api_key: brief\. Limit type: tokens\. Current limit: 1"):
        again_and_again(lambda: ask(client("brief"), "llama"))  # an answer's are counted a moment after its end


def test_a_stream_goes_on_while_all_around_it_changes(proxy: Proxy, client: Client, served: Serve) -> None:
    text = "all of this arrives, whatever comes and goes meanwhile"
    llama, qwen = served("llama", text), served("qwen", "from qwen")
    proxy.tell({"a/llama": (llama.url, ENGINE_KEY)}, [key("leaving")])
    llama.engine.pause()
    stream = client("leaving").chat.completions.create(model="llama", messages=HELLO, stream=True)
    llama.engine.release(3)
    beginning = next(chunk.choices[0].delta.content for chunk in stream if chunk.choices[0].delta.content)
    # Another model, with another key, is there; then the model and the key of the stream are gone.
    proxy.tell({"a/llama": (llama.url, ENGINE_KEY), "b/qwen": (qwen.url, ENGINE_KEY)}, [key("leaving"), key("new")])
    assert sorted(model.id for model in client("new").models.list()) == ["llama", "qwen"]
    assert ask(client("new"), "qwen") == "from qwen"
    proxy.tell({"b/qwen": (qwen.url, ENGINE_KEY)}, [key("new")])
    assert [model.id for model in client("new").models.list()] == ["qwen"]
    with pytest.raises(openai.AuthenticationError):
        ask(client("leaving"), "qwen")
    llama.engine.resume()
    assert beginning + rest(stream) == text


def test_a_model_s_new_address_counts_at_once(proxy: Proxy, client: Client, served: Serve) -> None:
    proxy.tell({"a/llama": (served("llama", "here").url, ENGINE_KEY)}, [key("all")])
    assert ask(client("all"), "llama") == "here"
    proxy.tell({"a/llama": (served("llama", "there").url, ENGINE_KEY)}, [key("all")])
    assert ask(client("all"), "llama") == "there"


def test_a_client_cannot_send_a_model_s_key_elsewhere(proxy: Proxy, client: Client, served: Serve) -> None:
    llama, elsewhere = served("llama"), served("llama", "caught")
    proxy.tell({"a/llama": (llama.url, ENGINE_KEY)}, [key("all")])
    for field in ("api_base", "base_url"):
        with pytest.raises(openai.APIStatusError):
            client("all").chat.completions.create(
                model="llama", messages=HELLO, extra_body={field: f"{elsewhere.url}/v1"}
            )
    assert elsewhere.engine.requests == []


@pytest.mark.parametrize(
    "path", ["/", "/ui/", "/model/info", "/v1/embeddings", "/key/generate", "/v1/models/../../ui/"]
)
def test_of_litellm_s_own_pages_none_is_there(proxy: Proxy, path: str) -> None:
    answer = httpx.get(f"{proxy.url}{path}", headers={"Authorization": f"Bearer {secret_of('all')}"}, trust_env=False)
    assert answer.status_code == 404
    assert "OpenAI's API below /v1" in answer.text


def test_a_stream_ends_whole_before_the_proxy_does(
    served: Serve, tmp_path_factory: pytest.TempPathFactory, proxy: Proxy
) -> None:
    """Another one: it is told to end. What both logged holds no key, and nothing of what was asked."""
    text = "the last words arrive before it ends"
    llama = served("llama", text)
    ending = Proxy(tmp_path_factory.mktemp("ending"))
    ending.tell({"a/llama": (llama.url, ENGINE_KEY)}, [key("all")])
    llama.engine.pause()
    client = openai.OpenAI(base_url=f"{ending.url}/v1", api_key=secret_of("all"), max_retries=0)
    with ending.running(), client as opened:
        stream = opened.chat.completions.create(model="llama", messages=HELLO, stream=True)
        llama.engine.release(3)
        beginning = next(chunk.choices[0].delta.content for chunk in stream if chunk.choices[0].delta.content)
        ending.terminate()
        with pytest.raises(openai.APIConnectionError):  # it takes no others from now on
            again_and_again(opened.models.list)
        llama.engine.resume()
        assert beginning + rest(stream) == text
        assert ending.wait() == -signal.SIGTERM  # which uvicorn raises again when all is done
    for log in (ending.log.read_text(), proxy.log.read_text()):
        assert "models and 1 clients' keys from now on" in log
        assert not [word for word in (ENGINE_KEY, "0123456789abcdef", "a secret of mine") if word in log]
