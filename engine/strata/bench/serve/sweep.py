"""From what is asked for to a report: warm up, then one level of load after another."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from strata.bench.serve.client import Answer, BenchClient, open_client
from strata.bench.serve.gpus import GpuSampler, sampling
from strata.bench.serve.mix import PUBLISHED, PUBLISHED_STREAMS, Shape, draw, format_mix
from strata.bench.serve.prompts import Prompt, PromptMaker
from strata.bench.serve.report import INTERRUPTED, Report
from strata.bench.serve.summary import Level, read_counters, summarise
from strata.bench.serve.traffic import closed_loop, open_loop
from strata.errors import EngineError, OptionError

if TYPE_CHECKING:
    from strata.store.progress import Phases

REQUESTS_PER_STREAM = 4  # of a level, unless told otherwise
OPEN_LOOP_REQUESTS = 64
_PROGRESS_SECONDS = 0.2
_PROBE_TOKENS = 4
_COUNTS_AT_ONCE = 8  # /tokenize requests while prompts are made


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """``rates``: requests a second of an open loop; without any, ``concurrency`` streams of a closed one."""

    url: str
    model: str | None = None
    api_key: str | None = None
    endpoint: str = "completions"
    mix: tuple[Shape, ...] = PUBLISHED
    concurrency: tuple[int, ...] = PUBLISHED_STREAMS
    rates: tuple[float, ...] = ()
    num_requests: int | None = None  # of a level
    num_warmup: int = 4
    seed: int = 0
    timeout_seconds: float = 600.0


@dataclass(frozen=True, slots=True)
class _Request:
    prompt: Prompt
    output_tokens: int


async def run(options: ServeOptions, progress: Phases, *, nvml: Any | None = None) -> Report:
    """Measure. Cancelling ends it with a report of what there is until then, as does a server that is gone.

    ``progress``: called with (level, chunks of text, tokens asked for). ``nvml``: stands in for pynvml. Raises
    OptionError when no server answers or it refuses the requests, EngineError when the warm-up fails.
    """
    async with open_client(
        options.url, endpoint=options.endpoint, api_key=options.api_key, timeout_seconds=options.timeout_seconds
    ) as client:
        await client.find_model(options.model)
        _check_lengths(options, client)
        sweep = _Sweep(options, client, progress)
        with sampling(nvml) if client.is_local else nullcontext() as sampler:
            return await sweep.run(sampler)


class _Sweep:
    def __init__(self, options: ServeOptions, client: BenchClient, progress: Phases) -> None:
        self._options = options
        self._client = client
        self._progress = progress
        self._rng = random.Random(options.seed)
        self._maker = PromptMaker(None, self._rng)
        self._levels: list[Level] = []

    async def run(self, sampler: GpuSampler | None) -> Report:
        await self._find_tokenizer()
        await self._warm_up()
        ended_by = None
        try:
            for rate in self._options.rates:
                await self._level(f"{rate:g} requests/s", rate, sampler)
            for streams in () if self._options.rates else self._options.concurrency:
                await self._level(f"{streams} {'stream' if streams == 1 else 'streams'}", streams, sampler)
        except asyncio.CancelledError:
            ended_by = INTERRUPTED
        except EngineError as error:
            ended_by = str(error)
        return self._report(ended_by)

    async def _find_tokenizer(self) -> None:
        try:
            await self._client.count("one two three")
        except (LookupError, ValueError, TypeError):
            return
        self._maker = PromptMaker(self._client.count, self._rng)

    async def _warm_up(self) -> None:
        """Find out what the server takes and how it counts; let it build what it builds at its first requests."""
        probes = await self._maker.probes()
        reported = [await self._probe(prompt) for prompt in probes]
        self._maker.learn(probes, [count for count in reported if count is not None])
        requests = await self._requests(self._options.num_warmup)
        await self._watch("warm-up", requests, lambda send: closed_loop(requests, send, concurrency=len(requests)))

    async def _probe(self, prompt: Prompt) -> int | None:
        """Tokens of the prompt as the server reports them."""
        answer = await self._client.generate(prompt, _PROBE_TOKENS)
        if answer.error is not None and answer.error.startswith(("HTTP 400", "HTTP 422")):
            self._client.takes_ignore_eos = False  # an extension that not every server knows
            answer = await self._client.generate(prompt, _PROBE_TOKENS)
        if answer.error is not None:
            message = f"{self._client.url} does not answer /v1/{self._options.endpoint}: {answer.error}"
            if answer.error.startswith(("HTTP 404", "HTTP 405")):
                other = "chat" if self._options.endpoint == "completions" else "completions"
                raise OptionError(f"{message}; try --endpoint {other}")
            raise OptionError(message) if answer.error.startswith("HTTP 4") else EngineError(message)
        return answer.prompt_tokens

    async def _level(self, load: str, value: float, sampler: GpuSampler | None) -> None:
        is_open = bool(self._options.rates)
        count = self._options.num_requests or (OPEN_LOOP_REQUESTS if is_open else int(value) * REQUESTS_PER_STREAM)
        requests = await self._requests(count)
        before = read_counters(await self._client.metrics())
        if sampler is not None:
            sampler.take()
        answers: list[Answer] = []

        def traffic(send: Callable[[_Request], Any]) -> Any:
            if is_open:
                return open_loop(requests, send, rate=value, rng=self._rng)
            return closed_loop(requests, send, concurrency=int(value))

        try:
            await self._watch(load, requests, traffic, answers)
        finally:  # cancelled, too: what there is counts
            gpus = sampler.take() if sampler is not None else ()
            after = read_counters(await asyncio.shield(self._client.metrics()))
            if answers:
                self._levels.append(
                    summarise(load, value, answers, num_requests=count, before=before, after=after, gpus=gpus)
                )

    async def _requests(self, count: int) -> list[_Request]:
        gate = asyncio.Semaphore(_COUNTS_AT_ONCE)

        async def make(shape: Shape) -> _Request:
            async with gate:
                return _Request(await self._maker.make(shape.prompt_tokens), shape.output_tokens)

        return list(await asyncio.gather(*map(make, draw(self._options.mix, count, self._rng))))

    async def _watch(
        self,
        phase: str,
        requests: list[_Request],
        traffic: Callable[[Callable[[_Request], Any]], Any],
        answers: list[Answer] | None = None,
    ) -> None:
        """Run the traffic while progress is told."""
        total, begin = sum(request.output_tokens for request in requests), self._client.num_chunks

        async def send(request: _Request) -> None:
            answer = await self._client.generate(request.prompt, request.output_tokens)
            if answers is not None:
                answers.append(answer)

        async def tell() -> None:
            while True:
                self._progress(phase, min(total, self._client.num_chunks - begin), total)
                await asyncio.sleep(_PROGRESS_SECONDS)

        teller = asyncio.create_task(tell())
        try:
            await traffic(send)
        finally:
            teller.cancel()
        self._progress(phase, total, total)

    def _report(self, ended_by: str | None) -> Report:
        options = self._options
        loop = "open loop, Poisson arrivals" if options.rates else "closed loop"
        settings = {
            "server": self._client.url,
            "model": self._client.model,
            "endpoint": f"/v1/{'chat/' if options.endpoint == 'chat' else ''}completions, streamed",
            "mix": f"{format_mix(options.mix)} (weight:prompt tokens:output tokens)",
            "load": f"{loop}, seed {options.seed}",
            "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        }
        return Report(
            f"{self._client.model} at {self._client.url}",
            settings,
            tuple(self._notes()),
            tuple(self._levels),
            ended_by,
        )

    def _notes(self) -> list[str]:
        notes = [
            "ITL is the time between two chunks of text of an answer; a chunk is a token where the server sends each"
        ]
        if self._maker.is_exact:
            notes.append("prompts have their exact number of tokens, counted by the server's /tokenize")
        else:
            notes.append("prompts have about their number of tokens: the server has no /tokenize")
        if not self._client.takes_ignore_eos:
            notes.append("the server does not take ignore_eos: answers may be shorter than asked for")
        if not all(level.is_counted for level in self._levels):
            notes.append("the server reports no usage: chunks of text stand for tokens")
        if any(level.engine for level in self._levels):
            notes.append("the engine's tok/s are over the time of its steps alone; waiting for requests does not count")
        return notes


def _check_lengths(options: ServeOptions, client: BenchClient) -> None:
    limit = client.max_model_len
    for shape in options.mix:
        length = shape.prompt_tokens + shape.output_tokens
        if limit is not None and length > limit:
            raise OptionError(
                f"the mix asks for {shape.prompt_tokens} + {shape.output_tokens} = {length} tokens; {client.model} "
                f"takes {limit} together: serve it with a larger --max-model-len, or give a --mix that fits"
            )
