"""Triton's interpreter: runs kernels on the CPU, in numpy.

It has to be chosen before Triton is imported, and compile checks and CUDA tests want the compiler. So it lives in a
process of its own, which is started once for all tests.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from types import SimpleNamespace
from typing import Any


class Interpreter:
    """Calls functions of a module where Triton is interpreted. Tensors are passed and returned by value."""

    def __init__(self) -> None:
        # spawn: a fresh Python, in which nothing has imported Triton.
        self._pool = ProcessPoolExecutor(1, get_context("spawn"), _begin)

    def call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """``function``, found there by its module and name. What it writes into a tensor is not seen here, so let it
        return that."""
        # Pickled here: the pool's own way shares the memory of tensors.
        work = pickle.dumps((function, arguments, named))
        return pickle.loads(self._pool.submit(_run, work).result())

    def close(self) -> None:
        self._pool.shutdown()


def _begin() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    import triton.language as tl
    from triton.runtime import interpreter

    # Once for all: by itself it looks through the whole language at every call of a function.
    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    interpreter._patch_lang = lambda function: interpreter._LangPatchScope()
    # The bounds of a loop are arrays of one element, which numpy 2.4 no longer takes for integers.
    tl.tensor.__index__ = lambda self: self.handle.data.item()
    # Each sum would be computed again in 64 bits, for an assertion that is made in debugging alone.
    interpreter.interpreter_builder.options = replace(interpreter.interpreter_builder.options, sanitize_overflow=False)


def _run(work: bytes) -> bytes:
    import triton

    assert triton.knobs.runtime.interpret
    function, arguments, named = pickle.loads(work)
    return pickle.dumps(function(*arguments, **named))
