from __future__ import annotations

import pytest

from tests.cluster.errors import ClusterError
from tests.cluster.gpu import labels


def test_labels_are_those_of_gpu_feature_discovery() -> None:
    assert labels("NVIDIA-GeForce-RTX-3090", 24576, 2) == {
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": "NVIDIA-GeForce-RTX-3090",
        "nvidia.com/gpu.memory": "24576",
        "nvidia.com/gpu.count": "2",
        "nvidia.com/gpu.replicas": "1",
        "nvidia.com/gpu.family": "ampere",
        "nvidia.com/gpu.compute.major": "8",
        "nvidia.com/gpu.compute.minor": "6",
    }


def test_an_unknown_product_gets_no_invented_capability() -> None:
    assert not any("compute" in name or "family" in name for name in labels("Acme-1", 1024, 1))


@pytest.mark.parametrize(
    ("product", "vram_mib", "count"),
    [("NVIDIA GeForce RTX 3090", 24576, 1), ("", 24576, 1), ("A100", 0, 1), ("A100", 40960, 0)],
    ids=["blanks", "nothing", "no memory", "no GPU"],
)
def test_what_could_be_no_label_is_refused(product: str, vram_mib: int, count: int) -> None:
    with pytest.raises(ClusterError):
        labels(product, vram_mib, count)
