"""``make chaos``: operator, agent, API server and kubelet are killed at random while models come, change and go.

Afterwards everything must come to what the last specs say, a new operator must find nothing to write, and once the
models are deleted and the agent is uninstalled nothing of either may be left. Model pods run a stand-in for the engine;
the agent is a real DaemonSet pod with the fake's cards.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from images.build import build
from images.catalogue import OPERATOR
from tests.cluster import Cluster
from tests.cluster.api import Api
from tests.cluster.errors import ApiError, ClusterError
from tests.cluster.gpu import RESOURCE
from tests.e2e.agents import NAMESPACE as AGENTS
from tests.e2e.agents import UNINSTALL, Agents, installed
from tests.operator.live.harness import (
    Models,
    OperatorProcess,
    build_engine,
    eventually,
    install_rights,
    remove_rights,
)

PRODUCT, OWN_WATTS = "NVIDIA-GeForce-RTX-3090", 300
CARDS = [{"kind": "rtx3090", "number": number, "power_limit": OWN_WATTS * 1000} for number in (0, 1)]
LITTLE = {"cpu": "50m", "memory": "64Mi"}
POD = {"spec": {"containers": [{"name": "engine", "resources": {"requests": LITTLE, "limits": LITTLE}}]}}
KINDS = "deployments,replicasets,jobs,pods,services,configmaps,serviceaccounts,networkpolicies,poddisruptionbudgets"
VICTIMS = ("operator", "agent", "kube-apiserver", "kubelet")
MAX_MODELS = {"cpu": 3, "nvidia": len(CARDS)}
CALM_SECONDS = (
    300.0  # for everything to converge; a preflight that was killed in the middle is tried again after a while
)


@dataclass
class Chaos:
    """One run. ``wanted`` are the last specs, by the models' names."""

    cluster: Cluster
    models: Models
    operator: OperatorProcess
    agents: Agents
    dice: random.Random
    wanted: dict[str, dict[str, Any]] = field(default_factory=dict)
    dead: dict[str, float] = field(default_factory=dict)  # until when, of those that were killed
    done: Counter[str] = field(default_factory=Counter)
    named: int = 0

    def run(self, seconds: float) -> None:
        """Each victim dies once, in a random order; the rest is up to the dice."""
        for _ in range(3):
            self.create()
        end = time.monotonic() + seconds
        first = self.dice.sample(VICTIMS, len(VICTIMS))
        while first or time.monotonic() < end:
            if first and not self.dead:
                self.kill(first.pop())
            else:
                self.act()
            self.revive()
            time.sleep(self.dice.uniform(0.0, 1.5))

    def act(self) -> None:
        actions: dict[Callable[[], None], int] = {self.create: 3, self.change: 6, self.delete: 2, self.break_child: 3}
        actions[lambda: self.kill(self.dice.choice(VICTIMS))] = 4
        (action,) = self.dice.choices(list(actions), list(actions.values()))
        with suppress(ClusterError):  # the API server is down: a person would try again, or do something else
            action()

    # -- what people do ----------------------------------------------------------------------------------------

    def create(self) -> None:
        kinds = [spec["hardware"]["accelerator"] for spec in self.wanted.values()]
        free = [kind for kind, most in MAX_MODELS.items() if kinds.count(kind) < most]
        if not free:
            return
        self.named += 1
        self._apply(f"model-{self.named}", self._spec(self.dice.choice(free)))
        self.done["create"] += 1

    def change(self) -> None:
        if not self.wanted:
            return
        name = self.dice.choice(sorted(self.wanted))
        self._apply(name, self._spec(self.wanted[name]["hardware"]["accelerator"]))
        self.done["change"] += 1

    def delete(self) -> None:
        if len(self.wanted) < 2:
            return
        name = self.dice.choice(sorted(self.wanted))
        cascade = self.dice.choice(("background", "foreground"))
        self.models.kubectl("delete", "sm", name, f"--cascade={cascade}", "--wait=false")
        del self.wanted[name]
        self.done["delete"] += 1

    def break_child(self) -> None:
        if not self.wanted:
            return
        name = self.dice.choice(sorted(self.wanted))
        kind = self.dice.choice(("service", "serviceaccount", "deployment", "networkpolicy"))
        if self.dice.random() < 0.5:
            self.models.kubectl("delete", kind, name, "--wait=false", "--ignore-not-found")
        else:
            self.models.kubectl("label", kind, name, "strata.ai/model-", "--overwrite")
        self.done["break a child"] += 1

    def _apply(self, name: str, spec: dict[str, Any]) -> None:
        self.models.apply(name, **spec)
        self.wanted[name] = spec

    def _spec(self, accelerator: str) -> dict[str, Any]:
        dice = self.dice
        spec: dict[str, Any] = {"engine": {"maxModelLen": dice.choice((512, 1024, 2048))}, "podTemplate": POD}
        hardware: dict[str, Any] = {"accelerator": accelerator, "cpu": 1, "memory": "1Gi"}
        if accelerator == "nvidia":
            spec["power"] = {"limitWatts": dice.choice((250, 270, 290))}
            return {**spec, "hardware": {**hardware, "gpus": ["RTX3090"]}}
        return {**spec, "hardware": hardware, "replicas": dice.choice((0, 1, 1, 2)), "suspend": dice.random() < 0.1}

    # -- what happens to them ----------------------------------------------------------------------------------

    def kill(self, victim: str) -> None:
        if victim in self.dead:
            return
        if victim == "operator":
            self.operator.kill()
        elif victim == "agent":
            pod = self.agents.pod()
            self.cluster.kubectl("-n", AGENTS, "delete", "pod", pod, "--grace-period=0", "--force")
        else:
            self.cluster.kill(victim)
        if victim != "agent":  # of which the DaemonSet makes another
            self.dead[victim] = time.monotonic() + self.dice.uniform(0.0, 6.0)
        self.done[f"kill {victim}"] += 1
        say(f"killed {victim}")

    def revive(self, *, at_once: bool = False) -> None:
        """Those whose time has come; an operator that ended by itself, as a kubelet would; cards, as a device plugin
        would after the kubelet's restart."""
        for victim, until in list(self.dead.items()):
            if at_once or time.monotonic() >= until:
                del self.dead[victim]
                if victim != "operator":
                    self.cluster.start(victim)
        if "operator" not in self.dead and not self.operator.is_alive():
            self.operator.spawn()
        self.plug_in()

    def plug_in(self) -> None:
        with suppress(ApiError), Api(self.cluster.kubeconfig, timeout_seconds=5) as api:
            there = api.get(f"/api/v1/nodes/{self.cluster.node}")["status"].get("allocatable", {})
            if there.get(RESOURCE) != str(len(CARDS)):
                self.cluster.add_pretend_gpu(count=len(CARDS), product=PRODUCT)

    # -- what must be so afterwards ----------------------------------------------------------------------------

    def converge(self) -> None:
        """Everything is as the last specs say, and stays so."""
        self.revive(at_once=True)
        self.until(self.models.answers, "the API server to answer")

        def up() -> bool:
            self.revive()
            return self.operator.is_ready()

        self.until(up, "the operator to be ready")
        self.until(lambda: self._names("sm") == sorted(self.wanted), "the models to be those that were asked for")
        self.agents.rolled_out()
        for name, spec in sorted(self.wanted.items()):
            self.until(partial(self._serves, name, spec), f"{name} to be as its spec says")
        self.until(self._is_tuned, "the cards to be tuned as the models want them")
        self.until(self._has_no_more_than_wanted, "no pod and no child to be there that no model wants")
        self.operator.stop()
        self.operator.start()
        number = len(self.wanted)
        self.until(lambda: self.operator.reconciles() >= number, "a new operator to have looked at each model")
        assert self.operator.writes() == 0, f"a new operator found {self.operator.writes():.0f} things to write"

    def leave(self) -> None:
        """Models and agent go, and nothing of them is left."""
        self.models.kubectl("delete", "sm", "--all", "--wait=false")
        self.until(lambda: self._names("sm") == [], "the models to be gone")
        mine = ("get", KINDS, "-l", "strata.ai/model", "-o", "name")
        self.until(lambda: not self.models.kubectl(*mine).strip(), "the models' children and pods to be gone")
        self.until(lambda: self._watts() == [OWN_WATTS] * len(CARDS), "the cards to have their own limits again")
        node = self.agents.node()
        assert not (node["spec"].get("tuning") or {}).get("models"), f"wishes are left: {node['spec']}"
        assert "originals" not in node["status"], f"originals are left: {node['status']['originals']}"
        self.agents.apply("uninstall", UNINSTALL)
        self.until(lambda: self.agents.node() == {}, "the StrataNode to be gone with the agent")
        shown = json.dumps(self.cluster.get_json("node", self.cluster.node)["metadata"]["labels"])
        assert "strata.ai/" not in shown, f"labels are left on the node: {shown}"
        assert not self.agents.taints()

    def _serves(self, name: str, spec: dict[str, Any]) -> bool:
        ready, degraded = (self.models.condition(name, kind) for kind in ("Ready", "Degraded"))
        reason = "Suspended" if spec.get("suspend") else "Serving" if spec.get("replicas", 1) else "ScaledToZero"
        return (ready.get("reason"), degraded.get("status")) == (reason, "False")

    def _has_no_more_than_wanted(self) -> bool:
        pods = json.loads(
            self.models.kubectl("get", "pods", "-l", "app.kubernetes.io/name=strata-engine", "-o", "json")
        )
        there = Counter(pod["metadata"]["labels"]["strata.ai/model"] for pod in pods["items"])
        replicas = {name: 0 if one.get("suspend") else one.get("replicas", 1) for name, one in self.wanted.items()}
        is_so = there == Counter({name: number for name, number in replicas.items() if number})
        return is_so and self._names("deployments") == self._names("services") == sorted(self.wanted)

    def _is_tuned(self) -> bool:
        wishes = (self.agents.node().get("spec", {}).get("tuning") or {}).get("models") or []
        limits = {
            f"{self.models.namespace}/{name}": spec["power"]["limitWatts"]
            for name, spec in self.wanted.items()
            if "power" in spec
        }
        in_force = min(limits.values(), default=OWN_WATTS)  # the lowest wins, on all cards of the node
        return (
            {wish["model"]: wish["powerLimitWatts"] for wish in wishes} == limits
            and self._watts() == [in_force] * len(CARDS)
            and self.agents.condition("Healthy")[0] == "True"
        )

    def _watts(self) -> list[Any]:
        gpus = (self.agents.node().get("status") or {}).get("gpus") or []
        return [(one.get("power") or {}).get("limitWatts") for one in gpus]

    def _names(self, kind: str) -> list[str]:
        return sorted(self.models.kubectl("get", kind, "-o", "jsonpath={.items[*].metadata.name}").split())

    def until(self, condition: Callable[[], bool], what: str) -> None:
        def met() -> bool:
            with suppress(ClusterError):  # it may have to come to itself
                return condition()
            return False

        eventually(met, CALM_SECONDS, lambda: f"waited {CALM_SECONDS:g} s for {what}\n{self.evidence()}")

    def evidence(self) -> str:
        shown = [json.dumps(self.wanted, indent=1), self.operator.tail()]
        with suppress(ClusterError):
            shown += [self.models.kubectl("get", f"sm,{KINDS}", "-o", "wide"), json.dumps(self.agents.node(), indent=1)]
            shown += [self.models.kubectl("get", "sm", "-o", "jsonpath={.items[*].status.conditions}")]
        return "\n".join(shown)


def chaos(
    cluster: Cluster, models: Models, operator: OperatorProcess, image: str, *, seconds: float, seed: int
) -> Counter[str]:
    """Run it; how often what was done. ``operator`` runs before and afterwards; ``image`` is the agent's.

    Raises AssertionError where something does not converge, or is left over.
    """
    try:
        with installed(cluster, image, *CARDS) as agents:
            run = Chaos(cluster, models, operator, agents, random.Random(seed))
            run.plug_in()
            run.run(seconds)
            say(f"calm after {dict(run.done)}")
            begin = time.monotonic()
            run.converge()
            say(f"converged in {time.monotonic() - begin:.0f} s")
            run.leave()
            return run.done
    finally:
        for victim in VICTIMS[2:]:
            cluster.start(victim)
        cluster.remove_pretend_gpu()


@contextmanager
def furnished(cluster: Cluster) -> Iterator[tuple[Models, OperatorProcess]]:
    """A namespace and an operator of this run's own."""
    with tempfile.TemporaryDirectory() as folder:
        kubeconfig = install_rights(cluster, Path(folder))
        cluster.kubectl("create", "namespace", "chaos")
        operator = OperatorProcess(kubeconfig, build_engine(cluster, Path(folder)), Path(folder) / "log")
        operator.start()
        try:
            yield Models(cluster, "chaos"), operator
            code = operator.stop()
            assert code == 0, f"the operator ended with {code} after SIGTERM:\n{operator.tail()}"
            assert "Traceback (most recent call last)" not in operator.log.read_text(), operator.tail(200)
        finally:
            operator.kill()
            cluster.kubectl("delete", "namespace", "chaos", "--wait")
            remove_rights(cluster)


def say(words: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {words}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.stress.chaos", description="Random kills, then calm.")
    parser.add_argument("--seconds", type=float, default=900.0, help="of chaos (default: 900)")
    parser.add_argument("--seed", type=int, default=None, help="of what is done; default: another each time")
    parser.add_argument("--cluster", default=os.environ.get("STRATA_TEST_CLUSTER", "chaos"), help="which local cluster")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10_000)
    say(f"seed {seed}")
    with Cluster.lent(options.cluster) as cluster:
        image = build([OPERATOR], to=cluster.registry, push=True)[OPERATOR.name]
        with furnished(cluster) as (models, operator):
            done = chaos(cluster, models, operator, image, seconds=options.seconds, seed=seed)
    print(f"{options.seconds:g} s of chaos with seed {seed} converged, and nothing was left: ", end="")
    print(", ".join(f"{what} {number}" for what, number in sorted(done.items())))


if __name__ == "__main__":
    main()
