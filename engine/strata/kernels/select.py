"""Which version of the steps a device gets: the one place that decides."""

from __future__ import annotations

import torch

from strata.kernels.layer import Kernels
from strata.kernels.operations import operations_for


def kernels_for(device: torch.device, dtype: torch.dtype) -> Kernels:
    """The steps on ``device`` for activations in ``dtype``."""
    operations = operations_for(device, dtype)
    if device.type == "cuda" and dtype == torch.bfloat16:
        from strata.kernels.cuda import CudaKernels  # Triton is there where CUDA is

        return CudaKernels(operations, dtype)
    return Kernels(operations, dtype)
