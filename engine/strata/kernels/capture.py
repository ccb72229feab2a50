"""Work of a card as a CUDA graph, which costs the host a single launch each time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

# A step to what runs it again, and its result, which is then overwritten.
Capture: TypeAlias = Callable[[Callable[[], Any]], tuple[Callable[[], None], Any]]


def on_card(device: torch.device) -> Capture:
    """Captures graphs that share their memory: they must not run at the same time."""
    pool = torch.cuda.graph_pool_handle()

    def capture(step: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        aside = torch.cuda.Stream(device)
        aside.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(aside):
            step()  # builds kernels and work areas, which a capture must not
        torch.cuda.current_stream(device).wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            result = step()
        return graph.replay, result

    return capture
