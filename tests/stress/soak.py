"""Thousands of short requests of every kind at once, many of whose clients leave; afterwards nothing may be left.

Starts ``strata serve`` (or takes ``--url``), sends ``--requests`` of them, and checks: every request ended as it
should, none got a 5xx, the server's own counts add up, no request runs, and every KV block is free. With ``--minutes``
it sends as many as that takes, and the memory of server, engine and card must not grow.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import math
import random
import re
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

import httpx
from tqdm import tqdm

from tests.e2e.chat import metrics
from tests.stress.memory import MIB, Watch, judge, resident, vram

SAMPLES = 240  # of memory, in all

WORDS = (
    "the",
    "a",
    "fox",
    "river",
    "stone",
    "and",
    "of",
    "under",
    "light",
    "quiet",
    "seven",
    "why",
    "not",
    "now",
    "tea",
)


@dataclass(frozen=True, slots=True)
class Order:
    """One request: what to send, and what its client does."""

    path: str
    body: dict[str, object]
    leaves_after: int | None  # chunks of the answer; None: stays to the end
    status: int  # expected


def orders(count: int | None, seed: int) -> Iterator[Order]:
    """The same ones for the same seed: 5 % cannot be served, the client of 20 % leaves in mid-answer. None: without
    end."""
    dice = random.Random(seed)
    for _ in itertools.repeat(None) if count is None else range(count):
        text = " ".join(dice.choices(WORDS, k=dice.choice((1, 4, 12, 60, 150))))
        body: dict[str, object] = {"max_tokens": dice.randint(1, 16), "temperature": dice.choice((0, 0.7, 1.0))}
        path = dice.choice(("/v1/chat/completions", "/v1/completions", "/generate"))
        if path == "/v1/chat/completions":
            body["messages"] = [{"role": "user", "content": text}]
        else:
            body["prompt"] = text
        if path != "/generate":
            body["stream"] = dice.random() < 0.6
        if dice.random() < 0.3:
            body |= {"top_p": 0.9, "top_k": 20, "repetition_penalty": 1.1, "seed": dice.randint(0, 9)}
        if dice.random() < 0.1:
            body["stop"] = dice.choices(WORDS, k=2)
        status = 200
        if dice.random() < 0.05:
            body |= dice.choice(({"max_tokens": 0}, {"temperature": 9}, {"unknown": 1}, {"seed": "x"}))
            status = 400
        leaves = dice.randint(0, 3) if status == 200 and dice.random() < 0.2 else None
        yield Order(path, body, leaves, status)


async def send(client: httpx.AsyncClient, order: Order) -> str:
    """How it ended: "ok", "left", or what was wrong."""
    try:
        async with client.stream("POST", order.path, json=order.body) as response:
            if response.status_code != order.status:
                return f"{response.status_code} instead of {order.status}: {(await response.aread())[:200]!r}"
            if order.leaves_after == 0:
                return "left"
            return await read(response.aiter_raw(), order)
    except httpx.HTTPError as error:
        return f"{type(error).__name__}: {error}"


async def read(chunks: AsyncIterator[bytes], order: Order) -> str:
    count, tail = 0, b""
    async for chunk in chunks:
        count, tail = count + 1, (tail + chunk)[-200:]
        if order.leaves_after is not None and count >= order.leaves_after:
            return "left"
    if order.body.get("stream") and order.status == 200 and not tail.endswith(b"data: [DONE]\n\n"):
        return f"the stream ended without [DONE]: {tail!r}"
    return "ok"


async def soak(url: str, count: int | None, seconds: float, concurrency: int, seed: int) -> Counter[str]:
    """Endings and how often each. No request begins after ``seconds``."""
    endings: Counter[str] = Counter()
    until = time.monotonic() + seconds
    todo = iter(tqdm(orders(count, seed), total=count, unit="req", mininterval=1))
    limits = httpx.Limits(max_connections=concurrency)
    async with httpx.AsyncClient(base_url=url, timeout=600, trust_env=False, limits=limits) as client:

        async def work() -> None:
            for order in todo:
                if time.monotonic() > until:
                    break
                endings[await send(client, order)] += 1

        await asyncio.gather(*(work() for _ in range(concurrency)))
    return endings


def wait_idle(url: str, seconds: float = 60) -> dict[str, float]:
    """The metrics once nothing runs or waits any more: those who left are forgotten after the step that runs."""
    until = time.monotonic() + seconds
    while True:
        found = metrics(url)
        if not found["strata_requests_running"] and not found["strata_requests_waiting"]:
            return found
        if time.monotonic() > until:
            sys.exit(f"after {seconds:.0f} s requests still run or wait: {found}")
        time.sleep(0.2)


@contextlib.contextmanager
def served(model: str, concurrency: int, options: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Address and process id of a server of its own, which must end cleanly."""
    command = [sys.executable, "-m", "strata.cli.main", "serve", model, "--port", "0", "--max-model-len", "1024"]
    command += ["--max-waiting", str(concurrency), "--log-level", "warning", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        url = ""
        for line in server.stdout or ():
            print(line, end="")
            if found := re.search(r" at (http://\S+)", line):
                url = found[1]
                break
        try:
            yield url, server.pid
        finally:
            server.terminate()
    if server.returncode != 0:
        sys.exit(f"the server ended with {server.returncode}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.stress.soak", description=__doc__)
    parser.add_argument("--model", default="builtin://smollm2-135m", help="default: %(default)s")
    parser.add_argument("--url", help="a server that runs already")
    parser.add_argument("--requests", type=int, default=10_000, metavar="N", help="default: %(default)s")
    parser.add_argument("--concurrency", type=int, default=64, metavar="N", help="default: %(default)s")
    parser.add_argument("--minutes", type=float, metavar="N", help="as many requests as that takes; watches memory")
    parser.add_argument(
        "--growth",
        type=float,
        default=1.0,
        metavar="MIB",
        help="that each may grow a minute, over the second half of --minutes (default: %(default)s)",
    )
    parser.add_argument("--serve", default="", metavar="OPTIONS", help="more options of strata serve, in one string")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="default: %(default)s")
    given = parser.parse_args()
    if given.minutes is not None and given.url:
        parser.error("--minutes watches the memory of a server that it starts itself; leave --url away")
    count = given.requests if given.minutes is None else None
    lasts = math.inf if given.minutes is None else 60 * given.minutes
    memory: Watch | None = None
    with contextlib.ExitStack() as stack:
        url = given.url
        if not url:
            url, pid = stack.enter_context(served(given.model, given.concurrency, shlex.split(given.serve)))
        before, started = wait_idle(url), time.monotonic()
        if given.minutes is not None:
            card = stack.enter_context(vram())
            memory = stack.enter_context(Watch(lambda: resident(pid) | card(), lasts / SAMPLES))
        endings = asyncio.run(soak(url, count, lasts, given.concurrency, given.seed))
        seconds = time.monotonic() - started
        after = wait_idle(url)
    counted = {
        key: after[key] - before.get(key, 0) for key in after if key.startswith("strata_requests_total") and after[key]
    }
    tokens = after["strata_generation_tokens_total"] - before["strata_generation_tokens_total"]
    for ending, times in endings.most_common():
        print(f"{times:7}  {ending}")
    print(f"{tokens:7.0f}  tokens in {seconds:.0f} s; the server counted {counted}")
    blocks = {state: int(after[f"strata_kv_blocks{{state={state}}}"]) for state in ("used", "cached", "free")}
    print("         KV blocks: " + ", ".join(f"{count} {state}" for state, count in blocks.items()))
    if set(endings) - {"ok", "left"}:
        sys.exit("some requests did not end as they should")
    if blocks["used"]:
        sys.exit("KV blocks are still in use")
    if sum(counted.values()) != endings.total():
        sys.exit(f"{endings.total()} requests were sent, {sum(counted.values()):.0f} counted")
    if memory is not None:
        lines, problems = judge(memory.samples, given.growth * MIB)
        print("\n".join(lines))
        if problems:
            sys.exit("\n".join(problems))
    print("nothing is left over")


if __name__ == "__main__":
    main()
