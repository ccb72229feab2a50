// How an expert lies in host memory: tiles of 16 rows x 256 inputs, read as one ascending stream.
//
// A row block is 16 rows of a matrix over all of its inputs, cut into tiles of 8 groups of 32 inputs. A tile is a header
// with the scales of its groups, then the codes, group after group: [words][16 rows][4 bytes], so that one 64-byte line
// has a lane for each row. A last tile of fewer than 8 groups has the whole header and only the codes of its groups.
//
//   format  header                                                        group            bytes of a tile
//   int4    d, dmin fp16 [16] each; minima, scales u8 [8 groups][16]       4 lines          2,368
//   int8    scales fp16 [8 groups][16]                                    8 lines          4,352
//   mxfp4   scales E8M0 [8 groups][16]                                    4 lines          2,176
//   bf16    none                                                          16 lines         8,192
//
// A word is what one row has of 8 inputs (int4, mxfp4; in the order of strata.quant.nibbles), of 4 (int8, as code + 128)
// or of 2 (bf16). A blob is, for each 16 hidden rows, the row blocks of gate and of up; then those of down; then, where
// there are any, the biases of gate, up and down as float32. Rows are filled up to whole blocks with zeros.
#pragma once

#include <cstddef>
#include <cstdint>

namespace strata {

constexpr size_t ROWS = 16;        // of a tile
constexpr size_t GROUP = 32;       // inputs that share a scale
constexpr size_t TILE_GROUPS = 8;  // of a whole tile
constexpr size_t LINE = 64;        // bytes of a cache line

enum Format : int32_t { INT4, INT8, MXFP4, BF16, NUM_FORMATS };

constexpr size_t HEADER_BYTES[NUM_FORMATS] = {320, 256, 128, 0};
constexpr size_t GROUP_WORDS[NUM_FORMATS] = {4, 8, 4, 16};

constexpr size_t ceil_div(size_t value, size_t by) { return (value + by - 1) / by; }
constexpr size_t group_bytes(Format format) { return GROUP_WORDS[format] * LINE; }
constexpr size_t tile_bytes(Format format, size_t groups) { return HEADER_BYTES[format] + groups * group_bytes(format); }

// Bytes of a row block whose rows have `groups` groups.
constexpr size_t block_bytes(Format format, size_t groups) {
  return groups / TILE_GROUPS * tile_bytes(format, TILE_GROUPS) +
         (groups % TILE_GROUPS ? tile_bytes(format, groups % TILE_GROUPS) : 0);
}

// Where the parts of one expert's blob are.
struct ExpertLayout {
  Format format;
  size_t hidden, intermediate;  // width of the model, and of the expert's inner layer
  bool bias;

  size_t hidden_groups() const { return ceil_div(hidden, GROUP); }              // inputs of gate and up
  size_t intermediate_groups() const { return ceil_div(intermediate, GROUP); }  // inputs of down
  size_t gate_blocks() const { return ceil_div(intermediate, ROWS); }           // row blocks of gate, and of up
  size_t down_blocks() const { return ceil_div(hidden, ROWS); }
  size_t gate_block_bytes() const { return block_bytes(format, hidden_groups()); }
  size_t down_block_bytes() const { return block_bytes(format, intermediate_groups()); }
  size_t down_offset() const { return 2 * gate_blocks() * gate_block_bytes(); }
  size_t bias_offset() const { return down_offset() + down_blocks() * down_block_bytes(); }
  size_t bias_bytes() const { return bias ? (2 * gate_blocks() + down_blocks()) * ROWS * sizeof(float) : 0; }
  size_t num_bytes() const { return bias_offset() + bias_bytes(); }
};

}  // namespace strata
