"""Clients that ask on and on, while something happens to who answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from openai import OpenAIError

from tests.e2e import chat

QUESTION = "What is the capital of France, and what is it known for?"


class Load:
    """Streamed chats, one after the other, each over a connection of its own."""

    def __init__(self, url: str, model: str, *, api_key: str = "none") -> None:
        self.answers = 0
        self.failures: list[str] = []
        self._url, self._model, self._api_key = url, model, api_key
        self._end = threading.Event()

    def _run(self) -> None:
        while not self._end.is_set():
            try:
                with chat.openai(self._url, self._api_key) as client:
                    answer = "".join(chat.stream(client, self._model, QUESTION, max_tokens=24))
            except (OpenAIError, httpx.HTTPError) as error:
                self.failures.append(repr(error))
                continue
            if "Paris" in answer:
                self.answers += 1
            else:
                self.failures.append(answer)

    @contextmanager
    def running(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._run, daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._end.set()
            for thread in threads:
                thread.join(60)
