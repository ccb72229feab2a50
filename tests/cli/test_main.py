"""The command line: help, what importing it costs, and errors."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import platform
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

import strata as package
from strata.cli import main as main_module
from strata.cli.main import TERMINATION_LOG_BYTES, build_parser, main
from strata.cli.serve_options import engine_config
from strata.cli.version import revision
from strata.config.model_name import ACCEPTED
from strata.doctor.packages import EXTRAS
from strata.errors import CheckpointError, EngineError, StorageError, StrataError

Strata = Callable[..., subprocess.CompletedProcess[str]]

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
HEAVY = ("torch", "numpy", "fastapi", "uvicorn", "pydantic", "tokenizers", "jinja2", "prometheus_client", "asyncio")
UNUSED = ("strata.store", "strata.quant", "strata.runner")  # by parsers; what they would cost is most of the help


def commands(parser: argparse.ArgumentParser | None = None, prefix: str = "") -> dict[str, argparse.ArgumentParser]:
    """Every command with its parser, e.g. "serve" and "bench decode"."""
    found: dict[str, argparse.ArgumentParser] = {}
    for action in (parser or build_parser())._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                found |= {f"{prefix}{name}": child, **commands(child, f"{prefix}{name} ")}
    return found


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param("import strata", id="the package"),
        pytest.param("from strata.cli.main import main; main(['--help'])", id="the help"),
        pytest.param("from strata.cli.main import main; main(['serve', '--help'])", id="a command's help"),
        pytest.param("from strata.cli.main import main; main(['serve', 'x', '--port', '70000'])", id="a bad flag"),
        pytest.param("from strata.cli.main import main; main(['version', '--json'])", id="the version"),
    ],
)
def test_nothing_heavy_is_imported_before_it_is_needed(statement: str) -> None:
    code = (
        "import sys\n"
        f"try:\n    {statement}\nexcept SystemExit: pass\n"
        f"print([name for name in {HEAVY + UNUSED!r} if name in sys.modules], file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stderr.splitlines()[-1] == "[]"


def test_help_lists_every_command(strata: Strata) -> None:
    result = strata("--help")
    assert result.returncode == 0
    for name in commands():
        assert " " in name or f"\n    {name} " in result.stdout


def test_every_option_is_explained_with_its_default() -> None:
    for name, parser in commands().items():
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                continue
            assert action.help, f"strata {name}: {action.dest} has no help"
            if action.option_strings and not action.required and "same, as an option" not in action.help:
                assert action.dest in ("help",) or "default" in action.help, f"strata {name}: {action.dest}"


def test_every_command_of_a_model_names_it_alike() -> None:
    """The argument and the option, the revision on the Hub, and one wording of what a model is."""
    modelless = {"chat", "version", "bench", "bench kernels", "bench ngrams", "bench serve", "bench shape"}
    for name, parser in commands().items():
        options = {option for action in parser._actions for option in action.option_strings}
        assert ("--revision" in options) == (name not in modelless), name
        if name not in modelless:
            argument = next(action for action in parser._actions if action.dest == "source_argument")
            assert str(argument.help).endswith(ACCEPTED), name


def test_every_command_has_an_example() -> None:
    for name, parser in commands().items():
        assert parser.epilog is not None
        assert f"strata {name}" in parser.epilog


def test_the_page_explains_every_command_and_option() -> None:
    page = PAGE.read_text("utf-8")
    for name, parser in commands().items():
        assert f"`strata {name}" in page, f"strata {name}"
        for action in parser._actions:
            for option in action.option_strings:
                assert option in ("-h", "--help") or f"`{option}" in page, f"strata {name} {option}"
    known = {option for parser in commands().values() for action in parser._actions for option in action.option_strings}
    assert set(re.findall(r"`(--[\w-]+)", page)) <= known | {"--version"}


def test_version_is_printed(strata: Strata) -> None:
    assert strata("version").stdout == f"strata {package.__version__}\n"


def test_version_as_json_names_what_is_installed(strata: Strata) -> None:
    facts = json.loads(strata("version", "--json").stdout)
    assert facts["version"] == package.__version__
    assert facts["python"] == platform.python_version()
    assert facts["torch"] == importlib.metadata.version("torch")


def test_the_revision_is_that_of_the_tree_which_holds_the_package(tmp_path: Path) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    ours, other = tmp_path / "strata", tmp_path / "site-packages"
    for directory in (ours, other):
        directory.mkdir()
        (directory / "__init__.py").touch()
    subprocess.run([*git, "add", "strata"], check=True)
    subprocess.run([*git, "commit", "--quiet", "-m", "first"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    assert revision(ours) == head
    assert revision(other) != head, "git does not know the files there: they came from elsewhere"


@pytest.mark.parametrize(
    ("flag", "nothing", "something"),
    [
        ("--tensor-parallel-size", "1", "2"),
        ("--pipeline-parallel-size", "1", "4"),
        ("--gda-enabled", "false", "true"),
    ],
)
def test_published_flags_are_taken_where_they_ask_for_nothing(
    flag: str, nothing: str, something: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parse = build_parser().parse_args
    assert engine_config(parse(["serve", "m", flag, nothing])) == engine_config(parse(["serve", "m"]))
    for arguments in ([flag, something], [flag, "x"]):
        assert main(["serve", "m", *arguments]) == 2
    refused, misspelt = capsys.readouterr().err.splitlines()
    assert f"{flag}: '{something}' does not act in this version: " in refused
    assert "or leave it out" in refused
    assert f"{flag}: 'x' is not allowed" in misspelt


def test_a_published_switch_without_a_value_asks_for_something(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "m", "--gda-enabled"]) == 2
    assert "does not act in this version" in capsys.readouterr().err


def test_the_command_line_of_the_published_articles_is_known() -> None:
    """Every flag keeps its name."""
    options = {option for action in commands()["serve"]._actions for option in action.option_strings}
    assert options >= {
        *("--model", "--host", "--port", "--tensor-parallel-size", "--pipeline-parallel-size", "--max-num-seqs"),
        *("--max-model-len", "--gpu-memory-utilization", "--gda-enabled", "--pipeline-depth", "--cpu-routing-threads"),
        *("--prefetch-probability", "--enable-chunked-prefill", "--block-size", "--dtype"),
    }


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(
            ["serve", "m", "--port", "70000"], "--port: '70000' is not allowed; give a whole number from 0 to 65535"
        ),
        pytest.param(["serve", "m", "--port", "http"], "from 0 to 65535"),
        pytest.param(["serve", "m", "--pipeline-depth", "0"], "'0' is not allowed; give a whole number from 1 to 64"),
        pytest.param(["serve", "m", "--dtype", "int3"], "choose from 'bf16', 'int8', 'int4'"),
        pytest.param(["serve", "m", "--device", "tpu"], "choose from 'auto', 'cpu', 'cuda'"),
        pytest.param(["serve", "m", "--block-size", "8"], "choose from 16, 32"),
        pytest.param(["serve", "m", "--max-model-len", "0"], "a whole number of 1 or more"),
        pytest.param(["serve", "m", "--max-num-seqs", "-1"], "a whole number from 1 to 4096"),
        pytest.param(["serve", "m", "--gpu-memory-utilization", "1.5"], "a number above 0, up to 1"),
        pytest.param(["serve", "m", "--gpu-memory-utilization", "nan"], "a number above 0, up to 1"),
        pytest.param(["serve", "m", "--prefetch", "oracle"], "choose from 'auto', 'off', 'gate', 'history'"),
        pytest.param(
            ["serve", "m", "--prefetch-probability", "1.1"], "'1.1' is not allowed; give a number from 0 to 1"
        ),
        pytest.param(
            ["serve", "m", "--decode-latency-ms", "-1"], "a number of milliseconds up to 1e+09, or 0 for none"
        ),
        pytest.param(["serve", "m", "--no-enable-chunked-prefill"], "set --max-num-batched-tokens to --max-model-len"),
        pytest.param(
            ["serve", "m", "--max-model-length", "9"], "not known to 'strata serve', which has --max-model-len; see"
        ),
        pytest.param(["serve", "m", "--zzz=1"], "--zzz=1: not known to 'strata serve'; see 'strata serve --help'"),
        pytest.param(["serve", "m", "--allowed-origins", "chat.example"], "a scheme and a host like https://"),
        pytest.param(["serve", "m", "--allowed-origins", "https://a,https://b/c"], "'https://b/c' is no origin"),
        pytest.param(["serve", "m", "--api-key-file", "/nowhere"], "the API keys in /nowhere cannot be read"),
        pytest.param(["serve"], "no model given"),
        pytest.param(["serve", ""], "no model given"),
        pytest.param(["serve", "a", "--model", "b"], "two models given"),
        pytest.param(["convert", "m"], "--output-dir"),
        pytest.param(["convert", "--output-dir", "d"], "no model given"),
        pytest.param(["convert", "m", "--output-dir", "d", "--expert-shard-size", "0"], "from 1 to 65536"),
        pytest.param(
            ["convert", "m", "--output-dir", "d", "--revision", "v1"], "is for models on the Hub, ORG/NAME; 'm'"
        ),
        pytest.param(["convert", "m", "--output-dir", "/"], "/ is the root directory; give another"),
        pytest.param(["convert", "m", "--output-dir", "~no-such-user/d"], "'~no-such-user/d': the home directory"),
        pytest.param(["bench", "shape", "~no-such-user/c", "--out", "d"], "'~no-such-user/c': the home directory"),
        pytest.param(["serve", "a/b@v1", "--revision", "v2"], "two revisions given: 'v1' in the model's name"),
        pytest.param(["fetch", "a/b", "--revision", "../../x"], "'../../x' is no branch, tag or commit"),
        pytest.param(["fetch", "a/b", "--dtype", "q4"], "choose from 'bf16', 'int8', 'int4'"),
        pytest.param(["fetch"], "no model given"),
        pytest.param(["serve", "m", "--load-stall-seconds", "0"], "give a number above 0, up to 1e+09"),
        pytest.param(["chat", "--url", "localhost:8000"], "give one like http://127.0.0.1:8000"),
        pytest.param(["chat", " "], "the prompt is empty"),
        pytest.param(["bench"], "no KIND given; name one: decode, prefill, offload, perplexity, kernels,"),
        pytest.param(["bench", "decode"], "no model given"),
        pytest.param(["bench", "decode", "m", "--output-tokens", "0"], "a whole number of 1 or more"),
        pytest.param(["bench", "perplexity", "m"], "--text"),
        pytest.param(["bench", "perplexity", "m", "--text", "t", "--window", "1"], "a whole number of 2 or more"),
        pytest.param(["bench", "kernels", "--memory-mib", "9" * 20], "a whole number from 1 to 1073741824"),
        pytest.param(["plan"], "no model given"),
        pytest.param(["plan", "qwen3-8b", "--dram-gbps", "1e300"], "give a number above 0, up to 1e+09"),
        pytest.param(["plan", "qwen3-8b", "--ram-gib", "1e300"], "give a number above 0, up to 1e+09"),
        pytest.param(["calibrate", "m", "--expert-vram-gib", "1e300"], "a number of GiB from 0 to 1e+09"),
        pytest.param(["plan", "qwen3-8b", "--gpu=--"], "--gpu: '--' is no value"),
        pytest.param(["doctor", "a/b", "--model", "c/d"], "two models given"),
        pytest.param(["doctor", "--revision", "v1"], "--revision 'v1' is given without a model"),
        pytest.param(["bench", "decode", "m", "--revision", "v1"], "is for models on the Hub, ORG/NAME; 'm'"),
        pytest.param(["bench", "serve", "--api-key", "k"], "--api-key k: not known to 'strata bench serve'"),
        pytest.param(["plan", "m", "--dtype", "int3"], "choose from"),
        pytest.param(["chatt"], "invalid choice: 'chatt'"),
        pytest.param([], "no COMMAND given; name one: serve, chat, fetch, convert, plan, doctor,"),
        pytest.param(["plan", "m", "--gpu", "rtx4090", "--vram-gib", "-3"], "give a number above 0, up to 1e+09"),
    ],
)
def test_a_bad_command_line_says_what_is_allowed(
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("STRATA_TERMINATION_LOG", str(tmp_path / "last-words"))
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("strata: error: ")
    assert words in printed.err
    assert printed.out == ""
    assert words in (tmp_path / "last-words").read_text()


@pytest.mark.parametrize(
    ("extra", "arguments"),
    [
        ("serve", ["serve", "m"]),
        ("serve", ["convert", "m", "--output-dir", "nowhere"]),
        ("serve", ["fetch", "a/b", "--dtype", "int4"]),
        ("serve", ["bench", "decode", "m"]),
        ("serve", ["bench", "perplexity", "m", "--text", "t"]),
        ("bench", ["bench", "serve"]),
    ],
)
def test_every_package_of_an_extra_is_looked_for(
    extra: str, arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, module in EXTRAS[extra].items():
        with monkeypatch.context() as patch:
            patch.setattr(importlib.util, "find_spec", lambda wanted, lost=module: None if wanted == lost else object())
            assert main(arguments) == 2
        error = f"strata: error: {name} is not installed; this command needs: pip install '.[{extra}]' in a checkout"
        assert capsys.readouterr().err.startswith(error)


def test_a_fault_of_ours_is_raised_and_noted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STRATA_TERMINATION_LOG", str(tmp_path / "last-words"))
    monkeypatch.setattr(main_module, "build_parser", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main([])
    assert "ZeroDivisionError" in (tmp_path / "last-words").read_text()


def test_ctrl_c_while_the_command_is_imported_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name == "strata.cli.main":
                raise KeyboardInterrupt

    scripts = tomllib.loads((PAGE.parents[1] / "pyproject.toml").read_text())["project"]["scripts"]
    command = importlib.metadata.EntryPoint("strata", scripts["strata"], "console_scripts").load()
    monkeypatch.delitem(sys.modules, "strata.cli.main")
    monkeypatch.setattr(sys, "meta_path", [Interrupted, *sys.meta_path])
    assert command() == 130


@pytest.mark.parametrize(("error", "code"), [(EngineError, 1), (CheckpointError, 2), (StorageError, 3)])
def test_exit_codes_tell_whose_fault_it_is(
    error: type[StrataError], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error("why")

    monkeypatch.setattr(main_module, "build_parser", fail)
    assert main([]) == code
    assert capsys.readouterr().err == "strata: error: why\n"


def test_a_termination_log_is_cut_to_what_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STRATA_TERMINATION_LOG", str(tmp_path / "last-words"))
    main(["serve", "m", "--port", "9" * 2 * TERMINATION_LOG_BYTES])
    assert (tmp_path / "last-words").stat().st_size == TERMINATION_LOG_BYTES


def test_a_termination_log_that_cannot_be_written_is_no_second_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STRATA_TERMINATION_LOG", str(tmp_path / "nowhere" / "last-words"))
    assert main(["serve"]) == 2
    assert "cannot be written" in capsys.readouterr().err
