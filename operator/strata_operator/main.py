"""The command ``strata-operator``: options, and exit codes. Its help needs none of the operator's requirements."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence

import strata_operator
from strata_operator import logs
from strata_operator.api.errors import OperatorError
from strata_operator.api.route import Parent, RouteDefaults
from strata_operator.render import MONITOR_KINDS, Monitors

log = logging.getLogger(__name__)

LEASE_NAMESPACE, LEASE = "default", "strata-operator"  # that namespace is in every cluster
INSTALL_HINT = "pip install '.[operator]' in a checkout of Strata, or 'PATH.whl[operator]' with its wheel"


def parser() -> argparse.ArgumentParser:
    """Options of ``strata-operator``."""
    made = argparse.ArgumentParser(
        prog="strata-operator",
        description="Turns StrataModel resources into pods that run the engine.",
        allow_abbrev=False,
    )
    made.add_argument("--engine-image", required=True, help="image of model pods that name none in spec.image")
    made.add_argument("--listen", default="0.0.0.0:8080", metavar="ADDRESS:PORT", help="of /healthz, /readyz, /metrics")
    made.add_argument("--workers", type=int, default=8, help="models that are reconciled at the same time (default: 8)")
    made.add_argument(
        "--lease",
        metavar="NAMESPACE/NAME",
        help="of several operators, the one that holds this Lease works (default: default/strata-operator, or "
        "strata-operator in each of --namespaces); none: this one works whatever others do, for development alone",
    )
    made.add_argument(
        "--namespaces", default="", metavar="NAME,...", help="namespaces whose models are served (default: all)"
    )
    made.add_argument(
        "--monitor-kind",
        default="PodMonitor",
        choices=[*MONITOR_KINDS, "none"],
        help="of each model, where Prometheus's operator is installed (default: PodMonitor)",
    )
    made.add_argument(
        "--monitor-labels", default="", metavar="KEY=VALUE,...", help="by which Prometheus selects monitors"
    )
    made.add_argument(
        "--monitor-interval", metavar="TIME", help="between two scrapes, e.g. 15s (default: Prometheus's)"
    )
    made.add_argument(
        "--routes", action="store_true", help="make HTTPRoutes, InferencePools and Ingresses for models with spec.route"
    )
    made.add_argument(
        "--route-gateway",
        default="",
        metavar="NAMESPACE/NAME[/LISTENER]",
        help="the Gateway of models that name none in spec.route.parentRefs",
    )
    made.add_argument(
        "--route-domain",
        default="",
        metavar="DOMAIN",
        help="models without spec.route.hostnames are asked for as NAME.NAMESPACE.DOMAIN",
    )
    made.add_argument(
        "--route-ingress-class", metavar="NAME", help="of models that name none in spec.route.ingressClassName"
    )
    made.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    made.add_argument("--version", action="version", version=strata_operator.__version__)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT. Exit code 2 for options or a cluster that somebody has to mend first."""
    options = parser().parse_args(argv)
    address, colon, port = options.listen.rpartition(":")
    if not colon or not port.isdecimal() or not 0 < int(port) < 65536:
        parser().error(f"--listen is {options.listen!r}; ADDRESS:PORT is needed, e.g. 0.0.0.0:8080")
    namespaces = tuple(dict.fromkeys(filter(None, options.namespaces.split(","))))
    leases = leases_of(options.lease, namespaces)
    if leases is None:
        parser().error(f"--lease is {options.lease!r}; NAMESPACE/NAME is needed, e.g. strata-system/strata, or none")
    if options.workers < 1:
        parser().error(f"--workers is {options.workers}; at least 1 is needed")
    labels = labels_of(options.monitor_labels)
    if labels is None:
        parser().error(
            f"--monitor-labels is {options.monitor_labels!r}; KEY=VALUE,... is needed, e.g. release=prometheus"
        )
    parent = gateway_of(options.route_gateway)
    if options.route_gateway and parent is None:
        parser().error(
            f"--route-gateway is {options.route_gateway!r}; NAMESPACE/NAME or NAMESPACE/NAME/LISTENER is needed"
        )
    routes = RouteDefaults(parent, options.route_domain, options.route_ingress_class)
    if not options.routes and routes != RouteDefaults():
        parser().error("--route-gateway, --route-domain and --route-ingress-class need --routes")
    try:
        from strata_operator.process import Settings, run
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == "strata_operator":
            raise
        parser().error(f"{package} is not installed; the operator needs: {INSTALL_HINT}")
    kind = options.monitor_kind
    monitors = None if kind == "none" else Monitors(kind, labels, options.monitor_interval)
    settings = Settings(
        options.engine_image,
        address,
        int(port),
        options.workers,
        leases,
        namespaces,
        monitors,
        routes if options.routes else None,
    )
    logs.set_up(options.log_level)
    try:
        asyncio.run(run(settings))
    except OperatorError as error:
        log.error("%s", error)
        return 2
    except asyncio.CancelledError:  # told to end before it began
        return 0
    return 0


def leases_of(option: str | None, namespaces: Sequence[str]) -> tuple[tuple[str, str], ...] | None:
    """Namespace and name of each Lease to hold; None for an option that names none.

    Operators that serve the same models want the same one, however they were installed: two at work would undo each
    other's work. In the order in which all take them, so that no two wait for each other.
    """
    if option is None:
        return tuple((namespace, LEASE) for namespace in sorted(namespaces) or [LEASE_NAMESPACE])
    if option == "none":
        return ()
    namespace, _, name = option.partition("/")
    return ((namespace, name),) if namespace and name and "/" not in name else None


def gateway_of(option: str) -> Parent | None:
    """None for an option that names none."""
    namespace, _, rest = option.partition("/")
    name, _, listener = rest.partition("/")
    return Parent(name, namespace, listener or None) if namespace and name and "/" not in listener else None


def labels_of(option: str) -> dict[str, str] | None:
    """By their keys; None for an option that is not KEY=VALUE,..."""
    pairs = [one.partition("=") for one in option.split(",") if one]
    return {key: value for key, _, value in pairs} if all(key and equals for key, equals, _ in pairs) else None


if __name__ == "__main__":
    sys.exit(main())
