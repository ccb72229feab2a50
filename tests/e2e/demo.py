"""``make demo``: from nothing to a chat answer of a model on Kubernetes, and metrics of all of it.

It may be interrupted, and run again.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager

import httpx

from images.build import build
from images.buildah import BuildError
from images.catalogue import ALL, GATEWAY
from tests.cluster import Cluster
from tests.cluster.errors import ClusterError
from tests.cluster.instance import DEFAULT_NAME
from tests.e2e import chat, gateway, prometheus
from tests.e2e.install import EXAMPLE, ROOT, install, uninstall
from tests.e2e.models import OPERATOR, OPERATOR_NAMESPACE, wait_ready
from tests.e2e.target import JourneyError, Target

MODEL, MODEL_NAMESPACE = "smollm2", "default"
QUESTION = "What is the capital of France, and what is it known for?"
KEY_NAME = "demo"  # of the Secret
STEPS = 7
# A card that is not there: nothing real is read or set.
FAKE_AGENT = {
    "agent.enabled": True,
    "agent.fake": {"cards": [{"kind": "rtx3090"}]},
    "agent.nodeSelector": {"nvidia.com/gpu.present": None},
}
KEY_SECONDS = 60  # until the gateway knows a key; a second, where the machine is not busy
READY_SECONDS = 900  # pulling 4 GB and converting the checkpoint on a slow disk


@contextmanager
def step(number: int, title: str) -> Iterator[None]:
    print(f"\n[{number}/{STEPS}] {title}", flush=True)
    started = time.monotonic()
    yield
    print(f"[{number}/{STEPS}] done in {time.monotonic() - started:.1f} s", flush=True)


def run_side_by_side(*commands: list[str]) -> None:
    """Run commands at once; when one fails, stop the others and say which. Raises JourneyError.

    Each has a process group of its own: what it started (compilers, buildah) is stopped with it.
    """
    processes = [subprocess.Popen(command, cwd=ROOT, process_group=0) for command in commands]
    with ThreadPoolExecutor(len(processes)) as pool:
        waiting = [pool.submit(finish, *pair) for pair in zip(processes, commands, strict=True)]
        try:
            finished, _ = wait(waiting, return_when=FIRST_EXCEPTION)
            for future in finished:
                future.result()
        finally:
            for process in processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGTERM)


def finish(process: subprocess.Popen[bytes], command: list[str]) -> None:
    if process.wait() != 0:
        raise JourneyError(f"`{' '.join(command)}` failed; its reason is above")


def prepare() -> tuple[Target, dict[str, str]]:
    """Steps 1 and 2: a cluster, and the images in a registry that it can pull from."""
    kubeconfig = os.environ.get("STRATA_KUBECONFIG")
    python = sys.executable
    if kubeconfig:
        with step(1, f"your cluster ({kubeconfig})"):
            target = Target.foreign(kubeconfig)
            print(target.run("kubectl", "get", "nodes"), end="")
    else:
        with step(1, "the local cluster's parts and, beside them, the images"):
            build_all = [python, "-m", "images.build", *(f"--{image.short}" for image in ALL)]
            run_side_by_side([python, "-m", "tests.cluster", "up"], build_all)
            target = Target.local(Cluster.attach(os.environ.get("STRATA_CLUSTER", DEFAULT_NAME)))
    with step(2, f"the images to the registry {target.registry}"):
        images = build(ALL, to=target.registry, push=True)
    return target, images


def ask(target: Target) -> None:
    """Step 5: a streamed answer through the Service, and what the metrics say of it."""
    with target.service(MODEL_NAMESPACE, MODEL) as url, chat.openai(url) as client:
        [served] = [model.id for model in client.models.list().data]
        before = chat.metrics(url)
        print(f"    {url}/v1 serves {served}\n    you:    {QUESTION}\n    model:  ", end="", flush=True)
        for piece in chat.stream(client, served, QUESTION, max_tokens=96):
            print(piece.replace("\n", "\n            "), end="", flush=True)
        speed = chat.speed(before, chat.metrics(url))
    print(
        f"\n    /metrics: first token after {speed.time_to_first_token * 1000:.0f} ms, "
        f"then {speed.tokens_per_second:.1f} tok/s ({speed.tokens} tokens)"
    )


def ask_gateway(target: Target) -> str:
    """Step 6: the same at the URL of all models, with a key; returns that."""
    key = gateway.find_key(target, KEY_NAME)
    if key is None:
        key = gateway.make_key(target, KEY_NAME, f"sk-{secrets.token_hex(24)}", **{"requests-per-minute": "60"})
    with target.service(OPERATOR_NAMESPACE, gateway.NAME) as url, chat.openai(url, key) as client:
        until = time.monotonic() + KEY_SECONDS
        while not gateway.is_known(client):
            if time.monotonic() > until:
                raise JourneyError(f"{url} does not take the key of the Secret {KEY_NAME} after {KEY_SECONDS} s")
            time.sleep(0.2)
        print(f"    {url}/v1 has {[model.id for model in client.models.list().data]}\n    model:  ", end="", flush=True)
        for piece in chat.stream(client, MODEL, "Which river runs through Paris?", max_tokens=32):
            print(piece.replace("\n", "\n            "), end="", flush=True)
    print()
    return key


def watch(target: Target, cluster: Cluster) -> str:
    """Step 7: Prometheus reads operator, agent and model; returns its address."""
    url = prometheus.start(cluster)
    print(f"    {url} reads the cluster's pods")
    for what, query in {
        "the operator leads": "strata_operator_leader == 1",
        "the model's tokens": f'strata_generation_tokens_total{{model="{MODEL}"}} > 0',
        "watts of the FAKE card": "strata_gpu_power_watts",
    }.items():
        [first, *_] = prometheus.ask(url, query)
        print(f"    {what:24} {query}: {first['value'][1]}")
    return url


def addresses(target: Target, key: str, metrics: str | None) -> str:
    """Each is fetched before it is shown."""
    with target.service(MODEL_NAMESPACE, MODEL) as url, target.service(OPERATOR_NAMESPACE, gateway.NAME) as all_models:
        found = {
            "OpenAI's API": f"{url}/v1/models",
            "a page for a browser": f"{url}/",
            "the model's metrics": f"{url}/metrics",
            "all models, with a key": f"{all_models}/v1/models",
        }
        if metrics is not None:
            # Its own page lies in the package alone, which is not installed.
            found |= {"Prometheus": f"{metrics}/api/v1/query?query=up", "its alerts": f"{metrics}/api/v1/rules"}
        for address in found.values():
            try:
                bearer = {"Authorization": f"Bearer {key}"} if address.startswith(all_models) else {}
                httpx.get(address, headers=bearer, trust_env=False, timeout=30).raise_for_status()
            except httpx.HTTPError as error:
                raise JourneyError(f"{address} does not answer: {error}") from error
    shown = [f"  {what:24} {address}" for what, address in found.items()]
    shown.append(f"  {'the key':24} {key}")
    shown.append(f"  {'dashboards':24} charts/strata/files/dashboards/*.json; in Grafana: Dashboards, New, Import")
    return "\n".join(shown)


def what_next(target: Target) -> str:
    local = 'eval "$(python3 -m tests.cluster env)"      # kubectl and helm of the local cluster'
    kubectl = local if target.is_local else f"export KUBECONFIG={target.kubeconfig}"
    return f"""
Try next:
  {kubectl}
  kubectl get sm                              # the models
  kubectl describe sm {MODEL}                 # conditions and events
  kubectl logs deployment/{MODEL}             # the engine
  kubectl logs -n {OPERATOR_NAMESPACE} deployment/{OPERATOR}
  make demo-down"""


def demo() -> None:
    started = time.monotonic()
    target, images = prepare()
    cluster = Cluster.attach(os.environ.get("STRATA_CLUSTER", DEFAULT_NAME)) if target.is_local else None
    with step(3, "helm upgrade --install strata charts/strata"):
        # A cluster of somebody else may have cards, and agents: theirs are not played with.
        further = gateway.values(images[GATEWAY.name]) | (FAKE_AGENT if target.is_local else {})
        install(target, images, further)
        if target.is_local:
            target.run("kubectl", "rollout", "status", "daemonset/strata-agent", "-n", OPERATOR_NAMESPACE)
            print("    operator and node agent run; the agent's card is FAKE, an RTX 3090 that is not there")
    with step(4, f"kubectl apply -f {EXAMPLE.relative_to(ROOT)}; conditions until Ready"):
        target.run("kubectl", "apply", "-n", MODEL_NAMESPACE, "-f", str(EXAMPLE))
        wait_ready(target, MODEL_NAMESPACE, MODEL, seconds=READY_SECONDS)
        print(target.run("kubectl", "get", "sm", "-n", MODEL_NAMESPACE), end="")
    with step(5, "a chat through the Service, with the openai client"):
        ask(target)
    with step(6, "the same at one URL for all models: LiteLLM's proxy, with a key"):
        key = ask_gateway(target)
    metrics = None
    with step(7, "metrics: Prometheus reads operator, agent and model"):
        if cluster is not None:
            metrics = watch(target, cluster)
        else:
            print("    left out on a cluster of yours: docs/installation.md has what yours needs")
    print(f"\nAll of these answered:\n{addresses(target, key, metrics)}")
    print(what_next(target))
    print(f"\nThe whole demo took {time.monotonic() - started:.0f} s.")


def down() -> None:
    """Take Strata off a cluster of the user's own; the local one goes as a whole."""
    target = Target.foreign(os.environ["STRATA_KUBECONFIG"])
    target.run("kubectl", "delete", "-n", MODEL_NAMESPACE, "-f", str(EXAMPLE), "--ignore-not-found", "--wait")
    target.run("kubectl", "delete", "secret", KEY_NAME, *gateway.HERE, "--ignore-not-found")
    uninstall(target)
    print("Strata is off the cluster; its custom resource definition stays, since deleting that deletes every model")


def main() -> None:
    try:
        down() if sys.argv[1:] == ["down"] else demo()
    except (JourneyError, ClusterError, BuildError) as error:
        sys.exit(f"\nerror: {error}")
    except KeyboardInterrupt:
        sys.exit("\ninterrupted; `make demo` goes on from here, `make demo-down` clears up")


if __name__ == "__main__":
    main()
