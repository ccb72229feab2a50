"""Debian's Prometheus beside the local cluster: it reads the pods that there are, and has the chart's rules.

It bears the cluster's mark, so it ends with the cluster.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from manifests.charts import CHART
from tests.cluster import Cluster, processes
from tests.e2e.target import JourneyError
from tests.environment import find_prometheus

ROLE = "prometheus"
RULES = (CHART / "files" / "rules.yaml", CHART / "files" / "model-rules.yaml")
PORT = 9090
READY_SECONDS = 120
PODS = {"strata-engine": 8000, "strata-operator": 8080, "strata-agent": 8080}  # with their ports


def start(cluster: Cluster) -> str:
    """Start it unless it runs; returns its URL. Raises JourneyError where there is none, or it does not answer."""
    folder = cluster.instance.state / ROLE
    url = f"http://{cluster.network.host}:{PORT}"
    if processes.main_process(cluster.instance, ROLE) is not None:
        find_pods(cluster, folder)
        return url
    program = find_prometheus(ROLE)
    if program is None:
        raise JourneyError("there is no prometheus here; `make prometheus` unpacks Debian's into ~/.cache")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    find_pods(cluster, folder)
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration(folder)))
    command = [
        program,
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={cluster.network.host}:{PORT}",
    ]
    with (folder / "log").open("w") as log:
        subprocess.Popen(
            command, env=processes.environment(cluster.instance, ROLE, ()), start_new_session=True,
            stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
    return url


def configuration(folder: Path) -> dict[str, Any]:
    jobs = [
        {
            "job_name": name,
            "honor_labels": name == "strata-operator",  # models' namespaces stay theirs
            "file_sd_configs": [{"files": [str(folder / f"{name}.json")]}],
        }
        for name in PODS
    ]
    return {
        "global": {"scrape_interval": "5s", "evaluation_interval": "5s"},
        "rule_files": [str(path) for path in RULES],
        "scrape_configs": jobs,
    }


def find_pods(cluster: Cluster, folder: Path) -> None:
    """Those that there are now, for Prometheus to read: Debian's is built without discovery by Kubernetes."""
    for name, port in PODS.items():
        pods = cluster.get_json("pods", "-A", "-l", f"app.kubernetes.io/name={name}")["items"]
        found = [
            {"targets": [f"{pod['status']['podIP']}:{port}"], "labels": labels(pod)}
            for pod in pods
            if pod["status"].get("podIP")
        ]
        (folder / f"{name}.json").write_text(json.dumps(found))


def labels(pod: dict[str, Any]) -> dict[str, str]:
    """As Prometheus's operator and the models' monitors set them."""
    metadata, node = pod["metadata"], pod["spec"]["nodeName"]
    model = metadata["labels"].get("strata.ai/model", "")
    return {"namespace": metadata["namespace"], "pod": metadata["name"], "node": node, "model": model}


def ask(url: str, query: str) -> list[dict[str, Any]]:
    """What a query gives, as soon as it gives anything. Raises JourneyError where it gives nothing for long."""
    asked = f"{url}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    end, last = time.monotonic() + READY_SECONDS, "no answer"
    while time.monotonic() < end:
        try:
            with opener.open(asked, timeout=10) as answer:
                found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
            if found:
                return found
            last = "nothing"
        except OSError as error:
            last = str(error)
        time.sleep(0.5)
    raise JourneyError(f"{asked} gives {last} for {READY_SECONDS} s")
