"""The same work for many files, on several threads at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def each(
    num_threads: int, function: Callable[[Item], Result], items: Iterable[Item], *, in_order: bool = False
) -> Iterator[Result]:
    """The function's results as they come, or in the order of the items. After an error nothing new is begun."""
    if num_threads == 1:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(num_threads) as pool:
        try:
            futures = [pool.submit(function, item) for item in items]
            yield from _taken(futures) if in_order else (future.result() for future in as_completed(futures))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _taken(futures: list[Future[Result]]) -> Iterator[Result]:
    """Each result is kept no longer than until it is taken."""
    futures.reverse()
    while futures:
        yield futures.pop().result()
