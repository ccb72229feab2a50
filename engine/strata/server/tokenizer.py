"""Text to token ids, and back while they arrive.

Detokenising works on bytes: every token stands for some bytes, and a UTF-8 decoder turns their stream into text. So a
character that is spread over tokens comes out whole, and each token costs one table look-up however long the answer is.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from strata.errors import CheckpointError
from strata.store.files import load_tokenizer, read_json, read_json_if_there

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class Tokenizer:
    """The tokenizer of a store directory: ``tokenizer.json`` and ``tokenizer_config.json``.

    Raises CheckpointError naming the file that is missing or cannot be used.
    """

    def __init__(self, directory: Path) -> None:
        path = directory / "tokenizer.json"
        self._tokenizer = load_tokenizer(path)
        table = read_json(path)
        self._bytes = _TokenBytes(self._tokenizer, table.get("decoder"), origin=str(path))
        added = table.get("added_tokens") or ()
        self.added_tokens = frozenset(token["content"] for token in added)  # beside the vocabulary, special or not
        self._special = {token["id"]: str(token["content"]) for token in added if token.get("special")}
        self._bytes.update(dict.fromkeys(self._special, b""))
        self._config = read_json_if_there(directory / "tokenizer_config.json")
        # Characters that one token stands for at most; None where an unknown token may stand for any text.
        self.longest_token = max(map(len, self._tokenizer.get_vocab())) if self._bytes.has_every_byte else None

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids; ``add_special_tokens`` puts what the checkpoint wants around a bare text (mostly its BOS)."""
        # ``encode`` does the same with the interpreter locked: in a thread it would hold up every other one.
        (encoding,) = self._tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """What a token stands for; its name, if it is special and stands for nothing in a text."""
        return self._bytes[token_id] or (self._tokenizer.id_to_token(token_id) or "").encode()

    def detokenizer(self, marks: Collection[str] = ()) -> Detokenizer:
        """One for each answer. Special tokens are no text, but for ``marks``, which a parser of the text needs."""
        if not marks:
            return Detokenizer(self._bytes)
        shown = {token_id: text.encode() for token_id, text in self._special.items() if text in marks}
        return Detokenizer(_Shown(self._bytes, shown))

    @property
    def special_tokens(self) -> dict[str, str]:
        """What chat templates call special tokens by, e.g. ``{"bos_token": "<s>"}``."""
        values = {name: self._config.get(name) for name in _SPECIAL_NAMES}
        return {name: value for name, value in values.items() if isinstance(value, str)}

    @property
    def chat_template(self) -> str | None:
        """The template's text; None when the checkpoint has none."""
        return self._template("chat_template")

    @property
    def tool_chat_template(self) -> str | None:
        """The one for chats with tools, where the checkpoint has two."""
        return self._template("tool_chat_template")

    def _template(self, name: str) -> str | None:
        template = self._config.get(name)
        return None if template is None else str(template)


class Detokenizer:
    """The text of one answer, as far as it is certain."""

    def __init__(self, table: Mapping[int, bytes]) -> None:
        self._table = table
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def feed(self, token_ids: Iterable[int]) -> str:
        """Add tokens; gives the new text up to the last whole character."""
        table = self._table
        return self._decode(b"".join([table[token_id] for token_id in token_ids]))

    def flush(self) -> str:
        """What is left when no more tokens come: U+FFFD for a character that stayed incomplete, else nothing."""
        return self._decode(b"", True)


class _TokenBytes(dict[int, bytes]):
    """Token id to the bytes it stands for, filled as ids are met. Unknown ids stand for none."""

    def __init__(self, tokenizer: Any, decoder: Mapping[str, Any] | None, *, origin: str) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        steps = _steps(decoder)
        kinds = [step.get("type") for step in steps]
        self._byte_level = _byte_level_alphabet() if "ByteLevel" in kinds else None
        self._byte_fallback = "ByteFallback" in kinds
        self.has_every_byte = self._byte_level is not None or self._byte_fallback
        self._replacements = [pair for step in steps if (pair := _replacement(step)) is not None]
        if steps and self._byte_level is None and not self._byte_fallback and not self._replacements:
            raise CheckpointError(
                f"{origin}: the decoder is {', '.join(map(str, kinds))}; "
                "Strata knows ByteLevel, ByteFallback, Metaspace and Replace"
            )
        self._before = "" if steps else " "  # without a decoder, tokens are words

    def __missing__(self, token_id: int) -> bytes:
        token = self._tokenizer.id_to_token(token_id)
        self[token_id] = value = b"" if token is None else self._convert(token)
        return value

    def _convert(self, token: str) -> bytes:
        if self._byte_level is not None:
            # Tokens added beside the vocabulary are plain text: they hold characters outside the alphabet.
            values = [self._byte_level.get(character) for character in token]
            return token.encode() if None in values else bytes(value for value in values if value is not None)
        if self._byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes.fromhex(match[1])
        for old, new in self._replacements:
            token = token.replace(old, new)
        return (self._before + token).encode()


class _Shown(dict[int, bytes]):
    """A table of bytes, and some tokens of it that stand for others here."""

    def __init__(self, table: Mapping[int, bytes], shown: Mapping[int, bytes]) -> None:
        super().__init__(shown)
        self._table = table

    def __missing__(self, token_id: int) -> bytes:
        return self._table[token_id]


def _steps(decoder: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if decoder is None:
        return []
    if decoder.get("type") == "Sequence":
        return [step for part in decoder.get("decoders", ()) for step in _steps(part)]
    return [decoder]


def _replacement(step: Mapping[str, Any]) -> tuple[str, str] | None:
    if step.get("type") == "Metaspace":
        return str(step.get("replacement", "▁")), " "
    pattern = step.get("pattern")
    if step.get("type") == "Replace" and isinstance(pattern, dict) and "String" in pattern:
        return str(pattern["String"]), str(step.get("content", ""))
    return None


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins: a byte that prints is itself, the others follow from U+0100 on, in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (value for value in range(256) if value not in printable)
    return {chr(value): value for value in printable} | {chr(0x100 + n): value for n, value in enumerate(others)}
