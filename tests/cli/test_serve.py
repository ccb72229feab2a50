"""`strata serve` as a process: a real model answers, and what cannot be served says why."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import jsonschema_rs
import openai
import pytest

from strata.cli.main import build_parser, main
from strata.cli.serve import access_through, default_name, ready_message
from strata.cli.serve_options import engine_config
from strata.config import ARCHITECTURES
from strata.config.model_name import BuiltinName
from strata.engine.client import EngineClient
from strata.engine.fake import FakeEngine
from strata.engine.load import load_engine
from strata.errors import HardwareError, OptionError, UsageError
from strata.server.keys import ApiKeys
from strata.server.service import Service
from strata.store.sources.builtin import builtin_path
from tests.cli.conftest import COMMAND, Server, running_server
from tests.engine.tiny_llama import CONFIG, write_checkpoint

Strata = Callable[..., subprocess.CompletedProcess[str]]
BUILTIN = "builtin://smollm2-135m"


# --- a model that is served


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The model that comes along; ends with SIGTERM and must then exit with 0."""
    log = tmp_path_factory.mktemp("serve") / "log"
    with running_server(log, BUILTIN, "--max-model-len", "512", "--served-model-name", "smol") as running:
        yield running


@pytest.mark.timeout(600)
def test_a_real_model_answers_openais_client(server: Server) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=300) as client:
        question: list[openai.types.chat.ChatCompletionMessageParam] = [
            {"role": "user", "content": "What is the capital of France? Answer in English."}
        ]
        whole = client.chat.completions.create(model="smol", messages=question, temperature=0, max_tokens=24)
        stream = client.chat.completions.create(
            model="smol",
            messages=question,
            temperature=0,
            max_tokens=24,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
    text = whole.choices[0].message.content
    assert text is not None
    assert "Paris" in text  # the likeliest token by 0.9 at every step, so no rounding changes it
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text
    assert whole.usage is not None
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens  # the cached ones differ: the prompt was there
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens


def test_a_real_model_answers_in_the_form_that_is_asked(server: Server) -> None:
    schema = {
        "type": "object",
        "properties": {"capital": {"type": "string", "maxLength": 12}, "size": {"enum": ["small", "large"]}},
        "required": ["capital", "size"],
        "additionalProperties": False,
    }
    body = {
        "messages": [{"role": "user", "content": "The capital of France, as JSON."}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": schema}},
        "n": 2,
        "seed": 1,
        "logprobs": True,
        "top_logprobs": 2,
    }
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=300).json()
    for choice in answer["choices"]:
        jsonschema_rs.validate(schema, json.loads(choice["message"]["content"]))
        content = choice["logprobs"]["content"]
        assert b"".join(bytes(token["bytes"]) for token in content).decode() == choice["message"]["content"]
        assert all(token["logprob"] <= 0 and len(token["top_logprobs"]) == 2 for token in content)
    body = {"prompt": "a", "structured_outputs": {"regex": "("}}
    refused = httpx.post(f"{server.url}/v1/completions", json=body, timeout=300)
    assert refused.status_code == 400
    assert "unclosed group" in refused.json()["error"]["message"]


def test_a_browser_gets_the_page(server: Server) -> None:
    page = httpx.get(server.url)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "<title>Strata</title>" in page.text
    assert httpx.get(f"{server.url}/page/page.js").status_code == 200


def test_a_seed_gives_the_same_text_again(server: Server) -> None:
    body = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 1.0, "seed": 7}
    texts = {httpx.post(f"{server.url}/generate", json=body, timeout=300).json()["text"] for _ in range(2)}
    assert len(texts) == 1


def test_the_real_metrics_count(server: Server) -> None:
    body = {"prompt": "Once upon a time", "max_tokens": 3, "ignore_eos": True}
    before = httpx.get(f"{server.url}/metrics").text
    assert httpx.post(f"{server.url}/generate", json=body, timeout=300).json()["usage"]["completion_tokens"] == 3
    after = httpx.get(f"{server.url}/metrics").text

    def value(text: str, name: str) -> float:
        return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))

    assert value(after, "strata_generation_tokens_total") == value(before, "strata_generation_tokens_total") + 3
    assert value(after, 'strata_load_bytes{state="done"}') == value(after, 'strata_load_bytes{state="total"}') > 0
    assert value(after, 'strata_kv_blocks{state="free"}') > 0


def test_a_prompt_that_comes_again_is_not_computed_again(server: Server) -> None:
    body = {"prompt": list(range(1000, 1100)), "max_tokens": 1}
    usages = [httpx.post(f"{server.url}/v1/completions", json=body, timeout=300).json()["usage"] for _ in range(2)]
    assert [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages] == [0, 96]  # six blocks of 16
    metrics = httpx.get(f"{server.url}/metrics").text
    assert re.search(r"^strata_prefix_cache_hits_total [1-9]", metrics, re.MULTILINE)
    assert not re.search(r'^strata_kv_blocks{state="cached"} 0.0$', metrics, re.MULTILINE)


def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(server: Server) -> None:
    response = httpx.post(f"{server.url}/v1/completions", json={"prompt": [5] * 600})
    assert response.status_code == 400
    assert "600 tokens; max-model-len is 512" in response.json()["error"]["message"]


def test_the_port_of_a_running_server_is_in_use(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    port = server.url.rsplit(":", 1)[1]
    assert main(["serve", BUILTIN, "--port", port]) == 2
    error = capsys.readouterr().err
    assert f"port {port} on 127.0.0.1 is in use by another program" in error
    assert "--port" in error


def test_a_client_that_leaves_frees_the_blocks(server: Server) -> None:
    body = {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=300) as response:
        next(response.iter_lines())
    while 'strata_kv_blocks{state="used"} 0.0' not in (metrics := httpx.get(f"{server.url}/metrics").text):
        pass
    assert 'strata_requests_total{outcome="abort"} 1.0' in metrics


def test_a_server_that_is_told_to_end_finishes_the_answer_that_it_gives(server: Server) -> None:
    """The last of the server's tests."""
    body = {"prompt": "Once upon a time", "max_tokens": 40, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=300) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: {")
        server.process.send_signal(signal.SIGTERM)
        while (ready := httpx.get(f"{server.url}/ready")).status_code == 200:
            pass
        for refused in (ready, httpx.post(f"{server.url}/generate", json={"prompt": "a"})):
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_stopping")
        events = [line for line in lines if line]
        assert events[-1] == "data: [DONE]"
        assert '"finish_reason":"length"' in events[-2]
    assert server.process.wait() == 0, server.log.read_text()  # by itself


@pytest.mark.parametrize("needs_key", [False, True])
def test_a_ready_server_says_how_to_try_it(needs_key: bool) -> None:
    service = Service(FakeEngine(), model_names=("tiny", "small"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        first, page, chat, curl = ready_message(service, listener, needs_key=needs_key).splitlines()
    assert first == f"Strata serves tiny, small at {url}"
    assert f"{url} in a browser" in page
    assert f'strata chat --url {url} "Why is the sky blue?"' in chat
    assert f"curl {url}/v1/chat/completions" in curl
    assert ("STRATA_API_KEY=KEY strata" in chat, "-H 'Authorization: Bearer KEY' -d" in curl) == (needs_key, needs_key)


@pytest.mark.parametrize(
    ("host", "has_keys", "is_told"),
    [
        pytest.param("127.0.0.1", False, False, id="this machine alone"),
        pytest.param("0.0.0.0", False, True, id="other machines"),
        pytest.param("0.0.0.0", True, False, id="other machines with a key"),
    ],
)
def test_a_server_that_is_open_to_all_warns(
    host: str, has_keys: bool, is_told: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "keys").write_text("sk-one")
    with socket.create_server((host, 0)) as listener:
        access = access_through(listener, ApiKeys(tmp_path / "keys") if has_keys else None, ())
    assert ("--api-key-file" in caplog.text) == is_told
    assert access.is_local == (host == "127.0.0.1")


# --- models that cannot be served


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STRATA_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def load(model: str) -> None:
    """As the engine's process does for ``strata serve``, in this one: importing torch once takes seconds."""
    load_engine(engine_config(build_parser().parse_args(["serve", model, "--device", "cpu"])))


def nothing_there(directory: Path) -> tuple[str, str]:
    return str(directory / "nowhere"), "nowhere"


def no_model(directory: Path) -> tuple[str, str]:
    (directory / "notes.txt").write_text("no model")
    return str(directory), "is not a model: it holds notes.txt"


def cut_gguf(directory: Path) -> tuple[str, str]:
    with builtin_path(BuiltinName("smollm2-135m")).open("rb") as whole:
        (directory / "cut.gguf").write_bytes(whole.read(4 << 20))
    return str(directory / "cut.gguf"), "cut.gguf"


def cut_safetensors(directory: Path) -> tuple[str, str]:
    path = write_checkpoint(directory / "model") / "model.safetensors"
    os.truncate(path, path.stat().st_size - 1000)
    return str(path.parent), "model.safetensors"


def no_tokenizer(directory: Path) -> tuple[str, str]:
    path = write_checkpoint(directory / "model")
    (path / "tokenizer.json").unlink()
    return str(path), "tokenizer.json"


def unknown_architecture(directory: Path) -> tuple[str, str]:
    path = write_checkpoint(directory / "model")
    (path / "config.json").write_text(json.dumps({**CONFIG, "architectures": ["MambaForCausalLM"]}))
    return str(path), ", ".join(sorted(ARCHITECTURES))


def unknown_builtin(_: Path) -> tuple[str, str]:
    return "builtin://gpt-5", "smollm2-135m"


@pytest.mark.parametrize(
    "make", [nothing_there, no_model, cut_gguf, cut_safetensors, no_tokenizer, unknown_architecture, unknown_builtin]
)
def test_a_model_that_cannot_be_served_is_named(
    cache: Path, tmp_path: Path, make: Callable[[Path], tuple[str, str]]
) -> None:
    """What the engine's process tells the server's."""
    (tmp_path / "input").mkdir()
    model, words = make(tmp_path / "input")
    with pytest.raises(UsageError) as failed:
        load(model)
    assert words in str(failed.value).splitlines()[-1]
    assert list(cache.glob("*/config.json")) == [], "no store is left behind"


def test_the_reason_of_a_failed_start_is_the_last_line_and_the_pods_last_word(strata: Strata, tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    model, words = cut_gguf(tmp_path / "input")
    result = strata("serve", model, "--port", "0", "--device", "cpu")
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    last = result.stderr.splitlines()[-1]
    assert last.startswith("strata: error: ")
    assert words in last
    assert words in (tmp_path / "last-words").read_text()


def test_a_store_with_a_cut_shard_or_without_tokenizer_is_named(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint, store = write_checkpoint(tmp_path / "checkpoint"), tmp_path / "store"
    assert main(["convert", str(checkpoint), "--output-dir", str(store), "--dtype", "bf16"]) == 0
    assert capsys.readouterr().out == f"{store} is ready: strata serve {store}\n"

    (store / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    with pytest.raises(UsageError, match=re.escape(str(store / "tokenizer.json"))):
        load(str(store))
    (tmp_path / "tokenizer.json").rename(store / "tokenizer.json")

    shard = next(store.rglob("*.safetensors"))
    os.truncate(shard, shard.stat().st_size - 1)
    with pytest.raises(UsageError, match=re.escape(shard.name)):
        load(str(store))


def test_a_conversion_leaves_what_is_there_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "mine").write_text("mine")
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    assert main(["convert", str(checkpoint), "--output_dir", str(tmp_path / "store")]) == 2
    assert "not empty" in capsys.readouterr().err
    assert [entry.name for entry in (tmp_path / "store").iterdir()] == ["mine"]


def test_the_published_spellings_convert_too(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    options = ["--output_dir", str(tmp_path / "store"), "--expert_shard_size", "1"]
    assert main(["convert", "--model_name_or_path", str(checkpoint), *options]) == 0
    assert (tmp_path / "store" / "config.json").is_file()


def test_a_port_in_use_is_known_before_the_model_is_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "/no/such/model", "--port", str(port)]) == 2
    error = capsys.readouterr().err
    assert f"port {port} on 127.0.0.1 is in use" in error
    assert "/no/such/model" not in error


def test_a_model_that_is_not_there_is_known_before_the_engine_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(EngineClient, "start", lambda client: pytest.fail("the engine's process starts"))
    for path, words in ((tmp_path / "nowhere", "No such file"), (tmp_path, "it is empty")):
        assert main(["serve", str(path), "--port", "0"]) == 2
        assert words in capsys.readouterr().err


@pytest.mark.usefixtures("no_card")
def test_a_card_that_is_not_there_is_known_before_anything_is_converted(cache: Path, tmp_path: Path) -> None:
    model = str(write_checkpoint(tmp_path / "model"))
    for command, run in (
        (["serve"], lambda arguments: load_engine(engine_config(arguments))),
        (["bench", "decode"], lambda arguments: arguments.run(arguments)),
    ):
        arguments = build_parser().parse_args([*command, model, "--device", "cuda"])
        with pytest.raises(HardwareError, match="device 'cuda' was asked for"):
            run(arguments)
        assert not cache.exists(), command


def test_an_address_of_another_machine_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", BUILTIN, "--host", "192.0.2.1"]) == 2
    assert "--host" in capsys.readouterr().err


def test_a_server_that_is_stopped_while_it_loads_ends_well(tmp_path: Path) -> None:
    environment = {**os.environ, "STRATA_CACHE_DIR": str(tmp_path / "cache")}
    process = subprocess.Popen(
        [*COMMAND, "serve", BUILTIN, "--port", "0"], stderr=subprocess.PIPE, text=True, env=environment
    )
    assert process.stderr is not None
    with process.stderr:
        assert "loads builtin://" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        log = process.stderr.read()
    assert process.wait() == 0, log
    assert list((tmp_path / "cache").glob("*/config.json")) == []


@pytest.mark.parametrize("phase", ["loads builtin://", "convert: "], ids=["starts", "converts"])
def test_ctrl_c_while_it_loads_ends_all_at_once_without_a_traceback(tmp_path: Path, phase: str) -> None:
    environment = {**os.environ, "STRATA_CACHE_DIR": str(tmp_path / "cache")}
    process = subprocess.Popen(
        [*COMMAND, "serve", BUILTIN, "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    assert process.stderr is not None
    with process.stderr:
        while phase not in (line := process.stderr.readline()):
            assert line, "it ends too early"
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        log = process.stderr.read()
    assert process.wait() == 130, log
    assert "Traceback" not in log
    assert "in flight" not in log
    assert "killing it" not in log


def test_an_engine_that_is_killed_ends_the_server_with_its_reason(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "STRATA_CACHE_DIR": str(tmp_path / "cache"),
        "STRATA_TERMINATION_LOG": str(tmp_path / "last-words"),
    }
    model = str(write_checkpoint(tmp_path / "model"))
    command = [*COMMAND, "serve", model, "--port", "0", "--device", "cpu", "--dtype", "bf16"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
    assert process.stdout is not None
    with process.stdout:
        ready = process.stdout.readline()
        started = re.search(r"engine process (\d+) loads", (tmp_path / "log").read_text())
        assert ready.startswith("Strata serves model"), (tmp_path / "log").read_text()
        assert started is not None
        os.kill(int(started[1]), signal.SIGKILL)
        process.stdout.read()
    assert process.wait() == 1
    last = (tmp_path / "log").read_text().splitlines()[-1]
    assert last.startswith("strata: error: ")
    assert "signal 9" in last
    assert "signal 9" in (tmp_path / "last-words").read_text()


def test_a_load_that_stalls_ends_with_the_reason(strata: Strata, tmp_path: Path) -> None:
    # So short that the engine's imports take longer.
    result = strata("serve", BUILTIN, "--port", "0", "--load-stall-seconds", "0.01")
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert last.startswith("strata: error: loading got no further for 0.01 s")
    assert "loading got no further" in (tmp_path / "last-words").read_text()


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (BUILTIN, "smollm2-135m"),
        ("Qwen/Qwen3-30B-A3B@main", "Qwen/Qwen3-30B-A3B"),
        ("org/tiny-GGUF:Q4_K_M", "org/tiny-GGUF"),
        ("/models/Qwen3-30B-A3B/", "Qwen3-30B-A3B"),
        ("models/tiny.Q4_1.gguf", "tiny.Q4_1"),
        (".", "."),
    ],
)
def test_the_served_name_is_the_last_part_of_the_models(model: str, name: str) -> None:
    assert default_name(model) == name


@pytest.mark.parametrize(
    ("options", "seconds", "prefix_cache"),
    [
        ([], 0.1, True),
        (["--decode-latency-ms", "250", "--prefix-cache", "--enable-chunked-prefill"], 0.25, True),
        (["--decode-latency-ms", "0", "--no-prefix-cache"], None, False),
    ],
)
def test_options_of_the_scheduler_reach_the_engine(
    options: list[str], seconds: float | None, prefix_cache: bool
) -> None:
    config = engine_config(build_parser().parse_args(["serve", "m", *options]))
    assert (config.scheduler.decode_latency_seconds, config.cache.prefix_cache) == (seconds, prefix_cache)


@pytest.mark.parametrize(("options", "speculative"), [([], "off"), (["--speculative", "lookup"], "lookup")])
def test_whether_there_are_drafts_reaches_the_engine(options: list[str], speculative: str) -> None:
    config = engine_config(build_parser().parse_args(["serve", "m", *options]))
    assert config.scheduler.speculative == speculative


@pytest.mark.parametrize(("options", "num_bytes"), [([], None), (["--state-cache-gib", "0.5"], 1 << 29)])
def test_the_room_for_states_that_are_kept_reaches_the_engine(options: list[str], num_bytes: int | None) -> None:
    config = engine_config(build_parser().parse_args(["serve", "m", *options]))
    assert config.cache.state_cache_bytes == num_bytes


def test_options_of_experts_beyond_vram_reach_the_engine() -> None:
    device = engine_config(build_parser().parse_args(["serve", "m", "--pipeline-depth", "3"])).device
    assert device.pipeline_depth == 3


@pytest.mark.parametrize(
    ("options", "where", "threads"),
    [
        pytest.param([], "gpu", 4, id="nothing"),
        pytest.param(["--routing-device", "cpu"], "cpu", 4, id="the CPU"),
        pytest.param(["--cpu-routing-threads", "8"], "auto", 8, id="threads, as published: by trial"),
        pytest.param(["--cpu-routing-threads", "8", "--routing-device", "cpu"], "cpu", 8, id="both"),
        pytest.param(["--cpu-routing-threads", "0", "--routing-device", "auto"], "gpu", 4, id="no thread"),
    ],
)
def test_where_experts_are_chosen_reaches_the_engine(options: list[str], where: str, threads: int) -> None:
    device = engine_config(build_parser().parse_args(["serve", "m", *options])).device
    assert (device.routing_device, device.cpu_routing_threads) == (where, threads)


def test_the_cpu_cannot_choose_without_a_thread() -> None:
    arguments = build_parser().parse_args(["serve", "m", "--cpu-routing-threads", "0", "--routing-device", "cpu"])
    with pytest.raises(OptionError, match="leaves no thread to --routing-device cpu; give 1 or more"):
        engine_config(arguments)
