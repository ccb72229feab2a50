"""Tokens to text and back, for the kinds of tokenizers that language models have."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models

from strata.errors import CheckpointError
from strata.server.tokenizer import Tokenizer


def detokenise(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """The pieces of text as each token comes, and what is left at the end."""
    detokenizer = tokenizer.detokenizer()
    return [*(detokenizer.feed([token_id]) for token_id in ids), detokenizer.flush()]


@pytest.fixture(scope="session")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer as converted from SentencePiece: "▁" for a space, bytes for what the vocabulary lacks."""
    directory = tmp_path_factory.mktemp("sentencepiece")
    vocab = {"<unk>": 0} | {f"<0x{value:02X}>": value + 1 for value in range(256)} | {"▁hello": 257, "▁": 258, "a": 259}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


def test_a_text_is_encoded_beside_other_threads(store: Path) -> None:
    tokenizer, begun, order = Tokenizer(store), threading.Event(), list[str]()

    def encode() -> None:
        begun.set()
        tokenizer.encode("hello world " * 10_000, add_special_tokens=False)
        order.append("encoded")

    thread = threading.Thread(target=encode)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # seconds: another thread goes on only when this one unlocks the interpreter
    try:
        thread.start()
        begun.wait()
        order.append("meanwhile")
        thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert order == ["meanwhile", "encoded"]


def test_a_character_in_several_tokens_comes_out_whole(store: Path) -> None:
    tokenizer = Tokenizer(store)
    ids = tokenizer.encode("a😀b", add_special_tokens=False)
    assert len(ids) == 6, "the tiny vocabulary spells the character in four bytes"
    assert detokenise(tokenizer, ids) == ["a", "", "", "", "😀", "b", ""]


def test_a_character_that_stays_incomplete_is_marked_at_the_end(store: Path) -> None:
    tokenizer = Tokenizer(store)
    ids = tokenizer.encode("a😀", add_special_tokens=False)[:-1]
    assert detokenise(tokenizer, ids) == ["a", "", "", "", "\ufffd"]


def test_special_and_unknown_tokens_have_no_text(store: Path) -> None:
    tokenizer = Tokenizer(store)
    assert "".join(detokenise(tokenizer, [0, 1, 2, 100_000])) == ""


def test_added_tokens_that_are_not_special_keep_their_text(store: Path, tmp_path: Path) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(store / "tokenizer.json"))
    tokenizer.add_tokens(["<think>", "a b é"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    ids = tokenizer.encode("<think>a b é").ids
    assert len(ids) == 2
    assert "".join(detokenise(Tokenizer(tmp_path), ids)) == "<think>a b é"


def test_byte_fallback_spells_characters_and_keeps_the_leading_space(sentencepiece: Path) -> None:
    tokenizer = Tokenizer(sentencepiece)
    smile = [value + 1 for value in "😀".encode()]
    assert detokenise(tokenizer, [257, *smile, 258, 259]) == [" hello", "", "", "", "😀", " ", "a", ""]


@settings(deadline=None)
@given(text=st.text())
def test_every_text_survives_the_round_trip(store: Path, text: str) -> None:
    tokenizer = Tokenizer(store)
    assert "".join(detokenise(tokenizer, tokenizer.encode(text, add_special_tokens=False))) == text


def test_any_tokens_decode_as_the_library_decodes_them(store: Path, encode: Callable[[str], list[int]]) -> None:
    library = tokenizers.Tokenizer.from_file(str(store / "tokenizer.json"))
    ids = [*encode("hello wörld 😀"), *range(299, 2, -1)]
    assert "".join(detokenise(Tokenizer(store), ids)) == library.decode(ids)


def test_without_a_decoder_tokens_are_words(tmp_path: Path) -> None:
    tokenizer = tokenizers.Tokenizer(models.WordLevel({"hello": 0, "world": 1}, unk_token="hello"))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert "".join(detokenise(Tokenizer(tmp_path), [0, 1])) == " hello world"


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is missing"):
        Tokenizer(tmp_path)


def test_a_broken_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is not a tokenizer"):
        Tokenizer(tmp_path)


def test_an_unknown_decoder_is_named_with_the_known_ones(store: Path, tmp_path: Path) -> None:
    table = json.loads((store / "tokenizer.json").read_text())
    table["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    (tmp_path / "tokenizer.json").write_text(json.dumps(table))
    with pytest.raises(CheckpointError, match=r"decoder is WordPiece; .*ByteLevel"):
        Tokenizer(tmp_path)


def test_a_broken_tokenizer_config_is_named(store: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((store / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json is not JSON"):
        Tokenizer(tmp_path)


@pytest.mark.parametrize("template", [None, "A"])
def test_the_chat_template_is_that_of_the_store(store: Path, tmp_path: Path, template: str | None) -> None:
    (tmp_path / "tokenizer.json").write_bytes((store / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    assert Tokenizer(tmp_path).chat_template == template


def test_special_tokens_are_those_that_the_store_names(store: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((store / "tokenizer.json").read_bytes())
    config = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True, "pad_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert Tokenizer(tmp_path).special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}


def test_special_tokens_show_where_a_parser_needs_them(store: Path, encode: Callable[[str], list[int]]) -> None:
    tokenizer = Tokenizer(store)
    ids = [1, *encode("hello"), 2, 1]
    assert tokenizer.detokenizer().feed(ids) == "hello"
    assert tokenizer.detokenizer({"<|im_end|>", "[not there]"}).feed(ids) == "hello<|im_end|>"
    assert tokenizer.detokenizer().feed(ids) == "hello"
    assert "<|im_end|>" in tokenizer.added_tokens
