// Row-major parts of a matrix, as a store has them (strata.quant), to row blocks of tiles and back.
#pragma once

#include "layout.h"

namespace strata {

// One matrix [rows, cols]. Parts in the order of strata.quant: int4 codes, scales, mins, super; int8 and mxfp4 codes,
// scales; bf16 weight.
struct Matrix {
  Format format;
  size_t rows, cols;
  uint8_t* parts[4];
};

// Row block `b` is at blocks + b * stride; with `back` the tiles are read and the parts written.
void tile_matrix(const Matrix& matrix, uint8_t* blocks, size_t stride, bool back);

// A whole expert: parts of gate, up and down. `biases`: theirs as float32 or, with `narrow`, bf16, where the layout has
// them.
void tile_expert(const ExpertLayout& layout, uint8_t* const parts[3][4], uint8_t* const biases[3], bool narrow,
                 uint8_t* blob, bool back);

}  // namespace strata
