"""Options that several commands share: the model, and how it runs."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Literal

from strata.cli.arguments import gibibytes, probability, whole
from strata.config import DeviceConfig, EngineConfig
from strata.config.engine import (
    DEVICES,
    DTYPES,
    EXPERT_PLACEMENTS,
    HUGEPAGES,
    PIPELINE_DEPTHS,
    PREFETCH,
    ROUTING_DEVICES,
)
from strata.config.model_name import ACCEPTED, HubName, parse_name
from strata.errors import OptionError

DEFAULTS = EngineConfig(model="")


def add_source(parser: argparse.ArgumentParser, metavar: str, option: str, *, about: str = "") -> None:
    """MODEL as an argument, and as an option for those who like that better. ``about``: before what it may be."""
    parser.add_argument("source_argument", nargs="?", metavar=metavar, help=f"{about}{ACCEPTED}")
    parser.add_argument(option, dest="source_option", metavar=metavar, help="the same, as an option")


def source(arguments: argparse.Namespace) -> str:
    """What ``add_source`` read, with the revision that ``add_revision`` did. Raises OptionError unless both make sense
    together and the model is given once."""
    name = source_if_given(arguments)
    if name is None:
        raise OptionError(f"no model given; name one: {ACCEPTED}")
    return name


def source_if_given(arguments: argparse.Namespace) -> str | None:
    """As ``source``; None where no model is given."""
    given = [name for name in (arguments.source_argument, arguments.source_option) if name]
    revision = getattr(arguments, "revision", None)
    if len(given) > 1:
        raise OptionError(f"two models given; name one: {ACCEPTED}")
    if not given:
        if revision is not None:
            raise OptionError(f"--revision {revision!r} is given without a model; name one on the Hub, ORG/NAME")
        return None
    name = str(given[0])
    return name if revision is None else _pinned(name, revision)


def add_revision(parser: argparse._ActionsContainer) -> None:
    """--revision."""
    parser.add_argument(
        "--revision",
        metavar="NAME",
        help="branch, tag or commit of a model on the Hub; the same as ORG/NAME@REVISION (default: its main branch)",
    )


def _pinned(name: str, revision: str) -> str:
    found = parse_name(name)
    if not isinstance(found, HubName):
        raise OptionError(f"--revision is for models on the Hub, ORG/NAME; {name!r} is none, or a path here")
    if found.revision is not None:
        raise OptionError(f"two revisions given: {found.revision!r} in the model's name, and --revision {revision!r}")
    pinned = replace(found, revision=revision)
    if parse_name(str(pinned)) != pinned:
        raise OptionError(f"--revision {revision!r} is no branch, tag or commit")
    return str(pinned)


def add_dtype(parser: argparse._ActionsContainer) -> None:
    """--dtype."""
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        default=DEFAULTS.dtype,
        help=f"bit format of the weights (default: {DEFAULTS.dtype})",
    )


def add_device(parser: argparse._ActionsContainer) -> None:
    """--device, --threads, and what concerns experts beyond VRAM."""
    parser.add_argument(
        "--device",
        choices=DEVICES,
        default=DEFAULTS.device.device,
        help="where the model runs; auto: the GPU if there is one, else the CPU (default: auto)",
    )
    parser.add_argument(
        "--threads",
        type=whole(1, 1024),
        metavar="N",
        help="CPU threads for tensors (default: the CPUs that the process may use)",
    )
    parser.add_argument(
        "--expert-placement",
        choices=EXPERT_PLACEMENTS,
        default=DEFAULTS.device.expert_placement,
        help="routed experts that the GPU's memory has not: vram: none, or it is an error; fetch: read over PCIe; cpu: "
        "computed there; hybrid: both at once, split as a trial at the start says; auto: of these what decodes "
        "fastest, tried at the start and logged (default: auto)",
    )
    add_expert_vram(parser, default="what is left")
    _add_offloading(parser)


def add_expert_vram(parser: argparse._ActionsContainer, *, default: str) -> None:
    """--expert-vram-gib. ``default``: for people."""
    parser.add_argument(
        "--expert-vram-gib",
        type=gibibytes,
        dest="expert_vram_bytes",
        metavar="GIB",
        help=f"GiB of the GPU's memory for routed experts; the others are read from host memory (default: {default})",
    )


def add_hugepages(parser: argparse._ActionsContainer) -> None:
    """--hugepages."""
    parser.add_argument(
        "--hugepages",
        choices=HUGEPAGES,
        default=DEFAULTS.device.hugepages,
        help="reserved pages in which experts lie in host memory beside a GPU; too few are an error (default: off, "
        "ordinary memory in large pages as far as there are some)",
    )


def _add_offloading(parser: argparse._ActionsContainer) -> None:
    """What becomes of experts that the card's memory has not."""
    add_hugepages(parser)
    parser.add_argument(
        "--prefetch",
        choices=PREFETCH,
        default=DEFAULTS.device.prefetch,
        help="who guesses which experts the next layer needs, so that they come over PCIe while this one runs: gate: "
        "its router; history: what it took in the last steps; off: nobody; auto: of these what decodes fastest, tried "
        "at the start and logged (default: auto)",
    )
    parser.add_argument(
        "--prefetch-probability",
        type=probability,
        default=DEFAULTS.device.prefetch_probability,
        metavar="P",
        help="from which on --prefetch history fetches an expert: the sum of 0.85, 0.30 and 0.15 where the last step, "
        f"the one before and that before needed it (default: {DEFAULTS.device.prefetch_probability})",
    )
    parser.add_argument(
        "--routing-device",
        choices=ROUTING_DEVICES,
        help="where experts are chosen for steps of few tokens, where the CPU computes some: gpu; cpu: the router's "
        "scores go to its threads; auto: whichever decodes faster where the CPU computes all that are "
        "missing, else gpu (default: gpu, or auto where --cpu-routing-threads is above 0)",
    )
    parser.add_argument(
        "--cpu-routing-threads",
        type=whole(0, 1024),
        metavar="N",
        help="CPU threads that may share the choice of experts for a step, each for 4 tokens or more; 0: the GPU "
        f"chooses (default: {DEFAULTS.device.cpu_routing_threads})",
    )
    parser.add_argument(
        "--pipeline-depth",
        type=whole(PIPELINE_DEPTHS[0], PIPELINE_DEPTHS[-1]),
        default=DEFAULTS.device.pipeline_depth,
        metavar="N",
        help="slots of the ring through which the GPU asks the CPU for experts: requests that may be under way at once "
        f"(default: {DEFAULTS.device.pipeline_depth})",
    )


def device_config(arguments: argparse.Namespace) -> DeviceConfig:
    """What was said of ``add_device``'s options."""
    return DeviceConfig(
        device=arguments.device,
        num_threads=arguments.threads,
        expert_placement=arguments.expert_placement,
        expert_vram_bytes=arguments.expert_vram_bytes,
        hugepages=arguments.hugepages,
        prefetch=arguments.prefetch,
        prefetch_probability=arguments.prefetch_probability,
        routing_device=_routing_device(arguments.routing_device, arguments.cpu_routing_threads),
        cpu_routing_threads=arguments.cpu_routing_threads or DEFAULTS.device.cpu_routing_threads,
        pipeline_depth=arguments.pipeline_depth,
    )


def _routing_device(asked: str | None, threads: int | None) -> Literal["gpu", "cpu", "auto"]:
    """Who names threads wants them to be tried."""
    if threads == 0:
        if asked == "cpu":
            raise OptionError("--cpu-routing-threads 0 leaves no thread to --routing-device cpu; give 1 or more")
        return "gpu"
    return asked or ("gpu" if threads is None else "auto")  # type: ignore[return-value]
