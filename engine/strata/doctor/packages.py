"""What the extras of the wheel bring: each package by its name on the index, with the module that is imported of it."""

from __future__ import annotations

from collections.abc import Mapping

SERVE = {
    "torch": "torch",
    "numpy": "numpy",
    "safetensors": "safetensors",
    "gguf": "gguf",
    "tokenizers": "tokenizers",
    "huggingface-hub": "huggingface_hub",
    "llguidance": "llguidance",
    "jinja2": "jinja2",
    "xxhash": "xxhash",
    "fastapi": "fastapi",
    "uvicorn": "uvicorn",
    "uvloop": "uvloop",
    "httptools": "httptools",
    "prometheus-client": "prometheus_client",
    "tqdm": "tqdm",
    "nvidia-ml-py": "pynvml",
}
BENCH = {name: SERVE[name] for name in ("prometheus-client", "tqdm", "nvidia-ml-py")} | {"aiohttp": "aiohttp"}
OTEL = {
    "opentelemetry-sdk": "opentelemetry.sdk",
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry.exporter.otlp.proto.http",
}
EXTRAS: Mapping[str, Mapping[str, str]] = {"serve": SERVE, "bench": BENCH, "otel": OTEL}


def install_hint(extra: str) -> str:
    """How an extra is installed: from a checkout or a wheel, since no index has Strata."""
    return f"pip install '.[{extra}]' in a checkout of Strata, or 'PATH.whl[{extra}]' with its wheel"
