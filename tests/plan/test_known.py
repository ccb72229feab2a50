from __future__ import annotations

import pytest

from strata.config.model_name import BuiltinName
from strata.config.public import SHAPES
from strata.plan.known import BUILTINS, PUBLISHED, known
from strata.plan.parts import weight_parts
from strata.store.peek import peek
from strata.store.sources import builtin


def test_the_built_in_model_is_what_its_file_says() -> None:
    shape = known("builtin://smollm2-135m")
    assert shape is not None
    assert shape.config == peek("builtin://smollm2-135m").model


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("builtin://smollm2-135m", 0.135),
        ("Qwen/Qwen3-8B", 8.2),
        ("Qwen/Qwen3-30B-A3B", 30.5),
        ("Qwen/Qwen3-235B-A22B", 235),
        ("mistralai/Mixtral-8x7B-v0.1", 46.7),
        ("openai/gpt-oss-20b", 20.9),
        ("openai/gpt-oss-120b", 116.8),
    ],
)
def test_shapes_have_the_parameters_that_their_publishers_count(name: str, billions: float) -> None:
    shape = known(name)
    assert shape is not None
    assert weight_parts(shape.config, "bf16").total / 2 / 1e9 == pytest.approx(billions, rel=0.005)


def test_every_shape_is_one_that_some_name_stands_for() -> None:
    assert set(PUBLISHED.values()) == set(SHAPES)


def test_the_built_in_models_are_those_that_the_engine_opens() -> None:
    assert tuple(str(BuiltinName(name)) for name in builtin.BUILTINS) == BUILTINS


@pytest.mark.parametrize("name", ["Qwen/Qwen3-8B:Q4_K_M", "qwen/qwen3-8b", "/models/Qwen3-8B", "builtin://other"])
def test_what_may_be_another_model_is_not_known(name: str) -> None:
    assert known(name) is None


def test_experts_that_stay_packed() -> None:
    packed = [name for name in PUBLISHED if (shape := known(name)) and shape.expert_format]
    assert packed == ["openai/gpt-oss-20b", "openai/gpt-oss-120b"]
