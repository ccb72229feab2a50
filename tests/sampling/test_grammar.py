"""Grammars against random logits: what comes out matches, whatever the model wants to say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import torch
from llguidance import LLMatcher
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from strata.errors import RequestError
from strata.kernels.argmax.reference import argmax
from strata.request import Grammar, SamplingParams
from strata.sampling.grammar import GrammarCompiler
from strata.sampling.sampler import Sampler
from strata.sampling.verify import verify

VOCAB = 400  # some more than the tokenizer has, as models pad theirs
EOS = (0, 1)
CPU = torch.device("cpu")

INVOICE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "minimum": 1, "maximum": 99999},
        "customer": {"$ref": "#/$defs/customer"},
        "lines": {
            "type": "array",
            "minItems": 1,
            "maxItems": 3,
            "items": {
                "type": "object",
                "properties": {
                    "what": {"type": "string", "minLength": 1, "maxLength": 12},
                    "price": {"type": "number", "minimum": 0, "maximum": 1000},
                    "kind": {"enum": ["goods", "service", "größe", "日本語", "😀"]},
                },
                "required": ["what", "price", "kind"],
                "additionalProperties": False,
            },
        },
        "paid": {"type": ["boolean", "null"]},
    },
    "required": ["id", "customer", "lines", "paid"],
    "additionalProperties": False,
    "$defs": {
        "customer": {
            "type": "object",
            "properties": {"name": {"type": "string", "pattern": "^[A-Z][a-zé]{1,9}$"}, "zip": {"const": "10115"}},
            "required": ["name", "zip"],
            "additionalProperties": False,
        }
    },
}
TREE: dict[str, Any] = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "integer", "minimum": -5, "maximum": 5},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 1},
            },
            "required": ["value", "children"],
            "additionalProperties": False,
        }
    },
}
UNION: dict[str, Any] = {
    "anyOf": [
        {"type": "array", "prefixItems": [{"type": "boolean"}, {"type": "null"}], "items": False, "minItems": 2},
        {"type": "string", "format": "date"},
        {"type": "object", "properties": {"a": {"type": "number", "maximum": 9}}, "required": ["a"]}
        | {"additionalProperties": False},
    ]
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("grammar") / "tokenizer.json"
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=380,
        special_tokens=["<|end|>", "<|stop|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(['{"name": "value", "lines": [1, 2.5, true, null], "größe": "日本語 😀"}'] * 3, trainer)
    made.save(str(path))
    return path


@pytest.fixture(scope="module")
def compiler(tokenizer: Path) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, vocab_size=VOCAB, eos_token_ids=EOS)


def params(**changes: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 1000, **changes})


@pytest.fixture(scope="module")
def generate(compiler: GrammarCompiler, tokenizer: Path) -> Callable[..., list[str]]:
    """What random logits say under a grammar: several answers at once, each with a seed of its own."""
    decode = Tokenizer.from_file(str(tokenizer)).decode

    def run(grammar: Grammar, count: int = 4, **settings: Any) -> list[str]:
        sampler = Sampler(VOCAB, CPU)
        output: dict[str, list[int]] = {str(seed): [] for seed in range(count)}
        for name in output:
            matcher = compiler.compile(grammar).result()
            sampler.add(name, params(grammar=grammar, seed=int(name), **settings), (5,), matcher)
        generator = torch.Generator().manual_seed(17)
        running = list(output)
        for _ in range(1000):
            drawn = sampler.sample(torch.randn(len(running), VOCAB, generator=generator) * 3, running)
            assert not drawn.errors
            for name, token_id in zip(list(running), drawn.token_ids, strict=True):
                assert token_id is not None
                if token_id in EOS:
                    running.remove(name)
                    sampler.remove(name)
                else:
                    output[name].append(token_id)
            if not running:
                return [decode(ids) for ids in output.values()]
        raise AssertionError(f"no end: {output}")

    return run


@pytest.mark.parametrize(
    "schema",
    [pytest.param(INVOICE, id="invoice"), pytest.param(TREE, id="recursive"), pytest.param(UNION, id="union")],
)
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.0}, {"top_k": 5}, {"min_p": 0.2, "top_p": 0.9}])
def test_a_schema_gives_json_that_is_valid(
    generate: Callable[..., list[str]], schema: dict[str, Any], settings: dict[str, Any]
) -> None:
    for text in generate(Grammar("json_schema", json.dumps(schema)), **settings):
        jsonschema_rs.validate(schema, json.loads(text))
        assert "\n" not in text, "no white space that could go on for ever"


@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        pytest.param(Grammar("regex", r"[0-9]{3}-[a-f]+x"), r"[0-9]{3}-[a-f]+x", id="regex"),
        pytest.param(Grammar("grammar", 'root ::= ("ab" | "ö") [0-9] root?'), r"((ab|ö)[0-9])+", id="GBNF"),
        pytest.param(Grammar("grammar", 'start: "yes" | "no" N\nN: /[0-9]{2}/'), r"yes|no[0-9]{2}", id="Lark"),
    ],
)
def test_expressions_and_grammars_are_matched(
    generate: Callable[..., list[str]], grammar: Grammar, pattern: str
) -> None:
    texts = generate(grammar, count=8)
    assert all(re.fullmatch(pattern, text) for text in texts)
    assert len(set(texts)) > 1


def test_a_grammar_sees_accepted_tokens_of_drafts_alone(compiler: GrammarCompiler) -> None:
    grammar = Grammar("regex", "[a-z ]{40,60}")
    plain, drafted = Sampler(VOCAB, CPU), Sampler(VOCAB, CPU)
    for sampler in (plain, drafted):
        sampler.add("a", params(grammar=grammar, seed=2), (5,), compiler.compile(grammar).result())
    logits = torch.randn(12, VOCAB, generator=torch.Generator().manual_seed(5)) * 3
    expected = [plain.sample(row[None], ["a"]).token_ids[0] for row in logits]
    tokens: list[int] = []
    for num_right, num_wrong in [(2, 0), (0, 2), (1, 1), (2, 1)]:
        right = [token_id for token_id in expected[len(tokens) :][:num_right] if token_id is not None]
        draft = [*right, *[EOS[0]] * num_wrong]
        rows = logits[len(tokens) :][: len(draft) + 1]
        step = verify(drafted, rows, drafted.states(["a"]), [draft], argmax(rows))
        assert len(step.token_ids["a"]) == num_right + 1
        tokens += step.token_ids["a"]
    assert tokens == expected[: len(tokens)]


def test_other_rows_of_the_batch_are_not_touched(compiler: GrammarCompiler) -> None:
    grammar = Grammar("regex", "[0-9]+")
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(1))
    before = logits.clone()
    alone = Sampler(VOCAB, CPU)
    mixed = Sampler(VOCAB, CPU)
    for name in "ac":
        alone.add(name, params(seed=4), (1,))
        mixed.add(name, params(seed=4), (1,))
    mixed.add("b", params(seed=4, grammar=grammar, logprobs=2), (1,), compiler.compile(grammar).result())
    drawn = mixed.sample(logits, ["a", "b", "c"])
    assert [drawn.token_ids[0], drawn.token_ids[2]] == alone.sample(logits[[0, 2]], ["a", "c"]).token_ids
    assert torch.equal(logits, before), "the caller's logits are left alone"
    likeliest = before[1].log_softmax(-1).topk(2)
    assert [token for token, _ in drawn.logprobs["b"].top] == likeliest.indices.tolist(), "before the grammar"


def test_a_grammar_is_compiled_once_and_followed_by_each_request_alone(compiler: GrammarCompiler) -> None:
    grammar = Grammar("regex", "abc")
    first, second = compiler.compile(grammar).result(), compiler.compile(grammar).result()
    mask = second.compute_bitmask()
    first.consume_token(_only_token(first))
    assert second.compute_bitmask() == mask
    assert first.compute_bitmask() != mask


def _only_token(matcher: LLMatcher) -> int:
    mask = int.from_bytes(matcher.compute_bitmask(), "little")
    return (mask & -mask).bit_length() - 1


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        pytest.param(Grammar("json_schema", "{"), "JSON schema", id="no JSON"),
        pytest.param(Grammar("json_schema", '{"type": "strnig"}'), "Invalid type: strnig", id="a misspelt type"),
        pytest.param(Grammar("json_schema", '{"not": {}}'), 'Unimplemented keys: ["not"]', id="unknown keyword"),
        pytest.param(Grammar("json_schema", '{"$ref": "http://example.com/a"}'), "does not fetch", id="elsewhere"),
        pytest.param(Grammar("json_schema", '{"$ref": "#"}'), "nothing matches", id="nothing but itself"),
        pytest.param(
            Grammar("json_schema", '{"minLength": 5, "maxLength": 2, "type": "string"}'), "Unsatis", id="nothing"
        ),
        pytest.param(
            Grammar("json_schema", '{"items":' * 20_000 + "{}" + "}" * 20_000), "recursion limit", id="nested"
        ),
        pytest.param(Grammar("regex", "("), "unclosed group", id="half an expression"),
        pytest.param(Grammar("regex", "(" * 20_000 + ")" * 20_000), "regular expression", id="a nested expression"),
        pytest.param(Grammar("regex", "a(?=b)"), "look-around", id="look-around"),
        pytest.param(Grammar("grammar", "root ::= foo"), "'foo'", id="a missing rule"),
        pytest.param(Grammar("grammar", "start: " + "(" * 20_000 + '"a"' + ")" * 20_000), "nested", id="a nested rule"),
        pytest.param(Grammar("grammar", "root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000), "recursion", id="GBNF"),
        pytest.param(Grammar("grammar", "start: start"), "nothing matches", id="without an end"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason(
    compiler: GrammarCompiler, grammar: Grammar, words: str
) -> None:
    with pytest.raises(RequestError) as refused:
        compiler.compile(grammar).result()
    assert words in str(refused.value)
    assert refused.value.code == "invalid_grammar"


def test_a_tokenizer_that_cannot_be_used_is_named_when_it_is_needed(tmp_path: Path, tokenizer: Path) -> None:
    grammar = Grammar("regex", "a")
    compiler = GrammarCompiler(tmp_path / "tokenizer.json", vocab_size=VOCAB, eos_token_ids=EOS)
    with pytest.raises(RequestError, match=r"tokenizer\.json"):
        compiler.compile(grammar).result()
    compiler = GrammarCompiler(tokenizer, vocab_size=VOCAB, eos_token_ids=())
    with pytest.raises(RequestError, match="end-of-sequence"):
        compiler.compile(grammar).result()


def test_a_grammar_that_meets_a_limit_ends_its_request_alone(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = Sampler(VOCAB, CPU)
    grammar = Grammar("regex", "a+")
    matcher = compiler.compile(grammar).result()
    sampler.add("a", params(grammar=grammar), (1,), matcher)
    sampler.add("b", params(), (1,))
    matcher.consume_token(5 if _only_token(matcher) != 5 else 6)  # what it does not allow: it fails, as at a limit
    drawn = sampler.sample(torch.zeros(2, VOCAB), ["a", "b"])
    assert drawn.token_ids[0] is None
    assert drawn.token_ids[1] is not None
    assert "could not be followed further" in drawn.errors["a"]
