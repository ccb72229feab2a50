"""How Triton kernels are launched on the GPU at hand."""

from __future__ import annotations

from typing import Any

import torch
import triton


def capability() -> tuple[int, int]:
    """Of the current GPU; (8, 0) in Triton's interpreter."""
    return (8, 0) if triton.knobs.runtime.interpret else torch.cuda.get_device_capability()


def early() -> dict[str, Any]:
    """Arguments of a kernel that calls ``overlap_launches``: from sm_90 on, a kernel of a stream may begin while the
    one before it runs. What it does until it waits, loading weights, is then hidden."""
    can = capability() >= (9, 0)
    return {"EARLY": can, "launch_pdl": True} if can else {"EARLY": False}
