from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any, cast

import pytest

from strata_operator.api.errors import RefusedError, UnavailableError
from strata_operator.cluster.client import Client
from strata_operator.gateway.book import Book
from strata_operator.gateway.writer import Writer
from tests.operator.cluster.fake import FakeClient
from tests.operator.gateway.objects import KEY, digest, model, secret

KEYED = {"apiKeysSecretRef": {"name": "keys"}}


class Scene:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.client = FakeClient()
        self.book = Book(lambda: None)
        self.writer = Writer(cast("Client", self.client), self.book, path)

    def told(self) -> dict[str, Any]:
        return cast("dict[str, Any]", json.loads(self.path.read_text()))

    def api_keys(self) -> list[str]:
        self.writer.write()
        return [one["litellm_params"]["api_key"] for one in self.told()["model_list"]]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "gateway.json")


def test_it_writes_what_changed_and_nothing_else(scene: Scene) -> None:
    assert scene.writer.write()
    assert not scene.writer.write()
    scene.book.put("StrataModel", model("m"))
    assert scene.writer.write()
    assert [one["model_name"] for one in scene.told()["model_list"]] == ["m"]
    assert not scene.writer.write()
    assert scene.client.calls == []  # no model has keys: nobody is asked for any
    assert [path.name for path in scene.path.parent.iterdir()] == ["gateway.json"]


def test_the_file_is_its_owner_s_alone_and_holds_no_client_s_key(scene: Scene) -> None:
    scene.book.put("Secret", secret("team", key=KEY))
    scene.writer.write()
    assert stat.S_IMODE(scene.path.stat().st_mode) == 0o600
    assert list(scene.told()["keys"]) == [digest(KEY)]
    assert KEY not in scene.path.read_text()


def test_each_secret_of_models_is_read_once(scene: Scene) -> None:
    scene.client.keep(secret("keys", "a", keys="# ours\nfirst-of-all\nsecond\n", more="another"))
    scene.book.put("StrataModel", model("m", created=1, service=KEYED))
    scene.book.put("StrataModel", model("n", created=2, service=KEYED))
    scene.book.put("StrataModel", model("o", created=3, service={"apiKeysSecretRef": {"name": "keys", "key": "more"}}))
    assert scene.api_keys() == ["first-of-all", "first-of-all", "another"]
    assert scene.client.calls == ["get Secret"]


def test_a_model_s_new_key_is_taken(scene: Scene) -> None:
    scene.client.keep(secret("keys", "a", keys="old"))
    scene.book.put("StrataModel", model("m", service=KEYED))
    assert scene.api_keys() == ["old"]
    scene.client.keep(secret("keys", "a", keys="new"))
    assert scene.api_keys() == ["new"]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (UnavailableError("the API server is away"), "is away"),
        (RefusedError("secrets is forbidden", status=403), "is forbidden"),
    ],
)
def test_a_key_that_cannot_be_read_now_stays(
    scene: Scene, error: Exception, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    scene.client.keep(secret("keys", "a", keys="engine-key"))
    scene.book.put("StrataModel", model("m", service=KEYED))
    assert scene.api_keys() == ["engine-key"]
    scene.client.failing["get Secret"] = error
    assert scene.api_keys() == ["engine-key"]
    assert scene.api_keys() == ["engine-key"]
    assert caplog.text.count(words) == 1
    assert "a/keys" in caplog.text
    assert "engine-key" not in caplog.text


@pytest.mark.parametrize("entries", [None, {}, {"keys": "# nothing yet\n"}], ids=["no secret", "no entry", "no key"])
def test_a_key_that_is_gone_is_forgotten(
    scene: Scene, entries: dict[str, str] | None, caplog: pytest.LogCaptureFixture
) -> None:
    scene.client.keep(secret("keys", "a", keys="engine-key"))
    scene.book.put("StrataModel", model("m", service=KEYED))
    assert scene.api_keys() == ["engine-key"]
    scene.client.objects.clear()
    if entries is not None:
        scene.client.keep(secret("keys", "a", **entries))
    assert scene.api_keys() == ["none"]
    assert "the API key of models in the Secret a/keys cannot be had" in caplog.text
