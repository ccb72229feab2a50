"""Fixtures that every test may use: Triton's interpreter, the local cluster, and the images in its registry. All are
made on first use."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from manifests.charts import find_helm
from strata.runner.threads import spin_briefly
from tests.browser import find_chromium, run_browser
from tests.environment import BROWSERS
from tests.kernels.interpret import Interpreter
from tests.operator.chart.helm import Helm

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.cluster import Cluster

spin_briefly()  # before any test imports torch
gc.disable()  # until all is imported: the collector would walk through it again and again, for seconds

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As a shell starts what runs in the background. Children would inherit it, and tests interrupt them.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Quick tests first. A cluster test may have to wait for Go builds on a machine that never ran one."""
    items.sort(key=lambda item: item.get_closest_marker("cluster") is not None)
    for item in items:
        if item.get_closest_marker("cluster") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(1800))


def pytest_collection_finish() -> None:
    gc.freeze()  # nor need it walk through that while tests run
    gc.enable()


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Interpreter]:
    """Triton's, in a process of its own."""
    interpreter = Interpreter()
    yield interpreter
    interpreter.close()


@pytest.fixture(scope="session")
def helm() -> Helm:
    """That of the PATH, or the local cluster's, which `make test` builds first."""
    try:
        return Helm(find_helm())
    except SystemExit as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for all tests of a file."""
    pytest.importorskip("playwright", reason="Playwright is not installed; `make venv` does that")
    executable = find_chromium()
    if executable is None:
        pytest.skip(f"there is none of {', '.join(BROWSERS)} here; `make browser` installs the first on Debian")
    with run_browser(executable) as running:
        yield running


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A running cluster of one real node, with kwok for pretend ones; each process of a parallel run has its own.

    ``STRATA_TEST_CLUSTER=NAME`` takes (or starts) the instance of that name and leaves it running afterwards.
    """
    from tests.cluster import Cluster

    kept = os.environ.get("STRATA_TEST_CLUSTER")
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    running = Cluster.up("-".join(filter(None, (kept or "test", worker))), kwok=True)
    try:
        yield running
    finally:
        if not kept:
            running.down()


@pytest.fixture(scope="session")
def images(cluster: Cluster) -> dict[str, str]:
    """References of this checkout's images in the cluster's registry, by the images' names."""
    from images.build import build

    return build(to=cluster.registry, push=True)


@pytest.fixture(scope="session")
def operator_image(cluster: Cluster) -> str:
    """That of operator and agent alone: the engine's takes minutes more."""
    from images.build import build
    from images.catalogue import OPERATOR

    return build([OPERATOR], to=cluster.registry, push=True)[OPERATOR.name]
