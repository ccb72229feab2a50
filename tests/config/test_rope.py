"""RoPE's tables: every number is found or named."""

from __future__ import annotations

import math
from typing import Any

import pytest

from strata.config import DynamicScaling, Llama3Scaling, RopeConfig, YarnScaling
from strata.config.keys import Keys
from strata.config.rope import read_rope
from strata.errors import CheckpointError, UnsupportedModelError

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def read(scaling: Any, **keys: Any) -> RopeConfig:
    return read_rope(Keys({"max_position_embeddings": 1000, **keys, "rope_scaling": scaling}, "c.json"), 10_000.0)


def test_no_table_is_the_default() -> None:
    assert read(None) == RopeConfig(theta=10_000.0, scaling=None)
    assert read({"rope_type": "default", "rope_theta": 5e5}) == RopeConfig(theta=5e5, scaling=None)


def test_missing_numbers_follow_from_others() -> None:
    assert read(LLAMA3).scaling == Llama3Scaling(8.0, 1.0, 4.0, original_positions=1000)
    assert read(LLAMA3, original_max_position_embeddings=300).scaling == Llama3Scaling(8.0, 1.0, 4.0, 300)
    yarn = read({"rope_type": "yarn", "original_max_position_embeddings": 250}).scaling
    assert yarn == YarnScaling(4.0, 250, 32.0, 1.0, truncate=True, attention_factor=0.1 * math.log(4.0) + 1.0)
    assert read({"type": "dynamic", "factor": 2.0}).scaling == DynamicScaling(2.0, original_positions=1000)


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        pytest.param(None, 1000, id="default"),
        pytest.param(LLAMA3, 1000, id="llama3: the checkpoint declares what it was made for"),
        pytest.param({"rope_type": "linear", "factor": 4.0}, 4000, id="linear"),
        pytest.param({"rope_type": "dynamic", "factor": 2.5}, 2500, id="dynamic"),
        pytest.param({"rope_type": "yarn", "factor": 4.0}, 4000, id="yarn beside the trained length"),
        pytest.param(
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 250},
            1000,
            id="yarn beside the final length",
        ),
        pytest.param({"rope_type": "linear", "factor": 0.1}, 1000, id="a factor that shrinks"),
        pytest.param({"rope_type": "linear", "factor": 1e308}, 2**31 - 1, id="a factor beyond all positions"),
    ],
)
def test_how_far_a_scaling_reaches(scaling: Any, expected: int) -> None:
    assert read(scaling).reach(1000) == expected


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ("linear", "RoPE's scaling is 'linear'; one flat table is needed"),
        ({"full_attention": {"rope_theta": 1.0}}, "one flat table is needed"),
        ({"rope_type": "linear"}, "c.json: RoPE's scaling: 'factor' is None; a positive number is needed"),
        ({"rope_type": "yarn", "factor": 2.0, "truncate": 0}, "'truncate' is 0; true or false is needed"),
        ({**LLAMA3, "low_freq_factor": 4.0}, "'low_freq_factor' is 4.0; 'high_freq_factor', 4.0, must lie above"),
    ],
)
def test_what_is_wrong_is_named(scaling: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(scaling)


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        (
            {"rope_type": "longrope", "factor": 2.0},
            "'longrope' is not supported; supported are default, linear, dynamic, llama3, yarn",
        ),
        ({"rope_type": "default", "partial_rotary_factor": 0.25}, "RoPE turns 0.25 of each head's dimensions"),
    ],
)
def test_what_is_not_supported_is_refused(scaling: Any, message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        read(scaling)
