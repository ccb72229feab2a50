"""What is compiled of argmax: ``test_compile``."""

from __future__ import annotations

import torch

from strata.kernels.argmax.triton import argmax
from tests.kernels.compilation import Case

CASES = [Case("argmax, Qwen3", lambda: argmax(torch.empty(4, 151_936)), frozenset({"part_kernel"}))]
