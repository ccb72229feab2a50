"""What guides say that the planner says, it says."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from docs.site import ROOT
from strata.cli.main import main

GIB, MIB = 2**30, 2**20


def words(page: str) -> str:
    return " ".join((ROOT / "docs" / page).read_text("utf-8").split())


@cache
def guide() -> str:
    return words("guides/workstation.md")


def planned(arguments: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """By format; the guide has that very command."""
    assert f"strata plan {arguments}" in guide()
    assert main(["plan", *arguments.split(), "--json"]) == 0
    dtypes: dict[str, Any] = json.loads(capsys.readouterr().out)["dtypes"]
    return dtypes


def test_a_model_that_fits(capsys: pytest.CaptureFixture[str]) -> None:
    plans = planned("qwen3-30b-a3b --gpu rtx3090 --max-model-len 32768", capsys)
    int4, bf16 = plans["int4"], plans["bf16"]
    assert int4["fit"]["slots"] == int4["weights"]["num_experts"]
    assert f"all {int4['weights']['experts'] / GIB:.1f} GiB of experts are in VRAM" in guide()
    decode = int4["decode"][0]
    assert f"{decode['expected_tokens_per_second']:.0f} tok/s are expected at 1,024 tokens of context" in guide()
    assert "and twice that is the bound" in guide()
    assert 1.9 < decode["tokens_per_second"] / decode["expected_tokens_per_second"] < 2.1
    assert f"({bf16['weights']['total'] / GIB:.0f} GiB in bf16)" in guide()
    assert f"a store of {int4['fit']['store_bytes'] / GIB:.1f} GiB" in guide()
    small, large = (plan["weights"]["expert"] / MIB for plan in (int4, bf16))
    assert f"an expert has {small:.1f} MiB instead of {large:.1f}" in words("guides/tuning.md")


def test_a_model_that_is_larger_than_the_card(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "gpt-oss-120b --gpu rtx3090 --pcie 3.0x16 --dram-gbps 60 --ram-gib 96 --dtype int4 --max-model-len 8192"
    plan = planned(arguments, capsys)["int4"]
    fit, decode = plan["fit"], plan["decode"][0]
    assert "a quarter of the experts in VRAM" in guide()
    assert fit["slots"] / plan["weights"]["num_experts"] == pytest.approx(0.25, abs=0.02)
    in_ram = fit["ram_experts"] * plan["weights"]["expert"] / GIB
    expected, bound = decode["expected_tokens_per_second"], decode["tokens_per_second"]
    assert f"{in_ram:.0f} GiB in host memory, {expected:.0f} tok/s expected, {bound:.0f} at most" in guide()
    assert decode["limit"] == "experts from host memory"
    assert f"bound at {bound:.1f} tok/s" in words("guides/hardware.md")
