from __future__ import annotations

from typing import Any

import pytest

from strata_operator.api.errors import InvalidSpecError
from strata_operator.gateway.backend import Backend
from strata_operator.gateway.client_key import ClientKey
from strata_operator.gateway.render import document
from tests.operator.gateway.objects import digest, model

NO_LIMITS: Any = {"rpm_limit": None, "tpm_limit": None}


def made(
    *models: dict[str, Any], keys: tuple[ClientKey, ...] = (), api_keys: dict[tuple[str, str, str], str] | None = None
) -> dict[str, Any]:
    return document([Backend.of(one) for one in models], keys, api_keys or {})


def names(told: dict[str, Any]) -> dict[str, str]:
    """Of each model, by its id."""
    return {one["model_info"]["id"]: one["model_name"] for one in told["model_list"]}


def test_a_model() -> None:
    told = made(model("m.1", served="Org/Llama", service={"port": 80}))
    assert told == {
        "model_list": [
            {
                "model_name": "Org/Llama",
                "litellm_params": {
                    "model": "openai/Org/Llama",
                    # A Service cannot bear every name that a model can.
                    "api_base": "http://m-1-9ef27529.a.svc:80/v1",
                    "api_key": "none",
                },
                "model_info": {"id": "a/m.1"},
            }
        ],
        "model_group_alias": {"a/Org/Llama": {"model": "Org/Llama", "hidden": True}},
        "keys": {},
    }


def test_the_name_is_the_metadata_s_where_no_other_is_served() -> None:
    assert names(made(model("m"))) == {"a/m": "m"}


def test_a_name_belongs_to_the_namespace_that_had_it_first() -> None:
    told = made(
        model("late", "b", created=2, served="llama"),
        model("early", "c", created=1, served="llama"),
    )
    assert names(told) == {"c/early": "llama", "b/late": "b/llama"}
    assert told["model_group_alias"] == {"c/llama": {"model": "llama", "hidden": True}}


def test_models_of_a_namespace_with_one_name_share_its_requests() -> None:
    told = made(model("x", created=1, served="llama"), model("y", created=9, served="llama"))
    assert names(told) == {"a/x": "llama", "a/y": "llama"}


def test_a_name_that_looks_like_another_namespace_s_takes_nothing_from_it() -> None:
    """``b/llama`` is the long name of the second, whatever the first calls itself."""
    claims, owns = model("x", "a", created=1, served="b/llama"), model("y", "b", created=2, served="llama")
    told = made(claims, owns, keys=(ClientKey("team", ("d",), ("b/*",), None, None),))
    assert names(told) == {"a/x": "a/b/llama", "b/y": "llama"}
    assert told["model_group_alias"] == {"b/llama": {"model": "llama", "hidden": True}}
    assert told["keys"]["d"]["models"] == ["llama"]
    assert names(made(claims)) == {"a/x": "a/b/llama"}  # nor when that is gone


def test_models_keys_are_given_to_the_proxy() -> None:
    keyed = model("m", service={"apiKeysSecretRef": {"name": "keys", "key": "first"}})
    unread = model("n", service={"apiKeysSecretRef": {"name": "gone"}})
    told = made(keyed, unread, api_keys={("a", "keys", "first"): "engine-key"})
    assert [one["litellm_params"]["api_key"] for one in told["model_list"]] == ["engine-key", "none"]


@pytest.mark.parametrize(
    ("patterns", "may"),
    [
        ((), []),  # LiteLLM's word for all of them
        (("llama",), ["llama"]),
        (("b/llama",), ["llama"]),  # by its long name
        (("b/*",), ["b/qwen", "llama"]),
        (("*qwen",), ["b/qwen", "qwen"]),
        (("other",), ["no-default-models"]),  # never all
    ],
)
def test_models_that_a_key_may_use(patterns: tuple[str, ...], may: list[str]) -> None:
    models = (
        model("llama", "b", created=1),
        model("qwen", "a", created=2),
        model("qwen", "b", created=3),
    )
    told = made(*models, keys=(ClientKey("team", ("d",), patterns, None, None),))
    assert told["keys"]["d"]["models"] == may


def test_keys_of_a_secret_share_its_limits() -> None:
    told = made(keys=(ClientKey("team", ("d1", "d2"), (), 60, 9000),))
    rights = {"api_key": "team", "token": "team", "key_alias": "team", "models": [], "rpm_limit": 60, "tpm_limit": 9000}
    assert told["keys"] == {"d1": rights, "d2": rights}


def test_of_secrets_with_the_same_key_the_first_by_name_counts() -> None:
    both = [ClientKey(name, (digest("k"),), (), None, None) for name in ("b", "a")]
    for keys in (both, both[::-1]):
        assert made(keys=tuple(keys))["keys"][digest("k")]["key_alias"] == "a"


def test_a_spec_that_cannot_be_read_is_refused_by_its_field() -> None:
    with pytest.raises(InvalidSpecError, match=r"spec.service.port is 'x'; it must be a whole number"):
        Backend.of(model("m", service={"port": "x"}))


def test_of_the_spec_nothing_else_matters() -> None:
    assert Backend.of(model("m", hardware={"accelerator": "abacus"}, unknown=1)).endpoint.name == "m"
