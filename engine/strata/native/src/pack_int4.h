// Rounding to int4, by the rule of strata.quant.int4, which describes it; included by each variant.
//
// A lane is a group of 32 weights: 16 groups of a row are turned so that sums over a group need no shuffles. First each
// group's step and lowest value are fitted, then those of a superblock are rounded to 8 bits against its fp16 pair, and
// the codes follow.
#pragma once

#include "kernels.h"
#include "numbers.h"

namespace strata::VARIANT {
namespace {

constexpr size_t LANES = 16;         // groups that are fitted together
constexpr float LEVELS = 15;         // the largest code
constexpr float STEPS = 255;         // the largest 8-bit scale or minimum
constexpr float ON_GRID = 2e-5f;     // of a group's energy: with less error it lies on a grid of 16 levels or fewer
constexpr float NEAREST = 12582912;  // 1.5 * 2^23: adding it rounds to the nearest integer, ties to even

inline Floats nearest(Floats x) { return sub(add(x, splat(NEAREST)), splat(NEAREST)); }
inline Floats clamp(Floats x, float high) { return min(max(x, splat(0)), splat(high)); }
inline Floats inverse(Floats x) {
  return select_less(splat(0), max(x, sub(splat(0), x)), div(splat(1), x), splat(0));
}

struct Fit {
  Floats scale, low;
};

// The weights of 16 groups, turned: [32][16].
struct Groups {
  Floats w[GROUP];

  Floats lowest() const {
    Floats out = w[0];
    for (size_t i = 1; i < GROUP; ++i) out = min(out, w[i]);
    return out;
  }
  Floats highest() const {
    Floats out = w[0];
    for (size_t i = 1; i < GROUP; ++i) out = max(out, w[i]);
    return out;
  }
  Floats sum() const {
    Floats out = w[0];
    for (size_t i = 1; i < GROUP; ++i) out = add(out, w[i]);
    return out;
  }
  Floats energy() const {
    Floats out = mul(w[0], w[0]);
    for (size_t i = 1; i < GROUP; ++i) out = fma(w[i], w[i], out);
    return out;
  }
  void round(const Fit& fit, Floats* codes) const {
    const Floats factor = inverse(fit.scale);
    for (size_t i = 0; i < GROUP; ++i) codes[i] = clamp(nearest(mul(sub(w[i], fit.low), factor)), LEVELS);
  }
  Floats error(const Fit& fit, const Floats* codes) const {
    Floats out = splat(0);
    for (size_t i = 0; i < GROUP; ++i) {
      const Floats off = sub(fma(codes[i], fit.scale, fit.low), w[i]);
      out = fma(off, off, out);
    }
    return out;
  }
  // The step and lowest value that fit given codes best, the latter on the side that `sign` allows.
  Fit least_squares(const Floats* codes, Floats sum_w, Floats sign) const {
    Floats c = splat(0), cc = splat(0), wc = splat(0);
    for (size_t i = 0; i < GROUP; ++i) {
      c = add(c, codes[i]);
      cc = fma(codes[i], codes[i], cc);
      wc = fma(w[i], codes[i], wc);
    }
    const Floats n = splat(GROUP), one = splat(1), zero = splat(0);
    const Floats spread = sub(mul(n, cc), mul(c, c));  // 0 where all codes are equal
    const Floats slope = div(sub(mul(n, wc), mul(c, sum_w)), max(spread, one));
    const Floats scale = max(select_less(zero, spread, slope, zero), zero);
    const Floats low = div(fnma(scale, c, sum_w), n);
    const Floats through_zero = max(div(wc, max(cc, one)), zero);
    const Floats wrong = mul(low, sign);
    return {select_less(zero, wrong, through_zero, scale), select_less(zero, wrong, zero, low)};
  }
};

// In how many lanes a <= b.
inline size_t count_at_most(Floats a, Floats b) {
  float x[LANES], y[LANES];
  store(x, a);
  store(y, b);
  size_t count = 0;
  for (size_t i = 0; i < LANES; ++i) count += x[i] <= y[i];
  return count;
}

inline bool all_at_most(Floats a, Floats b) { return count_at_most(a, b) == LANES; }

// Whether the first group may be a lowest value and whole multiples, 15 at most, of some step, some rounding aside. A
// lane is a number of steps: this costs a twentieth of looking at all groups.
inline bool first_may_lie_on_grid(const Groups& groups) {
  const float* w = (const float*)groups.w;
  float low = w[0], high = w[0], energy = 0, levels[LANES];
  for (size_t i = 0; i < GROUP * LANES; i += LANES) {
    low = w[i] < low ? w[i] : low;
    high = w[i] > high ? w[i] : high;
    energy += w[i] * w[i];
  }
  for (size_t i = 0; i < LANES; ++i) levels[i] = i < 15 ? float(i + 1) : 1;
  const Floats step = div(splat(high - low), load_floats(levels)), factor = inverse(step);
  Floats error = splat(0);
  for (size_t i = 0; i < GROUP * LANES; i += LANES) {
    const Floats above = splat(w[i] - low), off = fnma(nearest(mul(above, factor)), step, above);
    error = fma(off, off, error);
  }
  float errors[LANES];
  store(errors, error);
  for (const float each : errors) {
    if (each <= 10 * ON_GRID * energy) return true;
  }
  return false;
}

// Whether most groups do: rounding, to bf16 say, takes some a little off.
inline bool lie_on_grid(const Groups& groups) {
  if (!first_may_lie_on_grid(groups)) return false;
  const Floats low = groups.lowest(), span = sub(groups.highest(), low), enough = mul(groups.energy(), splat(ON_GRID));
  Floats least = splat(3e38f), codes[GROUP];
  for (float levels = LEVELS; levels >= 1; --levels) {
    const Fit fit{div(span, splat(levels)), low};
    groups.round(fit, codes);
    least = min(least, groups.error(fit, codes));
  }
  return count_at_most(least, enough) >= LANES / 2;
}

// Step and lowest value before they are rounded to 8 bits. `sign` is 1 where the lowest value must not lie above zero, -1
// where it must not lie below.
inline Fit fit_groups(const Groups& groups, Floats sign) {
  Floats codes[GROUP];
  Floats low = groups.lowest();
  low = select_less(splat(0), mul(low, sign), splat(0), low);
  const Floats span = sub(max(groups.highest(), low), low), sum = groups.sum();
  const Floats enough = mul(groups.energy(), splat(ON_GRID));
  Fit best{div(span, splat(LEVELS)), low};
  groups.round(best, codes);
  Floats error = groups.error(best, codes);
  const auto keep_better = [&](const Fit& fit) {
    const Floats now = groups.error(fit, codes);
    best = {select_less(now, error, fit.scale, best.scale), select_less(now, error, fit.low, best.low)};
    error = min(now, error);
  };
  if (lie_on_grid(groups)) {
    for (float levels = LEVELS - 1; levels >= 1 && !all_at_most(error, enough); --levels) {
      const Fit fit{div(span, splat(levels)), low};
      groups.round(fit, codes);
      keep_better(fit);
    }
    groups.round(best, codes);
    const Fit fitted = groups.least_squares(codes, sum, sign);
    groups.round(fitted, codes);
    keep_better(fitted);
    if (all_at_most(error, enough)) return best;
  }
  for (float start = 0; start < 2; ++start) {
    const Floats scale = div(span, splat(LEVELS + start));
    Fit fit{scale, fma(scale, splat(start / 2), low)};
    groups.round(fit, codes);
    for (int i = 0; i < 2; ++i) {
      fit = groups.least_squares(codes, sum, sign);
      groups.round(fit, codes);
    }
    keep_better(fit);
  }
  return best;
}

// What is stored of 16 groups: 8-bit scales and minima, and codes. Rounding the scale moves the best minimum and the
// other way round, so each is fitted once more to the other's rounded value and kept where the error falls.
inline void round_groups(const Groups& groups, const Fit& fit, Floats d, Floats dmin, Floats* stored, Floats* codes) {
  const Floats per_d = inverse(d), per_dmin = inverse(dmin), zero = splat(0);
  Floats scales = clamp(nearest(mul(fit.scale, per_d)), STEPS);
  Floats mins = clamp(nearest(mul(sub(zero, fit.low), per_dmin)), STEPS);
  const auto meant = [&](Floats s, Floats m) { return Fit{mul(d, s), sub(zero, mul(dmin, m))}; };
  groups.round(meant(scales, mins), codes);
  Floats error = groups.error(meant(scales, mins), codes);
  const Floats mean = div(groups.sum(), splat(GROUP));
  for (int part = 0; part < 2; ++part) {
    Floats new_scales = scales, new_mins = mins, tried[GROUP];
    if (part == 0) {
      Floats c = zero;
      for (size_t i = 0; i < GROUP; ++i) c = add(c, codes[i]);
      const Floats low = sub(mul(mul(d, scales), div(c, splat(GROUP))), mean);
      new_mins = clamp(nearest(mul(low, per_dmin)), STEPS);
    } else {
      const Floats low = mul(dmin, mins);
      Floats product = zero, cc = zero;
      for (size_t i = 0; i < GROUP; ++i) {
        product = fma(add(groups.w[i], low), codes[i], product);
        cc = fma(codes[i], codes[i], cc);
      }
      new_scales = clamp(nearest(mul(div(product, max(cc, splat(1))), per_d)), STEPS);
    }
    groups.round(meant(new_scales, new_mins), tried);
    const Floats now = groups.error(meant(new_scales, new_mins), tried);
    scales = select_less(now, error, new_scales, scales);
    mins = select_less(now, error, new_mins, mins);
    for (size_t i = 0; i < GROUP; ++i) codes[i] = select_less(now, error, tried[i], codes[i]);
    error = min(now, error);
  }
  stored[0] = scales;
  stored[1] = mins;
}

// One row at a time, in memory of the caller's: see `pack_int4`.
struct Row {
  size_t groups, supers, batches;
  Groups* weights;                // [batches]
  float *scale, *low, *d, *dmin;  // [batches * 16]
  float* sign;

  size_t super_of(size_t group) const { return group / TILE_GROUPS < supers ? group / TILE_GROUPS : supers - 1; }

  void load(const void* numbers, size_t first, Number number) {
    for (size_t g = 0; g < batches * LANES; ++g) {
      float* lane = (float*)weights[g / LANES].w + g % LANES;
      for (size_t i = 0; i < GROUP; ++i) lane[i * LANES] = g < groups ? widen(numbers, first + g * GROUP + i, number) : 0;
    }
  }

  // Sets `sign` of each group: -1 where no group of its superblock reaches below zero.
  void find_signs() {
    for (size_t b = 0; b < batches; ++b) store(low + b * LANES, weights[b].lowest());
    for (size_t g = 0; g < batches * LANES; ++g) sign[g] = -1;
    for (size_t s = 0; s < supers; ++s) {
      const size_t end = s + 1 < supers ? (s + 1) * TILE_GROUPS : groups;
      bool any = false;
      for (size_t g = s * TILE_GROUPS; g < end; ++g) any |= low[g] < 0;
      for (size_t g = s * TILE_GROUPS; g < end; ++g) sign[g] = any ? 1 : -1;
    }
  }

  void fit() {
    for (size_t b = 0; b < batches; ++b) {
      const Fit fit = fit_groups(weights[b], load_floats(sign + b * LANES));
      store(scale + b * LANES, fit.scale);
      store(low + b * LANES, fit.low);
    }
  }

  // Each superblock's fp16 pair: 255 steps of it reach its largest scale and minimum.
  void pair(uint16_t* super) {
    for (size_t s = 0; s < supers; ++s) {
      const size_t begin = s * TILE_GROUPS, end = s + 1 < supers ? begin + TILE_GROUPS : groups;
      float most = 0, most_low = 0;
      for (size_t g = begin; g < end; ++g) {
        const float magnitude = low[g] < 0 ? -low[g] : low[g];
        most = scale[g] > most ? scale[g] : most;
        most_low = magnitude > most_low ? magnitude : most_low;
      }
      super[2 * s] = half_above(most / STEPS);
      const uint16_t minimum = half_above(most_low / STEPS);
      super[2 * s + 1] = sign[begin] < 0 ? minimum | 0x8000 : minimum;
      for (size_t g = begin; g < end; ++g) {
        d[g] = half_to_float(super[2 * s]);
        dmin[g] = half_to_float(super[2 * s + 1]);
      }
    }
    for (size_t g = groups; g < batches * LANES; ++g) d[g] = dmin[g] = 0;
  }

  void write(uint8_t* codes, uint8_t* scales, uint8_t* mins) const {
    for (size_t b = 0; b < batches; ++b) {
      const size_t at = b * LANES, count = groups - at < LANES ? groups - at : LANES;
      Floats stored[2], rounded[GROUP];
      round_groups(weights[b], {load_floats(scale + at), load_floats(low + at)}, load_floats(d + at),
                   load_floats(dmin + at), stored, rounded);
      const float *s = (const float*)&stored[0], *m = (const float*)&stored[1], *c = (const float*)rounded;
      for (size_t g = 0; g < count; ++g) {
        scales[at + g] = uint8_t(s[g]);
        mins[at + g] = uint8_t(m[g]);
        uint8_t* out = codes + (at + g) * GROUP / 2;
        // Byte j of each four has codes j and j + 4 of eight.
        for (size_t i = 0; i < GROUP / 2; ++i) {
          const size_t low_code = i / 4 * 8 + i % 4;
          out[i] = uint8_t(int32_t(c[low_code * LANES + g]) | int32_t(c[(low_code + 4) * LANES + g]) << 4);
        }
      }
    }
  }
};

void pack_int4(const void* numbers, Number number, size_t rows, size_t cols, uint8_t* workspace, const Int4Parts& parts) {
  Row row;
  row.groups = cols / GROUP;
  row.supers = row.groups < TILE_GROUPS ? 1 : row.groups / TILE_GROUPS;
  row.batches = ceil_div(row.groups, LANES);
  const size_t lanes = row.batches * LANES;
  row.weights = (Groups*)workspace;
  row.scale = (float*)(row.weights + row.batches);
  row.low = row.scale + lanes;
  row.d = row.low + lanes;
  row.dmin = row.d + lanes;
  row.sign = row.dmin + lanes;
  for (size_t r = 0; r < rows; ++r) {
    row.load(numbers, r * cols, number);
    row.find_signs();
    row.fit();
    row.pair(parts.super + r * 2 * row.supers);
    row.write(parts.codes + r * cols / 2, parts.scales + r * row.groups, parts.mins + r * row.groups);
  }
}

}  // namespace
}  // namespace strata::VARIANT
