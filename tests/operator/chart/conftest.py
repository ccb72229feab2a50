from __future__ import annotations

import pytest

from manifests.generate import find_helm
from tests.operator.chart.helm import Helm


@pytest.fixture(scope="session")
def helm() -> Helm:
    """That of the PATH, or the local cluster's, which `make test` builds first."""
    try:
        return Helm(find_helm())
    except SystemExit as missing:
        pytest.skip(str(missing))
