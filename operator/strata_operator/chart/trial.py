"""Whether an installation works: an operator holds its Lease, and models that are ready answer."""

from __future__ import annotations

import json
import logging
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from http.client import HTTPException
from typing import Any

from strata_operator.api.conditions import READY, having
from strata_operator.api.errors import MissingError
from strata_operator.api.model import KIND
from strata_operator.cluster.client import Client
from strata_operator.main import leases_of

log = logging.getLogger(__name__)

QUESTION = "What is the capital of France? Answer in one word."
MAX_TOKENS = 16


def trial(
    client: Client,
    namespaces: Sequence[str],
    ask: Callable[[str], str],
    *,
    has_time: Callable[[], bool],
    pause: Callable[[], None],
) -> bool:
    """Whether all is as it should be; what was found is logged. ``ask``: of a base URL, raises OSError or ValueError.

    An operator that has just been installed is waited for. Raises ApiError where the API server refuses or does not
    answer.
    """
    leases = leases_of(None, namespaces) or ()
    while any(_holder(client, *lease) is None for lease in leases) and has_time():
        pause()
    works = [_works(client, *lease) for lease in leases]
    answers = [
        _answers(model, ask) for namespace in namespaces or (None,) for model in client.list_all(KIND, namespace)[0]
    ]
    if not answers:
        log.info("there is no model yet: kubectl apply one, and run this test again to have it asked")
    return all(works) and all(answers)


def ask(url: str, seconds: int) -> str:
    """The answer of the model at that base URL. Raises OSError, or ValueError for an answer that is none."""
    try:
        (model, *_) = _call(f"{url}/models", None, seconds)["data"]
        message = {"role": "user", "content": QUESTION}
        body = {"model": model["id"], "messages": [message], "max_tokens": MAX_TOKENS, "temperature": 0}
        answer = _call(f"{url}/chat/completions", body, seconds)["choices"][0]["message"]
        text = answer.get("content") or answer.get("reasoning_content")  # so few tokens may not go beyond its reasoning
    except (KeyError, IndexError, TypeError, HTTPException) as error:
        raise ValueError(f"that is no answer of OpenAI's API: {error!r}") from error
    if not text or not text.strip():
        raise ValueError("the answer is empty")
    return str(text)


def _holder(client: Client, namespace: str, name: str) -> str | None:
    """Who works: the Lease is held, and was renewed in time."""
    try:
        spec = client.get("Lease", namespace, name)["spec"]
    except MissingError:
        return None
    ends = datetime.fromisoformat(spec["renewTime"]) + timedelta(seconds=spec["leaseDurationSeconds"])
    return spec.get("holderIdentity") if client.now() < ends else None


def _works(client: Client, namespace: str, name: str) -> bool:
    holder = _holder(client, namespace, name)
    if holder is None:
        log.error("no operator works: nobody holds the Lease %s/%s; the operator's log tells why", namespace, name)
        return False
    log.info("%s works: it holds the Lease %s/%s", holder, namespace, name)
    return True


def _answers(model: Mapping[str, Any], ask: Callable[[str], str]) -> bool:
    """False for one that is ready and does not answer; others have reasons of their own, which kubectl tells."""
    name = f"{model['metadata']['namespace']}/{model['metadata']['name']}"
    status = model.get("status") or {}
    if not having(status.get("conditions"), READY, "True"):
        log.info("%s is not ready: kubectl describe sm tells why", name)
        return True
    if model["spec"].get("service", {}).get("apiKeysSecretRef"):
        log.info("%s is ready, and not asked: it wants an API key", name)
        return True
    try:
        answer = ask(status["url"])
    except (OSError, ValueError) as error:
        log.error("%s is ready, and does not answer at %s: %s", name, status["url"], error)
        return False
    log.info("%s was asked %r and answers %r", name, QUESTION, answer)
    return True


def _call(url: str, body: Mapping[str, Any] | None, seconds: int) -> Any:
    data = None if body is None else json.dumps(body).encode()
    if not url.startswith("http://"):
        raise ValueError(f"{url!r} is no address of a model")
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})  # noqa: S310  see above
    with urllib.request.urlopen(request, timeout=seconds) as answer:  # noqa: S310  see above
        return json.load(answer)
