"""LiteLLM's hook for who may ask: ``general_settings.custom_auth`` of config.yaml.

Each request looks whether the file that ``strata-gateway-sync`` writes beside the proxy is another by now, and if so
takes it over before it is judged itself. So a model or a key that is new, changed or gone counts from the next request
on, nothing is restarted, and requests under way go on with what they began with.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from pathlib import Path
from typing import Any

from fastapi import Request
from litellm.proxy import proxy_server
from litellm.proxy._types import ProxyException, UserAPIKeyAuth
from litellm.types.router import Deployment

log = logging.getLogger("strata.gateway")


class Told:
    """What the sidecar's file says."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, ...] = ()
        self._models: dict[str, dict[str, Any]] = {}  # by id, of LiteLLM's model_list
        self.keys: dict[str, dict[str, Any]] = {}  # by SHA-256: fields of UserAPIKeyAuth

    def refresh(self) -> None:
        """Take the file over where it is another one. Raises OSError or ValueError, and is then as it was."""
        status = self._path.stat()
        stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
        if stamp == self._stamp:
            return
        told = json.loads(self._path.read_text())
        router = proxy_server.llm_router
        models = {one["model_info"]["id"]: one for one in told["model_list"]}
        for gone in self._models.keys() - models.keys():
            router.delete_deployment(gone)
        for name, one in models.items():  # it takes the proxy milliseconds to take each
            if self._models.get(name) != one:
                router.upsert_deployment(Deployment(**one))
        router.update_settings(model_group_alias=told["model_group_alias"])
        proxy_server.llm_model_list = router.get_model_list()
        self.keys, self._models, self._stamp = told["keys"], models, stamp
        log.info("%d models and %d clients' keys from now on", len(models), len(self.keys))


log.addHandler(logging.StreamHandler())
log.setLevel(logging.INFO)
_TOLD = Told(Path(os.environ.get("STRATA_GATEWAY_FILE", "/run/strata/gateway.json")))


async def authenticate(request: Request, api_key: str | None) -> UserAPIKeyAuth:
    """Who asks, and what he may. Raises ProxyException with status 401 for a key that nobody has."""
    try:
        _TOLD.refresh()
    except (OSError, ValueError) as error:
        log.error("models and keys stay as they are: %s", error)
    # A dictionary's look-up tells nothing by its time: who asks cannot choose a hash.
    rights = _TOLD.keys.get(hashlib.sha256((api_key or "").encode()).hexdigest())
    if rights is None:
        raise ProxyException(
            message="the API key is none of the gateway's: send one as `Authorization: Bearer KEY`",
            type="authentication_error",
            param=None,
            code=401,
        )
    return UserAPIKeyAuth(**rights)
