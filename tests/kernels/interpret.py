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
from multiprocessing import get_context, parent_process
from threading import Thread
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
    Thread(target=_end_with_parent, daemon=True).start()
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
    _remember()


def _end_with_parent() -> None:
    """A pool's process would wait for ever for the work of one that was killed."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _remember() -> None:
    """Have every operation look up types, shapes and conversions that it would make anew, for most of its time."""
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter

    made: dict[tuple[str, ...], Any] = {}

    def remembered(function: Callable[..., Any]) -> Callable[..., Any]:
        """By the types' names: not all have a hash."""

        def look_up(*types: tl.dtype) -> Any:
            key = (function.__name__, *(each.name for each in types))
            if key not in made:
                made[key] = function(*types)
            return made[key]

        return look_up

    def sizes(type_: tl.dtype) -> tuple[Any, Any]:
        tensor = object.__new__(tl.tensor)
        initialise(tensor, None, type_)
        return tensor.numel, tensor.shape

    def make_tensor(self: tl.tensor, handle: Any, type: tl.dtype) -> None:  # noqa: A002 - Triton's name
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.numel, self.shape = sizes_of(type)

    def convert(values: np.ndarray, source: tl.dtype, target: tl.dtype, rounding: Any) -> Any:
        """bf16 is the upper half of float32; what is lost is cut off, as Triton does too."""
        if rounding is None and (source, target) == (tl.float32, tl.bfloat16):
            return (np.ascontiguousarray(values).view(np.uint32) >> 16).astype(np.uint16)
        if rounding is None and (source, target) == (tl.bfloat16, tl.float32):
            return np.ascontiguousarray(values).astype(np.uint32) << 16
        return convert_any(values, source, target, rounding)

    initialise, convert_any, sizes_of = tl.tensor.__init__, interpreter._convert_float, remembered(sizes)
    tl.tensor.__init__ = make_tensor
    tl.block_type.to_ir = lambda self, builder: self
    tl.block_type.with_element_ty = remembered(tl.block_type.with_element_ty)
    interpreter._get_np_dtype = remembered(interpreter._get_np_dtype)
    interpreter._convert_float = convert


def _run(work: bytes) -> bytes:
    import triton

    assert triton.knobs.runtime.interpret
    function, arguments, named = pickle.loads(work)
    return pickle.dumps(function(*arguments, **named))
