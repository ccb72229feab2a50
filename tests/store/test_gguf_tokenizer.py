"""Tokenizers made from GGUF metadata."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers.integrations.gguf import convert_gguf_tokenizer

from strata.config.model_name import BuiltinName
from strata.errors import CheckpointError, UnsupportedModelError
from strata.store.sources.builtin import builtin_path
from strata.store.sources.gguf_file import GGUFFile
from strata.store.sources.gguf_tokenizer import write
from tests.store.checkpoints import TEMPLATE, write_gguf

ODD_TEXTS = [
    "",
    " ",
    "a",
    "  leading and   inner spaces  ",
    "\n\n\t\r\n tabs\tand\r\nlines\n",
    "don't can't I'LL we've",
    "naïve café déjà vu — “quotes” …",
    "日本語のテキスト、漢字。 한국어 नमस्ते",
    "👩‍👩‍👧‍👦 🏳️‍🌈 \U0001f469",
    "e\u0301 vs \u00e9, \u212b, \ufb01",
    "nul \x00, control \x1b[0m, replacement \ufffd, last \U0010ffff",
    "<|im_start|>user\nHi<|im_end|>\n",
    "<|im_star|> <|im_start",
    "x = 3.14159 * 10**-12  # 1234567890",
]


@pytest.fixture(scope="module")
def smollm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, dict[str, Any]]:
    directory = tmp_path_factory.mktemp("smollm")
    path = builtin_path(BuiltinName("smollm2-135m"))
    write(GGUFFile(path).metadata, directory, origin=str(path))
    config = json.loads((directory / "tokenizer_config.json").read_text())
    return Tokenizer.from_file(str(directory / "tokenizer.json")), config


# Ids of the model's own published tokenizer.
@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("Hello, we can use", [19556, 28, 392, 416, 722]),
        ("The capital of France is", [504, 3575, 282, 4649, 314]),
        ("\n", [198]),
        ("Hello world! 123", [19556, 905, 17, 216, 33, 34, 35]),
        ("Café déjà vu.", [51, 1939, 2756, 32564, 90, 16739, 386, 101, 30]),
        ("  multiple   spaces", [216, 2701, 256, 5600]),
    ],
)
def test_smollm_ids(smollm: tuple[Tokenizer, dict[str, Any]], text: str, ids: list[int]) -> None:
    assert smollm[0].encode(text).ids == ids


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_smollm_round_trip(smollm: tuple[Tokenizer, dict[str, Any]], text: str) -> None:
    tokenizer = smollm[0]
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_smollm_special_tokens_are_single_ids(smollm: tuple[Tokenizer, dict[str, Any]]) -> None:
    tokenizer, config = smollm
    ids = tokenizer.encode("<|im_start|>user\nHi<|im_end|>\n").ids
    assert ids[0] == 1
    assert ids.count(2) == 1
    assert tokenizer.decode(ids) == "user\nHi\n"  # special tokens are not text
    assert tokenizer.encode("<|im_star|>").ids[0] != 1
    assert (config["bos_token"], config["eos_token"]) == ("<|im_start|>", "<|im_end|>")
    assert config["chat_template"].startswith("{% for message in messages %}")


def test_smollm_splits_every_digit(smollm: tuple[Tokenizer, dict[str, Any]]) -> None:
    tokenizer = smollm[0]
    assert tokenizer.encode("1234567890").tokens == list("1234567890")
    assert tokenizer.encode("a12 b").tokens == ["a", "1", "2", "Ġb"]


def words(directory: Path, pre: str, text: str) -> list[str]:
    """How a pre-tokenizer cuts text, in readable characters."""
    write(GGUFFile(write_gguf(directory / "m.gguf", pre=pre)).metadata, directory, origin="m.gguf")
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    normalised = tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text
    return [
        word.replace("Ġ", "_").replace("Ċ", "/") for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normalised)
    ]


TEXT = "I'LL don't  pay 12345 $9.99!\n\n end"


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("gpt-2", "I ' LL _don 't _ _pay _12345 _$ 9 . 99 ! // _end"),
        ("smollm", "I ' LL _don 't _ _pay _ 1 2 3 4 5 _$ 9 . 9 9 ! // _end"),
        ("llama-bpe", "I 'LL _don 't _ _pay _ 123 45 _$ 9 . 99 !// _end"),
        ("qwen2", "I 'LL _don 't _ _pay _ 1 2 3 4 5 _$ 9 . 9 9 !// _end"),
        ("default", "I ' LL _don ' t _ _pay _ 123 45 _ $ 9 . 99 ! // _end"),
        ("llama-v3", "I 'LL _don 't _ _pay _ 123 45 _$ 9 . 99 !// _end"),
        ("llama3", "I 'LL _don 't _ _pay _ 123 45 _$ 9 . 99 !// _end"),
        ("deepseek-r1-qwen", "I 'LL _don 't _ _pay _ 1 2 3 4 5 _$ 9 . 9 9 !// _end"),
        ("gpt-4o", "I'LL _don't _ _pay _ 123 45 _$ 9 . 99 !// _end"),
        ("tekken", "I 'LL _don 't _ _pay _ 1 2 3 4 5 _$ 9 . 9 9 !// _end"),
    ],
)
def test_pre_tokenizers_cut_as_their_models_do(tmp_path: Path, pre: str, expected: str) -> None:
    cut = words(tmp_path, pre, TEXT)
    assert "".join(cut) == TEXT.replace(" ", "_").replace("\n", "/")
    assert cut == expected.split()


def test_words_by_case_are_cut_where_capitals_begin(tmp_path: Path) -> None:
    expected = ["camel", "Case", "HTTPServer", "_one", "/two", "///"]  # the last one is the end of the line
    for pre in ("gpt-4o", "tekken"):
        assert words(tmp_path, pre, "camelCaseHTTPServer one/two//\n") == expected


# Texts whose Unicode is composed already: the library's reading composes none.
@pytest.mark.parametrize("pre", ["llama-bpe", "qwen2", "gpt-4o", "tekken"])
def test_gives_the_ids_of_the_library(tmp_path: Path, pre: str) -> None:
    path = builtin_path(BuiltinName("smollm2-135m"))
    metadata = GGUFFile(path).metadata | {"tokenizer.ggml.pre": pre, "tokenizer.ggml.add_bos_token": False}
    write(metadata, tmp_path, origin=str(path))
    ours = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    named = {key: metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "merges", "token_type")}
    theirs, _ = convert_gguf_tokenizer("qwen2", named | {"tokenizer_type": "gpt2", "pre_tokenizer_type": pre})
    for text in [TEXT, "HTTPServer's camelCase\u2019s a/b//\n", *ODD_TEXTS]:
        if unicodedata.is_normalized("NFC", text):
            assert ours.encode(text).ids == theirs.encode(text, add_special_tokens=False).ids, text


def test_qwen2_composes_accents(tmp_path: Path) -> None:
    assert words(tmp_path, "qwen2", "e\u0301") == words(tmp_path, "qwen2", "\u00e9")
    assert words(tmp_path, "gpt-2", "e\u0301") != words(tmp_path, "gpt-2", "\u00e9")


def tokenizer_of(directory: Path, **options: Any) -> Tokenizer:
    write(GGUFFile(write_gguf(directory / "m.gguf", **options)).metadata, directory, origin="m.gguf")
    return Tokenizer.from_file(str(directory / "tokenizer.json"))


def test_bos_is_added_where_the_file_says_so(tmp_path: Path) -> None:
    assert tokenizer_of(tmp_path).encode("he").tokens == ["he"]
    added = tokenizer_of(tmp_path, edit=lambda writer: writer.add_add_bos_token(True))
    assert added.encode("he").tokens == ["<|im_start|>", "he"]
    assert added.encode("he", add_special_tokens=False).tokens == ["he"]


def test_bos_may_be_any_token(tmp_path: Path) -> None:
    odd = {"tokens": ["a: $A", "b", "ab"], "merges": [], "bos_token_id": 0, "add_bos_token": True}
    metadata = changed("token_type", [1, 1, 1]) | {f"tokenizer.ggml.{key}": value for key, value in odd.items()}
    write(metadata, tmp_path, origin="m.gguf")
    assert Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode("b").tokens == ["a: $A", "b"]


def test_bos_is_added_where_llama_3_does(tmp_path: Path) -> None:
    assert tokenizer_of(tmp_path, pre="llama-bpe").encode("he").tokens == ["<|im_start|>", "he"]
    quiet = tokenizer_of(tmp_path, pre="llama-bpe", edit=lambda writer: writer.add_add_bos_token(False))
    assert quiet.encode("he").tokens == ["he"]


def test_config_has_the_chat_template_and_the_special_tokens(tmp_path: Path) -> None:
    tokenizer_of(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["chat_template"] == TEMPLATE
    assert (config["bos_token"], config["eos_token"]) == ("<|im_start|>", "<|im_end|>")


def test_a_template_for_tools_is_kept_beside_the_one_for_chats(tmp_path: Path) -> None:
    templates = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    tokenizer_of(tmp_path, edit=lambda writer: writer.add_chat_template(templates))
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert (config["chat_template"], config["tool_chat_template"]) == ("D", "T")


def test_unknown_pre_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    supported = "deepseek-r1-qwen, default, gpt-2, gpt-4o, llama-bpe, llama-v3, llama3, qwen2, smollm, tekken"
    with pytest.raises(UnsupportedModelError, match=f"pre-tokenizer 'bloom' is not supported; supported: {supported}"):
        tokenizer_of(tmp_path, pre="bloom")


@pytest.mark.parametrize("key", ["model", "tokens", "merges"])
def test_a_missing_part_is_named(tmp_path: Path, key: str) -> None:
    with pytest.raises(CheckpointError, match=f"m.gguf.*'tokenizer.ggml.{key}' is missing"):
        tokenizer_of(tmp_path, without=(f"tokenizer.ggml.{key}",))


def changed(key: str, value: Any) -> dict[str, Any]:
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": ["a", "b", "ab"],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.token_type": [1, 1, 1],
    }
    return metadata | {f"tokenizer.ggml.{key}": value}


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model", "bert", r"tokenizer model 'bert' is not supported; supported: 'gpt2' \(byte-level BPE\), 'llama'"),
        ("model", ["gpt2"], r"tokenizer model \['gpt2'\] is not supported"),
        ("tokens", ["a", 7, "ab"], r"'tokenizer\.ggml\.tokens' is missing"),
        ("pre", 7, "pre-tokenizer 7 is not supported"),
        ("merges", ["a c"], "merges do not fit its vocabulary"),
        ("merges", ["ab"], "merges do not fit its vocabulary"),
        ("merges", [7], "merges do not fit its vocabulary"),
        ("tokens", ["a", "a", "ab"], "holds a token twice"),
        ("token_type", [1], "'token_type' is not a list of 3"),
        ("eos_token_id", 3, "the eos token is 3, but there are 3 tokens"),
        ("eos_token_id", "2", "the eos token is '2', but there are 3 tokens"),
    ],
)
def test_metadata_that_is_not_sound(tmp_path: Path, key: str, value: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        write(changed(key, value), tmp_path, origin="m.gguf")
    assert not list(tmp_path.iterdir())


def test_the_same_metadata_unchanged_is_sound(tmp_path: Path) -> None:
    write(changed("model", "gpt2"), tmp_path, origin="m.gguf")
    assert Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode("aba").tokens == ["ab", "a"]
