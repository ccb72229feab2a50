"""Starts LiteLLM's proxy as the gateway runs it: ``python serve.py``, with further options of ``litellm``."""

from __future__ import annotations

import os
import re
import secrets
import sys
from pathlib import Path
from typing import Any

SETTINGS = {
    "DISABLE_ADMIN_UI": "True",
    "NO_DOCS": "True",
    "NO_OPENAPI": "True",
    "NO_REDOC": "True",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # nothing is fetched from the internet
    "LITELLM_LOG": "ERROR",
    "LITELLM_MODE": "PRODUCTION",  # no .env
    # LiteLLM checks nothing without one. Nobody ever learns this one, and the hook would not take it.
    "STRATA_GATEWAY_MASTER_KEY": f"sk-{secrets.token_hex(32)}",
}
# What engines answer, and what probes ask. All else that the proxy has, its administration above all, is nobody's.
OPEN = re.compile(r"(/v1)?/(models(/.+)?|(chat/)?completions|responses|messages)|/health/(liveliness|readiness)")


class Door:
    """Middleware: paths that are not ``OPEN`` are not there."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan" or (scope["type"] == "http" and OPEN.fullmatch(scope["path"])):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 404, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"the gateway has OpenAI's API below /v1\n"})
        else:
            await send({"type": "websocket.close"})


def main() -> None:
    os.environ.update(SETTINGS)
    from litellm import run_server  # which reads them when it is imported
    from litellm.proxy.proxy_server import app

    app.add_middleware(Door)

    run_server(["--config", str(Path(__file__).with_name("config.yaml")), *sys.argv[1:]])


if __name__ == "__main__":
    main()
