"""What is measured, in the order in which it is: stores with random weights of public shapes, and cases on them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Store:
    """``strata bench shape`` writes it."""

    name: str  # of its directory
    shape: str
    dtype: str
    num_layers: int | None = None  # None: all
    router_skew: int = 0  # 0: all experts are as likely

    @property
    def arguments(self) -> tuple[str, ...]:
        """Of ``strata bench shape``, without --out."""
        layers = () if self.num_layers is None else ("--layers", str(self.num_layers))
        skew = ("--router-skew", str(self.router_skew)) if self.router_skew else ()
        return (self.shape, "--dtype", self.dtype, *layers, *skew)


@dataclass(frozen=True, slots=True)
class Case:
    """``strata bench ARGUMENTS`` on a store, in a process of its own. ``seconds``: it may take."""

    name: str
    store: Store
    arguments: tuple[str, ...]
    seconds: float = 90.0


@dataclass(frozen=True, slots=True)
class Served:
    """A real ``strata serve`` with ``strata bench serve`` as its client: the time to the first of ``ttft_prompt``
    tokens when idle, then tok/s of so many streams beside the engine's own."""

    name: str
    store: Store
    ttft_prompt: int = 80
    streams: tuple[int, ...] = (1, 32)
    output_tokens: int = 256
    seconds: float = 90.0


QWEN_8B = Store("qwen3-8b", "qwen3-8b", "int4")
QWEN_30B = Store("qwen3-30b-a3b", "qwen3-30b-a3b", "int4")
QWEN_30B_BF16 = Store("qwen3-30b-a3b-12-layers", "qwen3-30b-a3b", "bf16", num_layers=12)
# A layer's 36 likeliest experts are 99.8 % of what its tokens take: those that fill 4 GiB.
QWEN_30B_BF16_FEW = Store("qwen3-30b-a3b-12-layers-few", "qwen3-30b-a3b", "bf16", num_layers=12, router_skew=8)

# Kernels of the same shapes, from a store of one layer each: they are built while the large stores are written.
WARM = tuple(
    Case("kernels", Store(f"warm-{store.name}", store.shape, store.dtype, num_layers=1), arguments)
    for store, arguments in (
        (QWEN_8B, ("decode", "--batch-size", "1,32", "--output-tokens", "8")),
        (QWEN_30B, ("decode", "--batch-size", "1,32", "--output-tokens", "8")),
        (QWEN_30B, ("decode", "--batch-size", "1", "--output-tokens", "8", "--expert-vram-gib", "0.1")),
    )
)

_DECODE = ("decode", "--prompt-tokens", "512", "--batch-size")
_OFFLOAD = ("offload", "--prompt-tokens", "512", "--output-tokens", "128", "--vram-shares")
_PREFILL = ("prefill", "--prompt-tokens", "2048,8192")
_FEW = ("--output-tokens", "24")  # of steps that each bring most experts over PCIe
# Of steps that bring whole layers: nothing about single experts has to be tried at the start.
_LAYERS = ("--expert-placement", "hybrid", "--prefetch", "off")
HALF = ("--expert-vram-gib", "7.8")  # of 15.6 GiB: 64 of a layer's 128 experts
NONE = ("--expert-vram-gib", "0")

SUITE: tuple[Case | Served, ...] = (
    Case("Qwen3-30B-A3B int4, all in VRAM", QWEN_30B, (*_DECODE, "1,32")),
    Case("Qwen3-30B-A3B int4, all in VRAM", QWEN_30B, _PREFILL),
    Case(
        "Qwen3-30B-A3B int4",
        QWEN_30B,
        (*_OFFLOAD, "0,0.5"),
        seconds=150.0,
    ),
    Case("Qwen3-30B-A3B int4, no expert in VRAM", QWEN_30B, (*_PREFILL, *NONE, *_LAYERS)),
    Case("Qwen3-8B int4", QWEN_8B, (*_DECODE, "1,32")),
    Served("Qwen3-30B-A3B int4, all in VRAM", QWEN_30B),
    *(
        Case(
            f"Qwen3-30B-A3B bf16, 12 layers, 4 GiB of experts in VRAM, {what}",
            store,
            (*_DECODE, "1", "--expert-vram-gib", "4", *options),
        )
        for what, store, options in (
            ("hardly others needed", QWEN_30B_BF16_FEW, ("--output-tokens", "512")),
            ("placement hybrid", QWEN_30B_BF16, ("--expert-placement", "hybrid")),
            ("placement cpu", QWEN_30B_BF16, ("--expert-placement", "cpu")),
        )
    ),
    Case("Qwen3-30B-A3B int4, half of the experts in VRAM", QWEN_30B, (*_DECODE, "32", *_FEW, *HALF, *_LAYERS)),
    Case("Qwen3-30B-A3B int4, no expert in VRAM", QWEN_30B, (*_DECODE, "32", *_FEW, *NONE, *_LAYERS)),
    Case("Qwen3-30B-A3B int4", QWEN_30B, (*_OFFLOAD, "0.25,0.75", "--ways", "auto"), seconds=100.0),
)
