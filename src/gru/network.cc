#include <cmath>

#include "base/try.h"
#include "gru/cell.h"

namespace lowbit {
namespace {

Status check_array(const std::vector<float>& values, int64_t rows, int64_t columns, const std::string& where) {
  if (static_cast<int64_t>(values.size()) != rows * columns)
    return fail(ErrorCode::kShapeMismatch, where, std::to_string(values.size()) + " numbers",
                std::to_string(rows) + " x " + std::to_string(columns));
  for (size_t i = 0; i < values.size(); ++i)
    if (!std::isfinite(values[i]))
      return fail(ErrorCode::kInvalidArgument, where, "a number that is not finite at " + std::to_string(i),
                  "finite weights");
  return {};
}

}  // namespace

int64_t GruNetwork::state_size() const {
  int64_t sum = 0;
  for (const GruWeights& cell : cells) sum += cell.hidden;
  return sum;
}

int64_t GruNetwork::parameters() const {
  int64_t sum = 0;
  for (const GruWeights& cell : cells) sum += 3 * cell.hidden * (cell.input + cell.hidden + 2);
  return sum;
}

Status check_gru(const GruNetwork& network) {
  const auto directions = static_cast<size_t>(network.directions());
  if (network.cells.empty() || network.cells.size() % directions != 0)
    return fail(ErrorCode::kShapeMismatch, "gru network", std::to_string(network.cells.size()) + " cells",
                directions == 2 ? "two for each layer" : "at least one");
  for (size_t i = 0; i < network.cells.size(); ++i) {
    const GruWeights& cell = network.cells[i];
    const std::string where = "gru cell " + std::to_string(i);
    if (cell.input < 1 || cell.hidden < 1 || cell.input > kMaxGruSize || cell.hidden > kMaxGruSize)
      return fail(ErrorCode::kShapeMismatch, where,
                  std::to_string(cell.input) + " inputs, " + std::to_string(cell.hidden) + " hidden",
                  "1 to " + std::to_string(kMaxGruSize) + " of both");
    LOWBIT_TRY(check_array(cell.w, 3 * cell.hidden, cell.input, where + " w"));
    LOWBIT_TRY(check_array(cell.r, 3 * cell.hidden, cell.hidden, where + " r"));
    LOWBIT_TRY(check_array(cell.bw, 3 * cell.hidden, 1, where + " bw"));
    LOWBIT_TRY(check_array(cell.br, 3 * cell.hidden, 1, where + " br"));
    const size_t first = i / directions * directions;  // of this layer
    const int64_t wanted =
        first == 0 ? network.cells[0].input : static_cast<int64_t>(directions) * network.cells[first - 1].hidden;
    if (cell.input != wanted || cell.hidden != network.cells[first].hidden)
      return fail(ErrorCode::kShapeMismatch, where,
                  std::to_string(cell.input) + " inputs, " + std::to_string(cell.hidden) + " hidden",
                  std::to_string(wanted) + " and " + std::to_string(network.cells[first].hidden),
                  "a layer reads the outputs of the one below; directions are alike");
  }
  return {};
}

}  // namespace lowbit
