// A cell's numbers as the kernels of this folder read them: one image, offsets first, pointers when its place is known.

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/rounding.h"
#include "kernels/cuda/gru/device_cell.h"

namespace lowbit::cuda::gru {
namespace {

constexpr int64_t kSmallSum = int64_t{1} << 22, kExactSum = int64_t{1} << 24;

int64_t align_up(int64_t v, int64_t to) { return (v + to - 1) / to * to; }

/// Host image of the device memory: parts, each aligned to 256.
class Image {
 public:
  /// Offset of `bytes` zeros.
  int64_t take(int64_t bytes) {
    const auto at = static_cast<int64_t>(bytes_.size());
    bytes_.resize(static_cast<size_t>(align_up(at + std::max<int64_t>(bytes, 1), 256)));
    return at;
  }
  template <class T>
  T* at(int64_t offset) {
    return reinterpret_cast<T*>(bytes_.data() + offset);
  }
  template <class T>
  int64_t add(const T* from, int64_t count) {
    const int64_t at_offset = take(count * static_cast<int64_t>(sizeof(T)));
    if (count > 0) std::memcpy(at<T>(at_offset), from, static_cast<size_t>(count) * sizeof(T));
    return at_offset;
  }
  const std::vector<uint8_t>& bytes() const { return bytes_; }

 private:
  std::vector<uint8_t> bytes_;
};

/// Offsets until the image is on the device, pointers from then on.
template <class T>
void place(const T*& pointer, int64_t offset) {
  pointer = reinterpret_cast<const T*>(static_cast<uintptr_t>(offset));
}
template <class T>
void move_to(const T*& pointer, bool present, const uint8_t* base) {
  pointer = present ? reinterpret_cast<const T*>(base + reinterpret_cast<uintptr_t>(pointer)) : nullptr;
}

struct ProductSource {
  const GruSpec& spec;
  bool state;
  const GruGrid& in() const { return spec.grid[state ? kSlotH : kSlotX]; }
  const GruGrid& out() const { return spec.grid[state ? kSlotHh : kSlotIh]; }
  int64_t k() const { return state ? spec.h : spec.c; }
  int64_t weight(int64_t row, int64_t column) const { return (state ? spec.r : spec.w)[row * k() + column]; }
};

/// Fills the tiles of 16 rows x 32 columns; `tile_of(gate, group, kstep)` is a tile's place.
template <class TileOf>
void pack_tiles(const ProductSource& from, const Cell& cell, int ksteps, uint8_t* tiles, const TileOf& tile_of) {
  const int64_t h = from.spec.h, k = from.k();
  for (int gate = 0; gate < 3; ++gate)
    for (int group = 0; group < cell.groups; ++group)
      for (int step = 0; step < ksteps; ++step)
        for (int lane = 0; lane < 32; ++lane)
          for (int b = 0; b < 16; ++b) {
            // Words of a lane: rows g, g + 8 at columns 4 t.., then the same rows at 16 + 4 t...
            const int row = lane / 4 + 8 * (b / 4 % 2), column = step * kStepK + 16 * (b / 8) + 4 * (lane % 4) + b % 4;
            const int64_t unit = int64_t{group} * kGroup + unit_of_row(row);
            if (unit >= h || column >= k) continue;
            tiles[tile_of(gate, group, step) * kTileBytes + lane * 16 + b] =
                static_cast<uint8_t>(from.weight(gate * h + unit, column));
          }
}

void pack_product(const ProductSource& from, const Cell& cell, bool matrix, Product& p, Image& image) {
  const GruSpec& s = from.spec;
  const int64_t h = s.h, k = from.k();
  p.k = static_cast<int32_t>(k);
  p.ksteps = static_cast<int32_t>(align_up(k, 2 * kStepK) / kStepK);
  p.limbs = gru_planes(from.in());
  p.low = from.out().lo - from.out().zp;
  p.high = from.out().hi - from.out().zp;
  p.narrow = from.state ? s.state32 : s.input32;
  const int64_t bias = image.take(8 * int64_t{3} * cell.padded), shift = image.take(4 * int64_t{3} * cell.padded);
  p.small = p.exact = 1;
  for (int64_t row = 0; row < 3 * h; ++row) {
    int64_t sum = 0, size = 0;
    for (int64_t i = 0; i < k; ++i) {
      sum += from.weight(row, i);
      size += std::abs(from.weight(row, i));
    }
    const int64_t to = row / h * cell.padded + row % h;
    const int64_t biased = (from.state ? s.h_bias : s.x_bias)[row] + int64_t{from.in().lo} * sum;
    const int32_t places = (from.state ? s.h_shift : s.x_shift)[row];
    image.at<int64_t>(bias)[to] = biased;
    image.at<int32_t>(shift)[to] = places;
    const int64_t range = from.in().hi - from.in().lo, most = (size + sum) / 2 * range,
                  least = (sum - size) / 2 * range;
    for (const int64_t v : {biased, most, least, biased + most, biased + least})
      if (std::abs(v) >= kExactSum) p.exact = 0;
    // A sum passes through its bias alone and through parts of the rest.
    if (std::abs(biased) >= kSmallSum || std::abs(biased) + size * (from.in().hi - from.in().lo) >= kSmallSum ||
        places > 22)
      p.small = 0;
  }
  place(p.bias, bias);
  place(p.shift, shift);
  if (!matrix) {
    const int64_t plain = image.take(4 * 3 * h * k);
    for (int64_t row = 0; row < 3 * h; ++row)
      for (int64_t i = 0; i < k; ++i) image.at<int32_t>(plain)[row * k + i] = static_cast<int32_t>(from.weight(row, i));
    place(p.plain, plain);
    return;
  }
  const int64_t tiles = image.take(int64_t{3} * cell.groups * p.ksteps * kTileBytes);
  const int64_t groups = cell.groups, steps = p.ksteps;
  if (from.state)
    pack_tiles(from, cell, p.ksteps, image.at<uint8_t>(tiles),
               [=](int64_t gate, int64_t group, int64_t step) { return (group * steps + step) * 3 + gate; });
  else
    pack_tiles(from, cell, p.ksteps, image.at<uint8_t>(tiles),
               [=](int64_t gate, int64_t group, int64_t step) { return (gate * groups + group) * steps + step; });
  place(p.tiles, tiles);
}

int64_t segment_value(const GruTableView& t, const GruGrid& in, const GruGrid& out, int64_t i, int64_t q) {
  const int64_t product = int64_t{t.slope[i]} * (q - in.zp);
  const int64_t y = t.kind == GruTableView::kSeed ? rounding_shift(product, t.shift[i]) + t.intercept[i]
                                                  : rounding_shift(product + t.intercept[i], t.shift[i]) + out.zp;
  return std::clamp<int64_t>(y, out.lo, out.hi);
}

/// All outputs: exact integer work, whatever form the table has.
void pack_table(const GruTableView& t, const GruGrid& in, const GruGrid& out, Table& to, Image& image) {
  const bool direct = t.kind == GruTableView::kDirect;
  to.entries = in.hi - in.lo + 1;
  std::vector<uint16_t> data;
  int64_t segment = 0;
  for (int64_t q = in.lo; q <= in.hi; ++q) {
    while (!direct && segment < t.segments - 1 && q >= t.threshold[segment]) ++segment;
    const int64_t y = direct ? t.direct[q - in.lo] : segment_value(t, in, out, segment, q);
    data.push_back(static_cast<uint16_t>(y - out.lo));
  }
  place(to.data, image.add(data.data(), to.entries));
}

}  // namespace

void point_into(Cell& cell, const uint8_t* base) {
  for (Product* p : {&cell.x, &cell.r}) {
    const bool plain = p->plain != nullptr;
    move_to(p->bias, true, base);
    move_to(p->shift, true, base);
    move_to(p->plain, plain, base);
    move_to(p->tiles, !plain, base);
  }
  for (Table& t : cell.table) move_to(t.data, true, base);
}

std::vector<uint8_t> pack_cell(const GruSpec& spec, bool matrix_input, bool matrix_state, Cell& cell) {
  cell.h = static_cast<int32_t>(spec.h);
  cell.groups = static_cast<int32_t>(align_up(spec.h, kGroup) / kGroup);
  cell.padded = cell.groups * kGroup;
  std::copy(std::begin(spec.grid), std::end(spec.grid), std::begin(cell.grid));
  cell.ih_bytes = gru_planes(spec.grid[kSlotIh]);
  cell.ih_stride = 3 * cell.padded;
  Image image;
  (void)image.take(256);  // so that no offset is 0
  pack_product({spec, false}, cell, matrix_input, cell.x, image);
  pack_product({spec, true}, cell, matrix_state, cell.r, image);
  const int ins[] = {kSlotUi, kSlotRi, kSlotNi}, outs[] = {kSlotU, kSlotR, kSlotN};
  for (int i = 0; i < 3; ++i) pack_table(spec.table[i], spec.grid[ins[i]], spec.grid[outs[i]], cell.table[i], image);
  return image.bytes();
}

Number number_of(const GruSpec& spec) {
  const auto small = [&](int slot) { return spec.grid[slot].hi - spec.grid[slot].lo < kSmallTable; };
  const bool small_tables = small(kSlotUi) && small(kSlotRi) && small(kSlotNi);
  if (spec.elements_f32 && spec.state_f32 && gru_planes(spec.grid[kSlotH]) == 1 && small_tables) return Number::kF32;
  return spec.elements_f64 && spec.state_f64 ? Number::kF64 : Number::kInt64;
}

}  // namespace lowbit::cuda::gru
