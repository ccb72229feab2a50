"""``make bench-operator``: a thousand models on five hundred pretend nodes, against the real API server.

Prints a table of what it measured beside the goals, and with ``--write`` puts it into a page. The control plane shares
the machine's cores with the operator, so every time holds for such a machine, and a slower one shows it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kubernetes import config as kubernetes_config
from kubernetes.client import Configuration
from tqdm import tqdm

from tests.cluster import Cluster, processes
from tests.cluster.api import Api
from tests.operator.live.harness import OperatorProcess, cpu_seconds, install_crds, install_rights, remove_rights
from tests.scale import fleet
from tests.scale.arrivals import Arrivals

NAMESPACES = [f"scale-{number:02}" for number in range(20)]
IMAGE = "example.com/engine:1"  # pretend nodes pull nothing
WRITES = ("apply", "create", "patch", "delete")
SETTLE_SECONDS = 600.0
CALLS = 6  # four children, the status, the event Ready
PROXY, OPERATOR = "kube-proxy", "operator"


@dataclass(frozen=True, slots=True)
class Settings:
    """What is measured: so many models on so many nodes, applied at that rate, and how long nothing happens."""

    models: int
    nodes: int
    per_second: float
    idle_seconds: float


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; ``met`` is None where there is no goal."""

    what: str
    value: str
    goal: str = ""
    met: bool | None = None


@dataclass(frozen=True, slots=True)
class Findings:
    """The table; CPU for each model while they came, in ms by process; and at which priority all of it ran."""

    rows: list[Row]
    cpu_ms: dict[str, float]
    priority: str


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 1 where a goal was missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.scale.bench", description="The operator at scale.")
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=500, help="each has two cards")
    parser.add_argument("--per-second", type=float, default=10.0, help="models applied a second")
    parser.add_argument("--idle-seconds", type=float, default=60.0, help="how long nothing happens")
    parser.add_argument("--cluster", default=os.environ.get("STRATA_TEST_CLUSTER", "bench"), help="which local cluster")
    parser.add_argument("--write", type=Path, help="the page to write")
    options = parser.parse_args(argv)
    if not 0 < options.models <= options.nodes * fleet.CARDS:
        parser.error(f"--models is {options.models}; {options.nodes} nodes have {options.nodes * fleet.CARDS} cards")
    settings = Settings(options.models, options.nodes, options.per_second, options.idle_seconds)
    load = os.getloadavg()[0]
    with Cluster.lent(options.cluster) as cluster:
        found = measure(cluster, settings)
    print(table(found.rows), costs(found.cpu_ms), sep="\n\n")
    if options.write:
        options.write.write_text(page(found, settings, load))
    return 0 if all(row.met is not False for row in found.rows) else 1


def measure(cluster: Cluster, settings: Settings) -> Findings:
    """What was measured. What it made in the cluster is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder, _furnished(cluster, settings.nodes):
        kubeconfig = install_rights(cluster, Path(folder))
        operator = OperatorProcess(kubeconfig, IMAGE, Path(folder) / "log")
        operator.start()
        try:
            with Api(cluster.kubeconfig, timeout_seconds=120) as api:
                return Run(cluster, operator, fleet.Models(api, NAMESPACES), settings).all()
        except Exception:
            print(operator.tail(), file=sys.stderr)
            raise
        finally:
            operator.kill()
            remove_rights(cluster)


@contextmanager
def _furnished(cluster: Cluster, nodes: int) -> Iterator[None]:
    for name in NAMESPACES:
        cluster.kubectl("create", "namespace", name)
    try:
        say(f"{nodes} nodes")
        install_crds(cluster)
        fleet.add_nodes(cluster, nodes)
        cluster.stop(PROXY)  # of the real node, where no pod runs: it would serve nobody, on the control plane's cores
        yield
    finally:
        cluster.start(PROXY)
        cluster.kubectl("delete", "namespace", *NAMESPACES, "--wait")
        fleet.remove_nodes(cluster)


class Run:
    """The phases, one after the other; each adds its rows."""

    def __init__(self, cluster: Cluster, operator: OperatorProcess, models: fleet.Models, settings: Settings) -> None:
        self.cluster, self.operator, self.models, self.settings = cluster, operator, models, settings
        self.names = [f"model-{index:04}" for index in range(settings.models)]
        self.rows: list[Row] = []
        self.cpu_ms: dict[str, float] = {}

    def all(self) -> Findings:
        for phase in (self.arrive, self.idle, self.touch, self.restart, self.leave):
            known = len(self.rows)
            phase()
            for row in self.rows[known:]:  # what is measured is not lost with what follows
                say(f"    {row.what}: {row.value}")
        return Findings(self.rows, self.cpu_ms, _priority())

    def arrive(self) -> None:
        number, per_second = len(self.names), self.settings.per_second
        say(f"{number} models, {per_second:g} a second")
        config = _admin(self.cluster)
        deployments, pods = (Arrivals(config, kind) for kind in ("Deployment", "Pod"))
        before, cpu = self.operator.requests(), self._cpu_seconds()
        asked = self.models.apply(self.names, per_second=per_second)
        self._until(lambda: len(pods.at) >= number, "a pod of every model")
        self._until(lambda: self.models.ready() == number, "every model to be Ready", every=5)
        self._settle()
        made = self.operator.requests() - before
        self._times("apply → Deployment created", deployments.after(asked))
        self._times("apply → pod created", pods.after(asked), goal=0.5)
        self.cpu_ms = {who: (now - cpu[who]) / number * 1000 for who, now in self._cpu_seconds().items()}
        self.rows.append(Row("operator's CPU for a new model, until Ready", f"{self.cpu_ms[OPERATOR]:.1f} ms"))
        calls = {verb: count / number for verb, count in sorted(made.items()) if verb not in ("list", "watch")}
        total = sum(calls.values())
        by_verb = ", ".join(f"{verb} {count:.2f}" for verb, count in calls.items() if count >= 0.005)
        met = round(total, 2) <= CALLS
        self.rows.append(Row("API calls for a new model, until Ready", f"{total:.2f} ({by_verb})", f"≤ {CALLS}", met))

    def idle(self) -> None:
        seconds = self.settings.idle_seconds
        say(f"nothing for {seconds:g} s")
        before, cpu, reconciles = self.operator.requests(), self.operator.cpu_seconds(), self.operator.reconciles()
        time.sleep(seconds)
        share = (self.operator.cpu_seconds() - cpu) / seconds
        calls = self.operator.requests() - before
        writes = _writes(calls)
        self.rows += [
            Row(f"writes in {seconds:g} s without a change", str(writes), "0", writes == 0),
            Row(f"other API calls in {seconds:g} s without a change", f"{calls.total() - writes}"),
            Row("reconciles meanwhile", f"{self.operator.reconciles() - reconciles:.0f}"),
            Row("CPU meanwhile", f"{share:.2%} of a core", "< 1 %", share < 0.01),
        ]
        self._memory("RSS with all models")

    def touch(self) -> None:
        number = min(100, len(self.names))
        say(f"{number} models touched")
        before, reconciles = self.operator.requests(), self.operator.reconciles()
        self.models.touch(number, str(time.time()))
        self._until(lambda: self.operator.reconciles() >= reconciles + number, "reconciles of what was touched")
        self._settle()
        calls = self.operator.requests() - before
        asked = sum(count for verb, count in calls.items() if verb not in ("list", "watch"))
        self.rows.append(Row("API calls for an unchanged model", f"{asked / number:.2f}", "0", asked == 0))

    def restart(self) -> None:
        say("a restart")
        self.operator.stop()
        begin = time.monotonic()
        self.operator.start()
        number = len(self.names)
        self._until(lambda: self.operator.reconciles() >= number, "every model to be reconciled after the restart")
        seconds = time.monotonic() - begin
        self._settle()
        writes = _writes(self.operator.requests())
        self.rows += [
            Row("restart → every model reconciled", f"{seconds:.1f} s", "< 5 s", seconds < 5),
            Row("writes after a restart", str(writes), "0", writes == 0),
        ]
        self._memory("RSS after a restart")

    def leave(self) -> None:
        say("all models deleted")
        begin = time.monotonic()
        self.models.delete_all()
        self._until(lambda: self.models.count() == 0, "the models to be gone", every=2)
        self.rows.append(Row("all models deleted at once → gone", f"{time.monotonic() - begin:.1f} s"))

    def _cpu_seconds(self) -> dict[str, float]:
        """Of the bench, the operator and the cluster's own processes since each began."""
        own = {one.role: cpu_seconds(one.pid) for one in processes.find(self.cluster.instance) if one.is_main}
        return {**own, OPERATOR: self.operator.cpu_seconds(), "this bench": time.process_time()}

    def _times(self, what: str, seconds: Sequence[float], goal: float | None = None) -> None:
        p50, p99 = statistics.median(seconds), statistics.quantiles(seconds, n=100)[98]
        self.rows.append(
            Row(
                f"{what}, p50 / p99 / longest",
                f"{p50 * 1000:.0f} / {p99 * 1000:.0f} / {seconds[-1] * 1000:.0f} ms",
                f"p99 < {goal * 1000:.0f} ms" if goal else "",
                p99 < goal if goal else None,
            )
        )

    def _memory(self, what: str) -> None:
        mib = self.operator.rss_bytes() / (1 << 20)
        self.rows.append(Row(what, f"{mib:.0f} MiB", "< 128 MiB", mib < 128))

    def _settle(self) -> None:
        """Wait until the operator has had nothing to do for a while."""
        since, reconciles = time.monotonic(), self.operator.reconciles()
        end = since + SETTLE_SECONDS
        while time.monotonic() - since < 3.0:
            time.sleep(0.2)
            now = self.operator.reconciles()
            if now != reconciles or self.operator.metric("strata_operator_queue_depth"):
                since, reconciles = time.monotonic(), now
            if time.monotonic() > end:
                raise TimeoutError(f"the operator has worked for {SETTLE_SECONDS:g} s and does not come to rest")

    def _until(self, condition: Callable[[], bool], what: str, *, every: float = 0.1) -> None:
        """``every``: seconds between two looks; one at all models costs the API server as much as the operator does."""
        end = time.monotonic() + SETTLE_SECONDS
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError(f"waited {SETTLE_SECONDS:g} s for {what}")
            time.sleep(every)


def _writes(calls: Counter[str]) -> int:
    return sum(calls[verb] for verb in WRITES)


def _admin(cluster: Cluster) -> Configuration:
    made = Configuration()
    kubernetes_config.load_kube_config(str(cluster.kubeconfig), client_configuration=made)
    return made


def say(words: str) -> None:
    tqdm.write(f"{datetime.now(UTC):%H:%M:%S} {words}", file=sys.stderr)


def table(rows: Sequence[Row]) -> str:
    """Markdown."""
    marks = {True: "yes", False: "**no**", None: ""}
    lines = ["| what | measured | goal | met |", "|---|---|---|---|"]
    return "\n".join([*lines, *(f"| {row.what} | {row.value} | {row.goal} | {marks[row.met]} |" for row in rows)])


def costs(cpu_ms: Mapping[str, float]) -> str:
    """Markdown, the dearest first; those that hardly take part are one line."""
    told = {who: ms for who, ms in sorted(cpu_ms.items(), key=lambda one: -one[1]) if ms >= 1}
    told["all others"] = sum(cpu_ms.values()) - sum(told.values())
    told["**all**"] = sum(cpu_ms.values())
    return "\n".join(
        ["| process | CPU ms a model |", "|---|---|", *(f"| {who} | {ms:.1f} |" for who, ms in told.items())]
    )


def page(found: Findings, settings: Settings, load: float) -> str:
    """The page of documentation, whole."""
    cores = os.cpu_count() or 1
    return f"""# The operator at scale

`make bench-operator` measures it anew and writes this page.

{settings.models} StrataModels in {len(NAMESPACES)} namespaces on {settings.nodes} pretend nodes (kwok) of two cards
each, applied at {settings.per_second:g} a second, against the real API server of the
[local cluster](local-cluster.md). Each model's fit is judged against all nodes; each gets four children, a status and
an event. Pods are pretended, and Ready at once. Operator, API server, etcd, controller manager, scheduler, kwok and the
bench share {cores} cores ({_cpu_name()}).

What is not as in a cluster of that size, so that these cores do: the controller manager runs with
`--kube-api-qps=300` (with its default of 20 it makes five pods a second, whatever the operator does); the control
plane and kwok run with `GOGC=400`; etcd does not wait for the disk; kube-proxy is stopped meanwhile, for on the one
real node no pod runs.

Measured once, on {datetime.now(UTC):%Y-%m-%d}, {found.priority}; load average before: {load:.1f}.

{table(found.rows)}

## Where the CPU goes

From the first model applied until all are Ready and the operator is at rest. Some of it has nothing to do with models,
as {settings.nodes / 10:.0f} Leases of nodes a second. {cores} cores have room for
{cores * 1000 / sum(found.cpu_ms.values()):.1f} models a second.

{costs(found.cpu_ms)}

A new model takes {CALLS} calls until it is Ready: four children, a status, an event. One that is not Ready within two
seconds takes more: a status and an event at the beginning, and a status for each step that lasts as long. Lists and
watches, which do not grow with the changes, are left out; so is the Lease, not held here (a patch each
2 s).
"""


def _priority() -> str:
    if os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR):
        return "all of it at real-time priority, for the machine had other work as well"
    return f"all of it at nice {os.nice(0)}"


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown CPU"


if __name__ == "__main__":
    sys.exit(main())
