"""The fields with which a request says how its tokens are drawn, and when they end."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, ValidatorFunctionWrapHandler, field_validator, model_validator

from strata.errors import RequestError
from strata.request import Grammar
from strata.server.body import Body, Items, Unserved
from strata.server.structured import StructuredOutputs, grammar_of

MAX_STOP_STRINGS = 4
MAX_BIASES, MAX_BIAS = 1024, 100
MAX_TIMEOUT = 86_400  # seconds
MAX_PRIORITY = 2**31 - 1
SEED_RANGE = (-(2**63), 2**63 - 1)

_TOKEN_ID = re.compile(r"0|[1-9]\d{0,9}", re.ASCII)
_LOGIT_BIAS = f"an object of up to {MAX_BIASES} token ids, each with a number from -{MAX_BIAS} to {MAX_BIAS}"

Temperature = Annotated[float | None, Field(ge=0, le=2, description="a number from 0 (greedy) to 2")]
TopP = Annotated[float | None, Field(gt=0, le=1, description="a number above 0, up to 1 (off)")]
TopK = Annotated[
    int | None, Field(ge=-1, le=2**31 - 1, description="a whole number of tokens up to 2147483647; 0 or -1 is off")
]
MinP = Annotated[float | None, Field(ge=0, le=1, description="a share of the likeliest token from 0 (off) to 1")]
Penalty = Annotated[float | None, Field(ge=-2, le=2, description="a number from -2 to 2; 0 is off")]
RepetitionPenalty = Annotated[float | None, Field(ge=0.01, le=100, description="a number from 0.01 to 100; 1 is off")]
Seed = Annotated[int | None, Field(ge=SEED_RANGE[0], le=SEED_RANGE[1], description="a 64-bit signed whole number")]
_OLDER_NAMES = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")  # vLLM's

NonEmpty = Annotated[str, Field(min_length=1)]
TokenId = Annotated[int, Field(ge=0)]
Stop = Annotated[
    NonEmpty | Annotated[list[NonEmpty], Field(max_length=MAX_STOP_STRINGS)] | None,
    Field(description=f"a string, or a list of up to {MAX_STOP_STRINGS} strings, none of them empty"),
]
MaxTokens = Annotated[
    int | None, Field(ge=1, description="1 or more tokens (without it: what the context leaves after the prompt)")
]


class Sampling(Body):
    """What every kind of generation can set; None takes the model's default."""

    unserved: ClassVar[Unserved] = dict.fromkeys(_OLDER_NAMES, (None,))
    instead: ClassVar[Mapping[str, str]] = dict.fromkeys(_OLDER_NAMES, "use 'structured_outputs'")

    model: str | None = Field(None, description="a served name; left out: the first one")
    temperature: Temperature = None
    top_p: TopP = None
    top_k: TopK = None
    min_p: MinP = None
    repetition_penalty: RepetitionPenalty = None
    presence_penalty: Penalty = None
    frequency_penalty: Penalty = None
    logit_bias: dict[str, float] | None = Field(None, description=_LOGIT_BIAS)
    seed: Seed = None
    stop: Stop = None
    stop_token_ids: Items[int] | None = Field(None, description="a list of token ids that end the answer")
    ignore_eos: bool = Field(False, description="true goes on behind the end-of-sequence token, for measurements")
    max_tokens: MaxTokens = None
    structured_outputs: StructuredOutputs | None = None
    priority: int | None = Field(
        None,
        ge=-MAX_PRIORITY,
        le=MAX_PRIORITY,
        description=f"a whole number from {-MAX_PRIORITY} to {MAX_PRIORITY}; smaller ones run first, 0 is usual",
    )
    timeout: float | None = Field(
        None, gt=0, le=MAX_TIMEOUT, description=f"a number of seconds above 0, up to {MAX_TIMEOUT}"
    )

    @field_validator("logit_bias", mode="wrap")
    @classmethod
    def _check_logit_bias(cls, value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        if isinstance(value, dict) and len(value) > MAX_BIASES:
            raise ValueError(f"it has {len(value)} tokens")
        biases: dict[str, float] | None = handler(value)
        for token_id, bias in (biases or {}).items():
            if not _TOKEN_ID.fullmatch(token_id) or abs(bias) > MAX_BIAS:
                raise ValueError("it is not")
        return biases

    @field_validator("stop", mode="wrap")
    @classmethod
    def _check_stop(cls, value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        strings = [value] if isinstance(value, str) else value
        if strings is None:
            return None
        if not isinstance(strings, list) or not all(isinstance(string, str) and string for string in strings):
            raise ValueError("it is not")
        if len(strings) > MAX_STOP_STRINGS:
            raise ValueError(f"it has {len(strings)} strings")
        return handler(value)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """``stop`` as a tuple."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def token_limit(self) -> int | None:
        """The limit that was asked for, whichever name it came under."""
        return self.max_tokens

    @property
    def limit_field(self) -> str:
        """The name under which it came."""
        return "max_tokens"

    @property
    def biases(self) -> tuple[tuple[int, float], ...]:
        """``logit_bias`` by token id."""
        return tuple((int(token_id), bias) for token_id, bias in (self.logit_bias or {}).items())

    @property
    def num_logprobs(self) -> int | None:
        """None gives no logprobs, N those of the drawn token and of the N likeliest."""
        return None

    @cached_property
    def grammar(self) -> Grammar | None:
        """What the answer must match."""
        return grammar_of(None, self.structured_outputs)

    @model_validator(mode="after")
    def _check_grammar(self) -> Self:
        self.check_end(self.grammar)
        return self

    def check_end(self, grammar: Grammar | None) -> None:
        """Raises RequestError if the answer is to go on behind the end that ``grammar`` gives it."""
        if grammar is not None and self.ignore_eos:
            raise RequestError(
                "'ignore_eos' goes on behind the end, which structured output and forced calls do not allow; leave one "
                "of them out",
                param="ignore_eos",
            )

    @property
    def num_choices(self) -> int:
        """How many answers each prompt gets."""
        return 1

    @property
    def wants_echo(self) -> bool:
        """Whether the prompt stands before its answer."""
        return False
