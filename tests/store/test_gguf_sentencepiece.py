"""SentencePiece tokenizers made from a GGUF's pieces and scores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, trainers
from transformers.integrations.gguf import convert_gguf_tokenizer

from strata.errors import CheckpointError
from strata.store.sources.gguf import GGUFSource
from strata.store.sources.gguf_tokenizer import write
from tests.store.checkpoints import write_gguf
from tests.store.test_gguf_tokenizer import ODD_TEXTS

ALICE = (Path(__file__).parents[1] / "data" / "alice.txt").read_text(encoding="utf-8")
SPECIALS = ["<unk>", "<s>", "</s>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPACE = "\u2581"


@pytest.fixture(scope="module")
def reference() -> Tokenizer:
    """A BPE tokenizer as Llama 2's, whose merges were found by training; a GGUF holds none of them."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=[*SPECIALS, *BYTES], show_progress=False)
    words = ALICE.split()  # as SentencePiece does, no piece goes beyond a word
    tokenizer.train_from_iterator(words, trainer)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    # Bytes are tokens of the vocabulary, no text: trained as special, so that they are there.
    table = json.loads(tokenizer.to_str())
    table["added_tokens"] = [token for token in table["added_tokens"] if token["content"] in SPECIALS]
    trained: Tokenizer = Tokenizer.from_str(json.dumps(table))
    return trained


def metadata(reference: Tokenizer, **changes: Any) -> dict[str, Any]:
    """Pieces and scores as llama.cpp stores them: a merged piece's score falls with the step that made it."""
    table = json.loads(reference.to_str())["model"]
    tokens = sorted(table["vocab"], key=table["vocab"].get)
    made = {left + right: step for step, (left, right) in reversed(list(enumerate(table["merges"])))}
    scores = [0.0 if token in (*SPECIALS, *BYTES) else -float(made.get(token, len(made) + 1)) for token in tokens]
    kinds = [3 if token in SPECIALS[1:] else 2 if token == "<unk>" else 6 if token in BYTES else 1 for token in tokens]
    return {
        f"tokenizer.ggml.{key}": value
        for key, value in {
            "model": "llama",
            "pre": "default",
            "tokens": tokens,
            "scores": scores,
            "token_type": kinds,
            "unknown_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            **changes,
        }.items()
    }


def made(directory: Path, table: dict[str, Any]) -> Tokenizer:
    write(table, directory, origin="m.gguf")
    return Tokenizer.from_file(str(directory / "tokenizer.json"))


TEXTS = [*ODD_TEXTS, ALICE[:900], *ALICE.splitlines(), "</s> ends, <s>begins", "tab\tbell\x07"]


def test_gives_the_ids_of_the_tokenizer_that_it_was_made_from(tmp_path: Path, reference: Tokenizer) -> None:
    tokenizer = made(tmp_path, metadata(reference))
    lengths = [len(token) for token in tokenizer.encode(ALICE).tokens]
    assert sum(lengths) > 2 * len(lengths)  # merges are at work
    for text in TEXTS:
        assert tokenizer.encode(text, add_special_tokens=False).ids == reference.encode(text).ids, text


@pytest.mark.parametrize("text", TEXTS)
def test_round_trip(tmp_path: Path, reference: Tokenizer, text: str) -> None:
    tokenizer = made(tmp_path, metadata(reference))
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    if "<s>" not in text:  # a text after a special token begins with a space, as every text does
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_gives_the_ids_of_the_library(tmp_path: Path, reference: Tokenizer) -> None:
    table = metadata(reference)
    tokenizer = made(tmp_path, table)
    named = {key: table[f"tokenizer.ggml.{key}"] for key in ("tokens", "scores", "token_type")}
    theirs, _ = convert_gguf_tokenizer("llama", named | {"tokenizer_type": "llama"})
    for text in TEXTS:
        if "<s>" not in text and not text.startswith(" "):  # before those it puts no space, SentencePiece does
            expected = theirs.encode(text, add_special_tokens=False).ids
            assert tokenizer.encode(text, add_special_tokens=False).ids == expected, text


def test_bos_is_added_unless_the_file_says_otherwise(tmp_path: Path, reference: Tokenizer) -> None:
    assert made(tmp_path, metadata(reference)).encode("a").tokens[0] == "<s>"
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["add_bos_token"] is True
    assert "<s>" not in made(tmp_path, metadata(reference, add_bos_token=False)).encode("a").tokens


def test_no_space_is_put_before_a_text_where_the_file_says_so(tmp_path: Path, reference: Tokenizer) -> None:
    tokenizer = made(tmp_path, metadata(reference, add_space_prefix=False))
    assert tokenizer.encode("q", add_special_tokens=False).tokens == ["q"]
    assert tokenizer.decode(tokenizer.encode(" q", add_special_tokens=False).ids) == " q"


def test_control_tokens_are_one_token_and_no_text(tmp_path: Path, reference: Tokenizer) -> None:
    tokenizer = made(tmp_path, metadata(reference))
    ids = tokenizer.encode("a</s>").ids
    assert ids[-1] == 2
    assert "</s>" not in tokenizer.decode(ids)


@pytest.mark.parametrize("scores", [None, [0.0], "x", [0] * 900])
def test_scores_that_do_not_fit_are_named(tmp_path: Path, reference: Tokenizer, scores: Any) -> None:
    with pytest.raises(CheckpointError, match=r"m\.gguf: the tokenizer's 'scores' are not a list of \d+, one a token"):
        write(metadata(reference, scores=scores), tmp_path, origin="m.gguf")


def test_a_file_of_the_library_gives_the_same_tokenizer(tmp_path: Path, reference: Tokenizer) -> None:
    table = metadata(reference)

    def edit(writer: gguf.GGUFWriter) -> None:
        for key in ("model", "pre", "tokens", "merges", "token_type", "bos_token_id", "eos_token_id"):
            del writer.kv_data[0][f"tokenizer.ggml.{key}"]
        writer.add_tokenizer_model("llama")
        writer.add_token_list(table["tokenizer.ggml.tokens"])
        writer.add_token_scores(table["tokenizer.ggml.scores"])
        writer.add_token_types(table["tokenizer.ggml.token_type"])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)

    GGUFSource(write_gguf(tmp_path / "m.gguf", edit=edit)).write_tokenizer(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.encode(ALICE, add_special_tokens=False).ids == reference.encode(ALICE).ids
