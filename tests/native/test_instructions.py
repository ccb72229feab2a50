"""No instruction outside of its variant: what is common runs on any x86-64, AVX2 code on CPUs without AVX-512."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping

import pytest

from strata.native.library import PATH, VARIANTS

WIDE = {"xmm": r"\bv[a-z0-9]+ .*%xmm", "ymm": "%ymm", "zmm": r"%zmm|%k[0-7]"}
ALLOWED: Mapping[str, tuple[str, ...]] = {
    "common": (),
    "scalar": (),
    "avx2": ("xmm", "ymm"),
    "avx512": ("xmm", "ymm", "zmm"),
    "avx512_vnni": ("xmm", "ymm", "zmm"),
}


@pytest.fixture(scope="module")
def code() -> dict[str, str]:
    """The instructions of each variant, and of all else."""
    if shutil.which("objdump") is None:
        pytest.skip("needs objdump")
    listing = subprocess.run(
        ["objdump", "--disassemble", "--demangle", "--no-show-raw-insn", str(PATH)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found: dict[str, list[str]] = {name: [] for name in ALLOWED}
    for function in re.split(r"\n(?=[0-9a-f]{8,} <)", listing):
        head = function.partition("\n")[0]
        owner = re.search(r"strata::(\w+)::\(anonymous namespace\)", head)
        found[owner[1] if owner and owner[1] in VARIANTS else "common"].append(function)
    return {name: "\n".join(functions) for name, functions in found.items()}


@pytest.mark.parametrize("variant", ALLOWED)
def test_no_wider_registers_than_the_variant_has(code: dict[str, str], variant: str) -> None:
    assert code[variant], "the library has functions of every variant"
    for register, pattern in WIDE.items():
        hits = re.findall(f"^.*(?:{pattern}).*$", code[variant], re.MULTILINE)
        if register in ALLOWED[variant]:
            assert hits, f"{variant} does not use {register}: is it compiled for what it is called?"
        else:
            assert not hits, hits[:5]


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_kernels_prefetch(code: dict[str, str], variant: str) -> None:
    """A compiler may take what only prefetches for something without effect, and leave it out."""
    functions = re.split(r"\n(?=[0-9a-f]{8,} <)", code[variant])
    kernels = [text for text in functions if re.match(r"[^\n]*::multiply_(integers|bf16)", text)]
    assert kernels
    for kernel in kernels:
        assert "prefetch" in kernel, kernel.partition("\n")[0]


def test_no_instructions_that_nobody_asked_the_cpu_for(code: dict[str, str]) -> None:
    """Of BMI, LZCNT, ADX: compilers take them as soon as they may, and ``cpu.cpp`` does not look for them."""
    names = r"\b(?:andn|bextr|bls\w+|bzhi|mulx|pdep|pext|rorx|sarx|shlx|shrx|adcx|adox|lzcnt)[lq]?\b"
    for variant, text in code.items():
        assert not re.findall(names, text)[:5], variant


def test_vnni_is_in_its_own_variant_alone(code: dict[str, str]) -> None:
    assert {name for name, text in code.items() if "vpdpbusd" in text} == {"avx512_vnni"}
