"""From a checked body to a job: its prompts' tokens, and a generation for each choice."""

from __future__ import annotations

import uuid
from dataclasses import replace

from strata.request import GenerationRequest
from strata.server.encoding import decode, encode, open_chat
from strata.server.job import Job
from strata.server.model import ServedModel, each_seeded, risks
from strata.server.places import Places
from strata.server.record import RequestRecord
from strata.server.response_api.request import ResponseRequest
from strata.server.schemas import ChatRequest, CompletionRequest, GenerateRequest

AnyRequest = ChatRequest | CompletionRequest | GenerateRequest | ResponseRequest


async def admit(body: AnyRequest, record: RequestRecord, name: str, model: ServedModel, places: Places) -> Job:
    """Tokenise and check against the model, which is to answer under ``name``. Raises RequestError."""
    if isinstance(body, ResponseRequest):
        with body.own_words():
            return await _admit(body.chat, record, name, model, places, prefix="resp")
    prefix = "chatcmpl" if isinstance(body, ChatRequest) else "cmpl"
    return await _admit(body, record, name, model, places, prefix=prefix)


async def _admit(
    body: ChatRequest | CompletionRequest | GenerateRequest,
    record: RequestRecord,
    name: str,
    model: ServedModel,
    places: Places,
    *,
    prefix: str,
) -> Job:
    opening = None
    if isinstance(body, ChatRequest):
        prompt, opening = await open_chat(model, body)
        prompts, param = [prompt], "messages"
    else:
        prompts, param = await encode(model, body.prompts), "prompt"
    places.check(len(prompts) * body.num_choices, param="prompt" if body.num_choices == 1 else "n")
    params = [model.sampling(body, len(prompt), param=param) for prompt in prompts]
    if opening is not None and opening.grammar is not None:
        body.check_end(opening.grammar)
        params = [replace(sampling, grammar=opening.grammar) for sampling in params]
    job_id = f"{prefix}-{uuid.uuid4().hex}"
    choices = [
        (prompt, seeded)
        for prompt, sampling in zip(prompts, params, strict=True)
        for seeded in each_seeded(sampling, body.num_choices)
    ]
    requests = [
        GenerationRequest(
            f"{job_id}-{index}", prompt, sampling, priority=body.priority or 0, timeout_seconds=body.timeout
        )
        for index, (prompt, sampling) in enumerate(choices)
    ]
    echo: list[str] = []
    if body.wants_echo and not isinstance(body, ChatRequest):
        echo = [text for text in await decode(model, body.prompts) for _ in range(body.num_choices)]
    record.admit(job_id, params[0], num_choices=body.num_choices, num_prompt_tokens=sum(map(len, prompts)))
    return Job(
        job_id,
        tuple(requests),
        name,
        record,
        num_choices=body.num_choices,
        stop_strings=body.stop_strings,
        echo=tuple(echo),
        warnings=risks(params[0]),
        reading=None if opening is None else opening.reading,
    )
