#include "gru/gate_order.h"

#include "base/try.h"
#include "gru/cell.h"

namespace lowbit {
namespace {

bool is_float(DType t) { return t == DType::kF32 || t == DType::kF64 || t == DType::kF16 || t == DType::kBf16; }

std::string shape_of(const GruArrayView& a) {
  return "'" + a.name.substr(0, 128) + "' of " + shape_string(a.view.shape);
}

Status expect(const GruArrayView& a, const Shape& wanted, const std::string& where, const std::string& meaning) {
  if (!is_float(a.view.dtype))
    return fail(ErrorCode::kUnsupported, where, "'" + a.name.substr(0, 128) + "' of " + dtype_name(a.view.dtype),
                "floating point weights");
  if (a.view.shape == wanted) return {};
  return fail(ErrorCode::kShapeMismatch, where, shape_of(a), shape_string(wanted) + ", " + meaning,
              "a GRU has 3 gates; 4 would be an LSTM, 1 a plain RNN");
}

}  // namespace

std::vector<float> ordered_gates(const TensorView& source, int64_t first, int64_t hidden, int64_t k, GateOrder order,
                                 bool transposed) {
  std::vector<float> out(static_cast<size_t>(3 * hidden * k));
  if (!transposed) {
    for (int gate = 0; gate < 3; ++gate)
      convert_to_f32(source, first + order[static_cast<size_t>(gate)] * hidden * k, hidden * k,
                     out.data() + gate * hidden * k);
    return out;
  }
  std::vector<float> row(static_cast<size_t>(3 * hidden));
  for (int64_t i = 0; i < k; ++i) {
    convert_to_f32(source, first + i * 3 * hidden, 3 * hidden, row.data());
    for (int64_t gate = 0; gate < 3; ++gate)
      for (int64_t j = 0; j < hidden; ++j)
        out[static_cast<size_t>((gate * hidden + j) * k + i)] =
            row[static_cast<size_t>(order[static_cast<size_t>(gate)] * hidden + j)];
  }
  return out;
}

Result<GruWeights> read_gru_cell(const GruCellSource& s, const std::string& where) {
  const bool axis = s.direction >= 0;
  const size_t rank = axis ? 3 : 2;
  for (const GruArrayView* a : {s.w, s.r})
    if (a->view.shape.size() != rank)
      return fail(ErrorCode::kShapeMismatch, where, shape_of(*a), std::to_string(rank) + " axes");
  const size_t last = rank - 1;
  GruWeights cell;
  cell.input = s.transposed ? s.w->view.shape[last - 1] : s.w->view.shape[last];
  cell.hidden = s.transposed ? s.r->view.shape[last - 1] : s.r->view.shape[last];
  if (cell.input < 1 || cell.hidden < 1 || cell.input > kMaxGruSize || cell.hidden > kMaxGruSize)
    return fail(ErrorCode::kShapeMismatch, where, shape_of(*s.w) + " and " + shape_of(*s.r),
                "1 to " + std::to_string(kMaxGruSize) + " inputs and hidden");
  const int64_t rows = 3 * cell.hidden;
  const auto with_axis = [&](Shape shape) {
    if (axis) shape.insert(shape.begin(), s.directions);
    return shape;
  };
  LOWBIT_TRY(expect(*s.w, with_axis(s.transposed ? Shape{cell.input, rows} : Shape{rows, cell.input}), where,
                    "3 gates of " + std::to_string(cell.hidden)));
  LOWBIT_TRY(expect(*s.r, with_axis(s.transposed ? Shape{cell.hidden, rows} : Shape{rows, cell.hidden}), where,
                    "3 gates of " + std::to_string(cell.hidden)));
  const int64_t d = axis ? s.direction : 0;
  cell.w = ordered_gates(s.w->view, d * rows * cell.input, cell.hidden, cell.input, s.order, s.transposed);
  cell.r = ordered_gates(s.r->view, d * rows * cell.hidden, cell.hidden, cell.hidden, s.order, s.transposed);
  cell.bw.assign(static_cast<size_t>(rows), 0);
  cell.br = cell.bw;
  if (axis && s.bw != nullptr) {
    LOWBIT_TRY(expect(*s.bw, {s.directions, 2 * rows}, where, "the biases Wb and Rb of 3 gates"));
    cell.bw = ordered_gates(s.bw->view, 2 * d * rows, cell.hidden, 1, s.order);
    cell.br = ordered_gates(s.bw->view, (2 * d + 1) * rows, cell.hidden, 1, s.order);
  } else if (!axis) {
    const std::pair<const GruArrayView*, std::vector<float>*> biases[] = {{s.bw, &cell.bw}, {s.br, &cell.br}};
    for (const auto& [source, to] : biases) {
      if (source == nullptr) continue;
      LOWBIT_TRY(expect(*source, {rows}, where, "a bias of 3 gates"));
      *to = ordered_gates(source->view, 0, cell.hidden, 1, s.order);
    }
  }
  return cell;
}

}  // namespace lowbit
