// Ranges as JSON: what `lowbit gru calibrate` leaves and `gru quantize` reads.

#include <cmath>

#include "base/try.h"
#include "gru/names.h"
#include "gru/ranges.h"
#include "io/json_text.h"
#include "io/mapped_file.h"
#include "io/posix_file.h"

namespace lowbit {
namespace {

using Json = nlohmann::json;

constexpr int kRangesVersion = 1;
constexpr int64_t kMaxRangesBytes = int64_t{64} << 20;
constexpr int64_t kMostCells = 4096;

/// Counts without the empty tail.
Json counts_json(std::span<const int64_t> counts) {
  size_t n = counts.size();
  while (n > 0 && counts[n - 1] == 0) --n;
  return std::vector<int64_t>(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(n));
}

Json cell_json(const GruCellRanges& cell) {
  Json tensors = Json::object();
  for (size_t t = 0; t < kGruTensors; ++t) {
    Json j = {{"min", cell.range[t].min}, {"max", cell.range[t].max}};
    const Histogram& h = cell.histogram[t];
    if (h.count() > 0)
      j["histogram"] = {{"bin_width", h.bin_width()},
                        {"positive", counts_json(h.positive())},
                        {"negative", counts_json(h.negative())}};
    tensors[gru_tensor_name(static_cast<GruTensor>(t))] = std::move(j);
  }
  return {{"input", cell.input}, {"hidden", cell.hidden}, {"tensors", std::move(tensors)}};
}

tl::unexpected<Error> bad(const std::string& where, const char* got, const char* wanted) {
  return fail(ErrorCode::kCorrupt, where, got, wanted);
}

std::optional<std::vector<int64_t>> read_counts(const Json& json, const char* key) {
  const auto it = json.find(key);
  if (it == json.end() || !it->is_array() || it->size() > Histogram::kBins) return std::nullopt;
  std::vector<int64_t> out;
  for (const Json& v : *it) {
    if (!v.is_number_integer()) return std::nullopt;
    const auto n = v.get<int64_t>();
    if (n < 0 || n > int64_t{1} << 50) return std::nullopt;
    out.push_back(n);
  }
  return out;
}

Status read_tensor(const Json& json, const std::string& where, Range& range, Histogram& histogram) {
  const auto min = json_number(json, "min"), max = json_number(json, "max");
  if (!min || !max || !(*min <= 0) || !(*max >= 0) || !(*min >= -1e30) || !(*max <= 1e30))
    return bad(where, "no range", "min <= 0 <= max, finite");
  range = {static_cast<float>(*min), static_cast<float>(*max)};
  const Json* h = json_object(json, "histogram");
  if (h == nullptr) return {};
  const auto width = json_number(*h, "bin_width");
  const auto positive = read_counts(*h, "positive"), negative = read_counts(*h, "negative");
  int exponent = 0;
  if (!width || !positive || !negative || !(*width > 1e-40) || !(*width < 1e35) || std::frexp(*width, &exponent) != 0.5)
    return bad(where + ".histogram", "broken counts or a bin width that is no power of two", "a histogram");
  histogram = Histogram::from_counts(range, exponent - 1, *positive, *negative);
  return {};
}

Result<GruCellRanges> read_cell(const Json& json, const std::string& where) {
  GruCellRanges cell;
  const auto input = json_int(json, "input"), hidden = json_int(json, "hidden");
  const Json* tensors = json.is_object() ? json_object(json, "tensors") : nullptr;
  if (!input || !hidden || tensors == nullptr) return bad(where, "no input, hidden or tensors", "a cell's ranges");
  cell.input = *input;
  cell.hidden = *hidden;
  for (size_t t = 0; t < kGruTensors; ++t) {
    const char* name = gru_tensor_name(static_cast<GruTensor>(t));
    const Json* tensor = json_object(*tensors, name);
    if (tensor == nullptr) return fail(ErrorCode::kCorrupt, where, std::string("no '") + name + "'", "all ten tensors");
    LOWBIT_TRY(read_tensor(*tensor, where + "." + name, cell.range[t], cell.histogram[t]));
  }
  return cell;
}

}  // namespace

Status GruRanges::save(const std::string& path) const {
  Json cells = Json::array();
  for (const GruCellRanges& cell : impl_->cells) cells.push_back(cell_json(cell));
  Json json = {{"lowbit_gru_ranges", kRangesVersion},
               {"method", gru_method_name(impl_->method)},
               {"steps", impl_->steps},
               {"bidirectional", impl_->bidirectional},
               {"cells", std::move(cells)}};
  if (impl_->method == GruMethod::kPercentile) json["percentile"] = impl_->percentile;
  return write_text_file(path, json_dump(json, 1) + "\n");
}

Result<GruRanges> GruRanges::open(const std::string& path) {
  LOWBIT_TRY_ASSIGN(const std::string text, read_text_file(path, kMaxRangesBytes));
  JsonLimits limits;
  limits.text_bytes = static_cast<size_t>(kMaxRangesBytes);
  LOWBIT_TRY_ASSIGN(const Json json, parse_json_object(text, path, limits));
  const auto version = json_int(json, "lowbit_gru_ranges");
  if (!version) return bad(path, "no member lowbit_gru_ranges", "a file of `lowbit gru calibrate`");
  if (*version != kRangesVersion)
    return fail(ErrorCode::kUnsupported, path, "version " + std::to_string(*version), std::to_string(kRangesVersion));
  auto impl = std::make_shared<Impl>();
  LOWBIT_TRY_ASSIGN(impl->method, parse_gru_method(json_string(json, "method").value_or("")));
  impl->percentile = json_number(json, "percentile").value_or(impl->percentile);
  impl->steps = json_int(json, "steps").value_or(0);
  impl->bidirectional = json_bool(json, "bidirectional").value_or(false);
  const auto cells = json.find("cells");
  if (cells == json.end() || !cells->is_array() || cells->empty() || cells->size() > kMostCells)
    return bad(path, "no cells", "at least one");
  for (size_t i = 0; i < cells->size(); ++i) {
    LOWBIT_TRY_ASSIGN(GruCellRanges cell, read_cell((*cells)[i], path + ": cell " + std::to_string(i)));
    impl->cells.push_back(std::move(cell));
  }
  return GruRanges(impl);
}

}  // namespace lowbit
