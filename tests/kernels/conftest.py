"""Where Triton kernels are tested: in Triton's interpreter, and on a GPU where there is one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch


@dataclass(frozen=True, slots=True)
class Machine:
    """``call(function, ...)`` runs it where its kernels run; its tensors belong on ``device``, and it must return what
    is looked at."""

    device: str
    call: Callable[..., Any]


@pytest.fixture(params=["interpreted", "cuda"])
def machine(request: pytest.FixtureRequest) -> Machine:
    if request.param == "interpreted":
        return Machine("cpu", request.getfixturevalue("interpreter").call)
    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    return Machine("cuda", lambda function, *arguments, **named: function(*arguments, **named))
