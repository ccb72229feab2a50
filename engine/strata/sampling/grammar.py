"""Structured output: which tokens may come next, by llguidance.

Compiling takes from half a millisecond to half a second, so it runs in threads beside the step loop (llguidance lets go
of the interpreter meanwhile); its limits bound what a grammar may cost there and at each step.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import llguidance.numpy
import torch
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer, grammar_from
from torch import Tensor

from strata.errors import RequestError
from strata.request import Grammar

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

_MAX_THREADS = 4  # for the masks of one step
_MAX_COMPILED = 64  # grammars that are kept

# Models have seen JSON mostly as Python writes it on one line. Free white space would let a weak one go on for ever.
_JSON_STYLE: JsonCompileOptions = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# A lexer state takes 1 to 2 kB: 100 MB at most for a grammar, however long its requests go on.
_LIMITS = LLParserLimits(max_lexer_states=50_000, verbose_errors=False)


class GrammarCompiler:
    """Grammars to matchers, for one model's tokenizer.

    tokenizer: a ``tokenizer.json``. One that cannot be used is named when a grammar is asked for, not before: the model
    serves other requests all the same.
    """

    def __init__(self, tokenizer: Path, *, vocab_size: int, eos_token_ids: Collection[int]) -> None:
        self._problem = ""
        try:
            self._tokenizer = LLTokenizer(str(tokenizer), n_vocab=vocab_size, eos_token=list(eos_token_ids))
        except ValueError as error:
            self._problem = f"structured output does not work with this model's tokenizer: {error}"
        if not eos_token_ids:
            self._problem = "structured output needs a model with an end-of-sequence token; this one has none"
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="grammar")
        self._built = lru_cache(_MAX_COMPILED)(self._build)

    def compile(self, grammar: Grammar) -> Future[LLMatcher]:
        """A matcher of its own for one request. The future raises RequestError with the reason when there is none."""
        return self._threads.submit(self._compile, grammar)

    def _compile(self, grammar: Grammar) -> LLMatcher:
        if self._problem:
            raise RequestError(self._problem, code="unsupported_parameter")
        return self._built(grammar).deep_copy()

    def _build(self, grammar: Grammar) -> LLMatcher:
        try:
            if grammar.kind == "json_schema":
                source = LLMatcher.grammar_from_json_schema(grammar.text, overrides=_JSON_STYLE)
            else:
                source = grammar_from(grammar.kind, grammar.text)
        except ValueError as error:
            raise _refusal(grammar, str(error)) from None
        matcher = LLMatcher(self._tokenizer, source, log_level=0, limits=_LIMITS)
        if not matcher.is_error():
            matcher.compute_bitmask()  # the first is the dearest; and one that allows nothing is an error now
        if matcher.is_error():
            reason = matcher.get_error()
            raise _refusal(grammar, "nothing matches it" if reason.startswith("NoExtension") else reason)
        return matcher


def _refusal(grammar: Grammar, reason: str) -> RequestError:
    name = {"json_schema": "JSON schema", "regex": "regular expression", "grammar": "grammar"}[grammar.kind]
    reason = " ".join(reason.split())
    return RequestError(f"the {name} cannot be used: {reason}", code="invalid_grammar")


class Masks:
    """Takes from logits the tokens that grammars do not allow."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._executor = LLExecutor(min(_MAX_THREADS, os.cpu_count() or 1))

    def apply(self, logits: Tensor, rows: Sequence[int], matchers: Sequence[LLMatcher]) -> dict[int, str]:
        """Set to -inf what ``matchers`` do not allow in their ``rows`` of logits float32 [rows, vocab], in place.

        Returns the rows whose grammar has failed, with the reason: it met a limit.
        """
        bits = llguidance.numpy.allocate_token_bitmask(len(rows), self._vocab_size)
        llguidance.numpy.fill_next_token_bitmask_par(
            self._executor, [(matcher, i) for i, matcher in enumerate(matchers)], bits
        )
        words = torch.from_numpy(bits).to(logits.device)
        shifts = torch.arange(32, dtype=torch.int32, device=logits.device)
        is_barred = (((words[:, :, None] >> shifts) & 1) == 0).view(len(rows), -1)[:, : self._vocab_size]
        if len(rows) == logits.shape[0]:
            logits.masked_fill_(is_barred, -torch.inf)
        else:
            places = torch.tensor(rows, device=logits.device)
            logits[places] = logits[places].masked_fill_(is_barred, -torch.inf)
        return {
            row: f"the grammar could not be followed further: {matcher.get_error()}"
            for row, matcher in zip(rows, matchers, strict=True)
            if matcher.is_error()
        }
