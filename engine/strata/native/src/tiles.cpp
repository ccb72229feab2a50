#include "tiles.h"

#include <cstring>

namespace strata {
namespace {

// One row of a matrix while it is copied to or from its lane of a row block.
class Row {
 public:
  Row(const Matrix& matrix, size_t row, uint8_t* block, bool back)
      : matrix_(matrix), row_(row), lane_(row % ROWS), block_(block), back_(back) {}

  void copy() {
    const size_t groups = matrix_.cols / GROUP;
    uint8_t* tile = block_;
    for (size_t first = 0; first < groups; first += TILE_GROUPS) {
      const size_t count = groups - first < TILE_GROUPS ? groups - first : TILE_GROUPS;
      copy_header(tile, first, count);
      copy_codes(tile + HEADER_BYTES[matrix_.format], first * GROUP_WORDS[matrix_.format],
                 count * GROUP_WORDS[matrix_.format]);
      tile += tile_bytes(matrix_.format, count);
    }
    if (matrix_.format == BF16 && matrix_.cols % GROUP) copy_rest(groups);
  }

 private:
  template <class T>
  void move(T& tiled, T& row_major) {
    if (back_) {
      row_major = tiled;
    } else {
      tiled = row_major;
    }
  }

  // Item `index` of this row in a part of `per_row` items.
  template <class T>
  T& item(size_t part, size_t per_row, size_t index) {
    return ((T*)matrix_.parts[part])[row_ * per_row + index];
  }

  void copy_header(uint8_t* header, size_t first, size_t count) {
    const size_t groups = matrix_.cols / GROUP;
    if (matrix_.format == INT4) {
      const size_t supers = groups < TILE_GROUPS ? 1 : groups / TILE_GROUPS;
      // The last superblock of a row also has the groups that do not fill one; they have a tile of their own.
      const size_t super = first / TILE_GROUPS < supers ? first / TILE_GROUPS : supers - 1;
      if (!back_ || first / TILE_GROUPS < supers) {
        for (size_t i = 0; i < 2; ++i) {
          move(((uint16_t*)header)[i * ROWS + lane_], item<uint16_t>(3, 2 * supers, 2 * super + i));
        }
      }
      for (size_t g = 0; g < count; ++g) {
        move(header[64 + g * ROWS + lane_], item<uint8_t>(2, groups, first + g));
        move(header[192 + g * ROWS + lane_], item<uint8_t>(1, groups, first + g));
      }
    } else if (matrix_.format == INT8) {
      for (size_t g = 0; g < count; ++g) {
        move(((uint16_t*)header)[g * ROWS + lane_], item<uint16_t>(1, groups, first + g));
      }
    } else if (matrix_.format == MXFP4) {
      for (size_t g = 0; g < count; ++g) move(header[g * ROWS + lane_], item<uint8_t>(1, groups, first + g));
    }
  }

  void copy_codes(uint8_t* codes, size_t first, size_t count) {
    uint32_t* tiled = (uint32_t*)codes + lane_;
    // int8 codes are stored plus 128: as unsigned bytes.
    const uint32_t sign = matrix_.format == INT8 ? 0x80808080u : 0;
    uint8_t* row_major = row_codes() + first * 4;
    for (size_t i = 0; i < count; ++i) {
      uint32_t word;
      if (back_) {
        word = tiled[i * ROWS] ^ sign;
        memcpy(row_major + 4 * i, &word, 4);
      } else {
        memcpy(&word, row_major + 4 * i, 4);
        tiled[i * ROWS] = word ^ sign;
      }
    }
  }

  // bf16 alone has rows that are not whole groups.
  void copy_rest(size_t groups) {
    uint16_t* row = (uint16_t*)row_codes();
    uint16_t* tiled = (uint16_t*)(block_ + groups * group_bytes(BF16));
    for (size_t c = groups * GROUP; c < matrix_.cols; ++c) {
      const size_t in_group = c - groups * GROUP;
      move(tiled[in_group / 2 * ROWS * 2 + lane_ * 2 + in_group % 2], row[c]);
    }
  }

  uint8_t* row_codes() {
    static_assert(sizeof(uint32_t) == 4, "a word is 32 bits");
    const size_t bits = matrix_.format == BF16 ? 16 : matrix_.format == INT8 ? 8 : 4;
    return matrix_.parts[0] + row_ * (matrix_.cols * bits / 8);
  }

  const Matrix& matrix_;
  const size_t row_, lane_;
  uint8_t* const block_;
  const bool back_;
};

}  // namespace

void tile_matrix(const Matrix& matrix, uint8_t* blocks, size_t stride, bool back) {
  const size_t bytes = block_bytes(matrix.format, ceil_div(matrix.cols, GROUP));
  for (size_t b = 0; b < ceil_div(matrix.rows, ROWS); ++b) {
    uint8_t* block = blocks + b * stride;
    const size_t end = (b + 1) * ROWS < matrix.rows ? (b + 1) * ROWS : matrix.rows;
    const bool whole = end == (b + 1) * ROWS && matrix.cols % (GROUP * TILE_GROUPS) == 0;
    if (!back && !whole) memset(block, 0, bytes);  // rows and groups that are not there have scales of zero
    for (size_t row = b * ROWS; row < end; ++row) Row(matrix, row, block, back).copy();
  }
}

void tile_expert(const ExpertLayout& layout, uint8_t* const parts[3][4], uint8_t* const biases[3], bool narrow,
                 uint8_t* blob, bool back) {
  const size_t gate_bytes = layout.gate_block_bytes();
  const size_t rows[3] = {layout.intermediate, layout.intermediate, layout.hidden};
  uint8_t* const starts[3] = {blob, blob + gate_bytes, blob + layout.down_offset()};
  const size_t strides[3] = {2 * gate_bytes, 2 * gate_bytes, layout.down_block_bytes()};
  for (int i = 0; i < 3; ++i) {
    Matrix matrix{layout.format, rows[i], i == 2 ? layout.intermediate : layout.hidden, {}};
    memcpy(matrix.parts, parts[i], sizeof matrix.parts);
    tile_matrix(matrix, starts[i], strides[i], back);
  }
  if (!layout.bias) return;
  uint8_t* bias = blob + layout.bias_offset();
  if (!back) memset(bias, 0, layout.bias_bytes());
  for (int i = 0; i < 3; ++i) {
    // A bf16 is the upper half of a float32.
    const size_t item = narrow ? 2 : 4;
    for (size_t r = 0; r < rows[i]; ++r) {
      uint8_t *wide = bias + r * 4 + (4 - item), *other = biases[i] + r * item;
      memcpy(back ? other : wide, back ? wide : other, item);
    }
    bias += ceil_div(rows[i], ROWS) * ROWS * sizeof(float);
  }
}

}  // namespace strata
