"""How an expert lies in host memory: tiles of 16 rows x 256 inputs, read as one ascending stream.

``src/layout.h`` describes the bytes; here is the same arithmetic for those who only need sizes and places. A store's
row-major parts become tiles once, when an expert enters host memory (``native.tiles``).
"""

from __future__ import annotations

from dataclasses import dataclass

ROWS = 16  # of a tile
GROUP = 32  # inputs that share a scale
TILE_GROUPS = 8  # of a whole tile
_LINE = 64  # bytes of a cache line

# By format: bytes of a tile's header, 64-byte lines of a group's codes, and the parts of a store's weight.
_HEADER_BYTES = {"int4": 320, "int8": 256, "mxfp4": 128, "bf16": 0}
_GROUP_LINES = {"int4": 4, "int8": 8, "mxfp4": 4, "bf16": 16}
PARTS = {
    "int4": (".codes", ".scales", ".mins", ".super"),
    "int8": (".codes", ".scales"),
    "mxfp4": (".codes", ".scales"),
    "bf16": ("",),
}
FORMATS = tuple(PARTS)  # in the order of the library's numbers
MATRICES = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True)
class TileLayout:
    """The tiles of one expert. All three matrices have the same format; ``hidden`` and ``intermediate`` are the widths
    of the model and of the expert's inner layer, multiples of 32 except in bf16."""

    format: str
    hidden: int
    intermediate: int
    bias: bool = False  # whether gate, up and down have one each

    def __post_init__(self) -> None:
        assert self.format in FORMATS, f"{self.format!r} is not one of {', '.join(FORMATS)}"
        step = 1 if self.format == "bf16" else GROUP
        for width in (self.hidden, self.intermediate):
            assert width > 0, f"{self} has no width"
            assert width % step == 0, f"{self} does not divide into groups of {GROUP}"

    @property
    def gate_block_bytes(self) -> int:
        """Bytes of 16 rows of gate, or of up."""
        return _block_bytes(self.format, -(-self.hidden // GROUP))

    @property
    def down_block_bytes(self) -> int:
        """Bytes of 16 rows of down."""
        return _block_bytes(self.format, -(-self.intermediate // GROUP))

    @property
    def gate_blocks(self) -> int:
        """Row blocks of gate, and of up."""
        return -(-self.intermediate // ROWS)

    @property
    def down_blocks(self) -> int:
        """Row blocks of down."""
        return -(-self.hidden // ROWS)

    @property
    def down_offset(self) -> int:
        """Where down begins; before it, row blocks of gate and up lie in turn."""
        return 2 * self.gate_blocks * self.gate_block_bytes

    @property
    def bias_offset(self) -> int:
        """Where the biases begin: float32, of gate, up and down, each filled up to whole row blocks."""
        return self.down_offset + self.down_blocks * self.down_block_bytes

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole blob, a multiple of 64."""
        biases = (2 * self.gate_blocks + self.down_blocks) * ROWS * 4
        return self.bias_offset + (biases if self.bias else 0)

    @property
    def parts(self) -> tuple[str, ...]:
        """The store's tensors that the blob is made of, by their names within an expert."""
        weights = tuple(f"{matrix}.weight{part}" for matrix in MATRICES for part in PARTS[self.format])
        return weights + (tuple(f"{matrix}.bias" for matrix in MATRICES) if self.bias else ())


def _block_bytes(format_: str, groups: int) -> int:
    whole, rest = divmod(groups, TILE_GROUPS)
    tiles = whole + (rest > 0)
    return tiles * _HEADER_BYTES[format_] + groups * _GROUP_LINES[format_] * _LINE
