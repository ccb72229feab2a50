"""What the server knows of the model that the engine loaded: tokenizer, chat template, limits and defaults."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from strata.engine.messages import EngineReady
from strata.errors import RequestError
from strata.request import SamplingParams
from strata.scheduler.admission import check_length, check_vocabulary
from strata.server.conversation import Opening, open_chat
from strata.server.output.formats import Formats
from strata.server.sampling import Sampling
from strata.server.schemas import ChatRequest
from strata.server.template import ChatTemplate
from strata.server.tokenizer import Detokenizer, Tokenizer

logger = logging.getLogger(__name__)

_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")

# Characters whose tokens are counted at once: two to three seconds of a core, or as many as the context may hold.
MAX_COUNTED = 1 << 20
MAX_COUNTED_PER_TOKEN = 8

# Beyond these an answer gets a warning.
MAX_SAFE_TEMPERATURE = 1.2
MIN_SAFE_TOP_P = 0.8  # with a temperature above 1


class ServedModel:
    """Reads the store directory of ``ready``. Raises CheckpointError naming the file that is missing or unusable.

    tool_format, reasoning_format: a name of ``server.output.formats``, "auto" or "none".
    """

    def __init__(self, ready: EngineReady, *, tool_format: str = "auto", reasoning_format: str = "auto") -> None:
        directory = Path(ready.store_path)
        self.max_model_len = ready.max_model_len
        self._vocab_size = ready.vocab_size
        self._tokenizer = Tokenizer(directory)
        self._template = self._read_template(self._tokenizer.chat_template, directory)
        self._tool_template = self._read_template(self._tokenizer.tool_chat_template, directory) or self._template
        shown = "".join(template.source for template in (self._template, self._tool_template) if template is not None)
        self._formats = Formats.choose(
            tool_format, reasoning_format, template=shown, vocabulary=self._tokenizer.added_tokens
        )
        self._defaults = _defaults(ready.generation_config)

    def _read_template(self, source: str | None, directory: Path) -> ChatTemplate | None:
        if source is None:
            return None
        return ChatTemplate(source, self._tokenizer.special_tokens, origin=str(directory / "tokenizer_config.json"))

    def open_chat(self, body: ChatRequest) -> tuple[tuple[int, ...], Opening]:
        """The prompt that the checkpoint's template makes of a conversation, and how its answer is read."""
        template = self._tool_template if body.tool_use.offered else self._template
        if template is None:
            raise RequestError(
                "this model has no chat template, so it serves no chats; use /v1/completions",
                param="messages",
                code="no_chat_template",
            )
        opening = open_chat(body, template, self._formats)
        self._check_text(len(opening.prompt), param="messages")
        # The template writes the special tokens itself.
        return tuple(self._tokenizer.encode(opening.prompt, add_special_tokens=False)), opening

    def encode_prompt(self, prompt: str | Sequence[int]) -> tuple[int, ...]:
        """A bare text with the special tokens that the checkpoint puts around it, or token ids as they are."""
        if isinstance(prompt, str):
            self._check_text(len(prompt), param="prompt")
            return tuple(self._tokenizer.encode(prompt, add_special_tokens=True))
        check_vocabulary(prompt, vocab_size=self._vocab_size)
        return tuple(prompt)

    def tokenize(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        """A text, whether it fits into the context or not; one that would take a core for many seconds is refused."""
        longest = max(MAX_COUNTED, MAX_COUNTED_PER_TOKEN * self.max_model_len)
        if len(text) > longest:
            raise RequestError(
                f"the text has {len(text)} characters; at most {longest} are tokenised at once: split it where a word "
                "ends, and add up the counts",
                param="prompt",
                code="text_too_long",
            )
        return tuple(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))

    def spell(self, token_ids: Sequence[int]) -> str:
        """The text of tokens, special ones by their names. Raises RequestError for a token that is not there."""
        check_vocabulary(token_ids, vocab_size=self._vocab_size, param="tokens")
        return b"".join(map(self.token_bytes, token_ids)).decode(errors="replace")

    def decode(self, prompt: str | Sequence[int]) -> str:
        """The text of a prompt, as ``echo`` shows it."""
        if isinstance(prompt, str):
            return prompt
        detokenizer = self.detokenizer()
        return detokenizer.feed(prompt) + detokenizer.flush()

    def _check_text(self, num_characters: int, *, param: str) -> None:
        """Refuse what cannot fit before it is tokenised: megabytes of text would take seconds and a core."""
        longest = self._tokenizer.longest_token
        at_least = 0 if longest is None else num_characters // longest
        if at_least >= self.max_model_len:
            raise RequestError(
                f"the prompt has {num_characters} characters, at least {at_least} tokens; max-model-len is "
                f"{self.max_model_len} tokens for prompt and answer together; shorten it",
                param=param,
                code="context_length_exceeded",
            )

    def sampling(self, body: Sampling, num_prompt_tokens: int, *, param: str) -> SamplingParams:
        """The request's own values, else the checkpoint's, else OpenAI's. ``param`` is the field that holds the prompt.

        Raises RequestError when prompt and answer do not fit into the context.
        """
        check_length(num_prompt_tokens, max_model_len=self.max_model_len, param=param)
        room = self.max_model_len - num_prompt_tokens
        limit = body.token_limit
        if limit is not None and limit > room:
            raise RequestError(
                f"the prompt has {num_prompt_tokens} tokens and {body.limit_field!r} is {limit}, "
                f"{num_prompt_tokens + limit} together; max-model-len is {self.max_model_len}, which leaves {room} for "
                "the answer",
                param=body.limit_field,
                code="context_length_exceeded",
            )
        stop_token_ids = tuple(body.stop_token_ids or ())
        check_vocabulary(stop_token_ids, vocab_size=self._vocab_size, param="stop_token_ids")
        check_vocabulary([token_id for token_id, _ in body.biases], vocab_size=self._vocab_size, param="logit_bias")
        chosen = {name: getattr(body, name) for name in _DEFAULTS}
        default = {name: getattr(self._defaults, name) for name in _DEFAULTS}
        given = {name: default[name] if value is None else value for name, value in chosen.items()}
        return SamplingParams(
            max_tokens=room if limit is None else limit,
            seed=body.seed,
            presence_penalty=body.presence_penalty or 0.0,
            frequency_penalty=body.frequency_penalty or 0.0,
            logit_bias=body.biases,
            logprobs=body.num_logprobs,
            grammar=body.grammar,
            stop_token_ids=stop_token_ids,
            ignore_eos=body.ignore_eos,
            # -1 is what some clients call "off".
            **{name: max(value, 0) for name, value in given.items() if value is not None},
        )

    def detokenizer(self, marks: Collection[str] = ()) -> Detokenizer:
        """One for each answer; special tokens are no text, but for ``marks``."""
        return self._tokenizer.detokenizer(marks)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes, or the name, of one token."""
        return self._tokenizer.token_bytes(token_id)


def each_seeded(sampling: SamplingParams, num_choices: int) -> Iterator[SamplingParams]:
    """The parameters of each choice: the first has the request's own seed, so it is the answer that ``n`` 1 gets."""
    for index in range(num_choices):
        if sampling.seed is None or index == 0:
            yield sampling
        else:
            digest = hashlib.blake2b(f"{sampling.seed}/{index}".encode(), digest_size=8).digest()
            yield replace(sampling, seed=int.from_bytes(digest, "little", signed=True))


def risks(sampling: SamplingParams) -> tuple[str, ...]:
    """What is likely to spoil the answer, though it is allowed."""
    temperature, top_p = sampling.temperature, sampling.top_p
    found = []
    if temperature > MAX_SAFE_TEMPERATURE:
        found.append(
            f"temperature is {temperature:g}: above {MAX_SAFE_TEMPERATURE:g} unlikely tokens come often, and an answer "
            "may turn into noise"
        )
    if temperature > 1 and top_p < MIN_SAFE_TOP_P:
        found.append(
            f"top_p is {top_p:g} with a temperature of {temperature:g}: a small nucleus and a hot temperature work "
            f"against each other; lower the temperature to 1, or raise top_p to {MIN_SAFE_TOP_P:g}"
        )
    return tuple(found)


def _defaults(table: Mapping[str, Any]) -> Sampling:
    """The sampling values of a generation_config.json; one out of range is left out, with a warning."""
    values = {name: table[name] for name in _DEFAULTS if name in table}
    for name in list(values):
        try:
            Sampling.model_validate({name: values[name]})
        except ValidationError:
            allowed = Sampling.model_fields[name].description
            given = values.pop(name)
            logger.warning("generation_config.json: %s is %r, ignored; it must be %s", name, given, allowed)
    return Sampling.model_validate(values)
