from __future__ import annotations

import pytest

from strata_operator.api.errors import InvalidSpecError
from strata_operator.gateway.client_key import ClientKey
from tests.operator.gateway.objects import KEY, digest, secret


def test_a_key_alone_may_all() -> None:
    assert ClientKey.of(secret("team", key=f"{KEY}\n")) == ClientKey("team", (digest(KEY),), (), None, None)


def test_all_entries() -> None:
    text = f"# the old one, until all have the new one\n{KEY}\n{KEY}2\n"
    made = secret(
        "team", key=text, models="llama, team-a/*\nqwen", requests_per_minute="60", tokens_per_minute="9000\n"
    )
    assert ClientKey.of(made) == ClientKey(
        "team", (digest(KEY), digest(f"{KEY}2")), ("llama", "team-a/*", "qwen"), 60, 9000
    )


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({}, "has no key"),
        ({"key": "# none\n"}, "has no key"),
        ({"key": "short-and-secret"[:15]}, "16 characters are needed"),
        ({"key": "with some blanks in it"}, "visible ASCII"),
        # A typing error must not make a limit no limit.
        ({"key": KEY, "requests_per_minut": "1"}, "'requests-per-minut'; known are key, models"),
        ({"key": KEY, "requests_per_minute": "many"}, "is 'many'; a whole number from 1 on"),
        ({"key": KEY, "requests_per_minute": "0"}, "is '0'"),
        ({"key": KEY, "tokens_per_minute": "1\n2"}, "is '1 2'"),
        ({"key": KEY, "tokens_per_minute": "99999999999999"}, "a whole number from 1 on"),
    ],
)
def test_what_is_refused(entries: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidSpecError) as refused:
        ClientKey.of(secret("team", **entries))
    assert words in str(refused.value)
    assert "the Secret team" in str(refused.value)
    assert not entries.get("key") or entries["key"] not in str(refused.value)


def test_bytes_that_are_no_text_are_refused() -> None:
    made = secret("team")
    made["data"]["key"] = "/w=="
    with pytest.raises(InvalidSpecError, match="'key' of the Secret team is not a text"):
        ClientKey.of(made)
