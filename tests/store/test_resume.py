"""A conversion that is cut short goes on where it was, and needs little memory however large the model is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from math import prod
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from strata.config import read_hf_config
from strata.errors import StorageError
from strata.plan.shape import needed
from strata.store.convert import convert
from strata.store.reader import Store
from tests.store.checkpoints import config, write_hf
from tests.store.test_experts import moe


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of some ten shards of both kinds."""
    return write_hf(tmp_path_factory.mktemp("source") / "m", moe(hidden_size=256, moe_intermediate_size=512))


@pytest.fixture(scope="module")
def whole(source: Path) -> Path:
    """Its store, made without an interruption."""
    return convert(str(source), source.parent / "whole", "bf16", shard_size=2 << 20)


def interrupted(source: Path, target: Path, share: float) -> dict[str, tuple[int, int]]:
    """Interrupt a conversion after that share of its bytes; gives inode and time of each file that it left."""

    def stop(phase: str, done: int, total: int) -> None:
        if phase == "verify" or done >= share * total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(str(source), target, "bf16", shard_size=2 << 20, progress=stop)
    assert not target.exists()
    left = target.with_name(f".{target.name}.partial") / "content"
    return {file.name: (file.stat().st_ino, file.stat().st_mtime_ns) for file in left.glob("*/*")}


@pytest.mark.parametrize("share", [0.3, 0.9, 2.0], ids=["early", "late", "before the checksums"])
def test_what_is_finished_is_not_made_again(source: Path, whole: Path, tmp_path: Path, share: float) -> None:
    left = interrupted(source, tmp_path / "s", share)
    assert len(left) >= 2
    seen: list[tuple[str, int]] = []
    convert(
        str(source),
        tmp_path / "s",
        "bf16",
        shard_size=2 << 20,
        progress=lambda phase, done, _: seen.append((phase, done)),
    )
    assert contents(tmp_path / "s") == contents(whole)
    again = {file.name: (file.stat().st_ino, file.stat().st_mtime_ns) for file in (tmp_path / "s").glob("*/*")}
    same = [name for name in left if again[name] == left[name]]
    assert len(same) >= len(left) - 1  # the last one may have been torn
    first_bytes = [done for phase, done in seen if phase == "convert"][:1]
    assert all(done > (len(same) - 1) << 20 for done in first_bytes)
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_a_torn_shard_is_made_again(source: Path, whole: Path, tmp_path: Path) -> None:
    left = interrupted(source, tmp_path / "s", 0.9)
    shard = tmp_path / ".s.partial" / "content" / "experts" / sorted(n for n in left if n.endswith(".bin"))[0]
    os.truncate(shard, 1000)
    convert(str(source), tmp_path / "s", "bf16", shard_size=2 << 20)
    assert contents(tmp_path / "s") == contents(whole)


@pytest.mark.parametrize("change", ["dtype", "shard size", "source"])
def test_another_conversion_takes_nothing_over(source: Path, tmp_path: Path, change: str) -> None:
    other = (
        write_hf(tmp_path / "other", moe(hidden_size=256, moe_intermediate_size=512)) if change == "source" else source
    )
    dtype, size = ("int8" if change == "dtype" else "bf16"), (3 if change == "shard size" else 2) << 20
    interrupted(source, tmp_path / "s", 0.9)
    seen: list[int] = []
    convert(str(other), tmp_path / "s", dtype, shard_size=size, progress=lambda phase, done, _: seen.append(done))
    assert seen[0] < 1 << 20  # the first header
    for _ in Store.open(tmp_path / "s").load():
        pass


def test_a_shard_that_does_not_read_back_is_named_and_made_again(source: Path, whole: Path, tmp_path: Path) -> None:
    shard = tmp_path / ".s.partial" / "content" / "experts" / "00002-of-00008.bin"

    moments = iter(["verify"])

    def damage(phase: str, done: int, total: int) -> None:
        if phase == "verify" and next(moments, None):
            data = bytearray(shard.read_bytes())
            data[77] ^= 1
            shard.write_bytes(data)

    with pytest.raises(StorageError, match=r"00002-of-00008\.bin does not read back as it was written; check the disk"):
        convert(str(source), tmp_path / "s", "bf16", shard_size=2 << 20, progress=damage)
    left = {path.name: path.stat().st_ino for path in shard.parent.iterdir()}
    assert shard.name not in left
    convert(str(source), tmp_path / "s", "bf16", shard_size=2 << 20)
    assert contents(tmp_path / "s") == contents(whole)
    assert left.items() <= {path.name: path.stat().st_ino for path in (tmp_path / "s" / "experts").iterdir()}.items()


def test_what_is_left_after_the_last_moment_is_cleaned(source: Path, whole: Path, tmp_path: Path) -> None:
    # Killed between the renaming and the removal of the journal: the store is there.
    path = convert(str(source), tmp_path / "s", "bf16", shard_size=2 << 20)
    (tmp_path / ".s.partial").mkdir()
    (tmp_path / ".s.partial" / "journal").write_text("{}")
    convert(str(source), path, "bf16", shard_size=2 << 20, reuse=True)
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


# Forks a conversion again and again; each kills itself at some report of how far it is, until the store is there.
KILLER = """
import os, random, signal, sys
from pathlib import Path
import torch
from strata.store.convert import convert, is_store

source, directory = sys.argv[1], Path(sys.argv[2])
moments = random.Random(1)

def attempt(target, reports_left):
    child = os.fork()
    if child == 0:
        def report(phase, done, total):
            nonlocal reports_left
            reports_left -= 1
            if reports_left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        convert(source, target, "bf16", shard_size=2 << 20, progress=report)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)

kills = 0
for number in range(4):
    target = directory / str(number)
    while not is_store(target):
        kills += attempt(target, moments.randrange(1, 60))
print(kills)
"""


def test_killed_at_random_moments_the_store_is_the_same(source: Path, whole: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLER, str(source), str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(result.stdout) >= 8, result.stderr
    for path in tmp_path.iterdir():
        if not path.name.startswith("."):  # a lock or what is left beside a store that was renamed just before
            assert contents(path) == contents(whole)


# --- memory

PEAK = r"""
import re, sys
from pathlib import Path
import torch
from strata.store.convert import convert
import gguf.quants, safetensors, tokenizers, xxhash

def peak():  # not getrusage's, which begins with that of the parent
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) << 10

convert(sys.argv[1], sys.argv[2] + "-small", "int8")  # imports and pools
before = peak()
convert(sys.argv[3], sys.argv[2], "int8")
print(before, peak())
"""


def test_memory_is_that_of_a_layer_however_large_the_model_is(tmp_path: Path) -> None:
    table = config(
        hidden_size=1024,
        intermediate_size=2048,
        num_hidden_layers=16,
        head_dim=256,
        vocab_size=16_000,
        tie_word_embeddings=False,
    )
    small = write_hf(tmp_path / "small")
    large = write_hf(tmp_path / "large", config())
    (large / "config.json").write_text(json.dumps(table))
    noise = torch.randn(1 << 20).bfloat16()
    specs = needed(read_hf_config(table, origin="test"))
    tensors = {
        spec.name: noise.repeat(1 + prod(spec.shape) // len(noise))[: prod(spec.shape)].view(spec.shape)
        for spec in specs
    }
    layer = sum(2 * tensor.numel() for name, tensor in tensors.items() if ".layers.0." in name)
    save_file(tensors, str(large / "model.safetensors"))
    command = [sys.executable, "-c", PEAK, str(small), str(tmp_path / "s"), str(large)]
    before, peak = map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    size = (large / "model.safetensors").stat().st_size
    assert peak <= layer + (1 << 30)
    assert peak - before < layer + (192 << 20) < 2 * size // 3
