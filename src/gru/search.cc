// The fewest bytes that meet a floor: formats are narrowed one at a time from a start that meets it.

#include <algorithm>
#include <limits>

#include "base/try.h"
#include "gru/model.h"
#include "gru/output_sqnr.h"

namespace lowbit {
namespace {

/// Formats that are narrowed together, and the widths that they go through.
struct Group {
  const char* name;
  std::vector<GruTensor> tensors;
  bool weights_w = false, weights_r = false;
  std::vector<int> ladder;
};

std::vector<Group> groups() {
  using enum GruTensor;
  const std::vector<int> weights = {8, 4, 3, 2}, activations = {16, 12, 10, 8, 7, 6, 5, 4};
  return {{"weight.W", {}, true, false, weights},
          {"weight.R", {}, false, true, weights},
          {"input.x", {kX}, false, false, activations},
          {"output.h", {kH}, false, false, activations},
          {"linear", {kIh, kHh}, false, false, activations},
          {"gate inputs", {kUi, kRi, kNi}, false, false, activations},
          {"gate outputs", {kU, kR, kN}, false, false, activations}};
}

int bits_of(const GruConfig& c, const Group& g) {
  return g.weights_w ? c.w.bits : g.weights_r ? c.r.bits : c[g.tensors.front()].bits;
}

/// The next narrower width of the group; 0 at its end.
int narrower(const GruConfig& c, const Group& g) {
  for (const int bits : g.ladder)
    if (bits < bits_of(c, g)) return bits;
  return 0;
}

void set_bits(GruConfig& c, const Group& g, int bits) {
  if (g.weights_w) c.w.bits = bits;
  if (g.weights_r) c.r.bits = bits;
  for (const GruTensor t : g.tensors) c[t].bits = bits;
}

int activation_bits(const GruConfig& c) {
  int sum = 0;
  for (const GruFormat& f : c.tensors) sum += f.bits;
  return sum;
}

struct Tried {
  GruConfig config;
  double value = -std::numeric_limits<double>::infinity();
  int64_t bytes = 0;
};

class Search {
 public:
  Search(const GruNetwork& network, const GruRanges& ranges, const GruSearchOptions& options, GruSearchReport& report)
      : network_(network), ranges_(ranges), options_(options), report_(report), sqnr_(network, options.inputs) {}

  Result<Tried> attempt(const GruConfig& config, const std::string& what) {
    Tried t{config, 0, 0};
    const auto model = GruModel::quantize(network_, ranges_, config, {options_.inputs});
    if (!model && model.error().code == ErrorCode::kUnsupported) {  // a plan that would overflow is no candidate
      t.value = -std::numeric_limits<double>::infinity();
      t.bytes = std::numeric_limits<int64_t>::max();
      return t;
    }
    if (!model) return tl::unexpected(model.error());
    t.bytes = model->bytes();
    LOWBIT_TRY_ASSIGN(t.value, options_.metric ? options_.metric(*model) : sqnr_(*model));
    report_.tried.push_back({what, t.value, t.bytes, t.value >= options_.floor});
    return t;
  }

 private:
  const GruNetwork& network_;
  const GruRanges& ranges_;
  const GruSearchOptions& options_;
  GruSearchReport& report_;
  OutputSqnr sqnr_;
};

/// Fewer bytes first, then fewer bits of activations, then the better value.
bool better(const Tried& a, const Tried& b) {
  if (a.bytes != b.bytes) return a.bytes < b.bytes;
  if (activation_bits(a.config) != activation_bits(b.config))
    return activation_bits(a.config) < activation_bits(b.config);
  return a.value > b.value;
}

}  // namespace

Result<GruSearchReport> search_gru_bits(const GruNetwork& network, const GruRanges& ranges,
                                        const GruSearchOptions& options) {
  if (options.inputs.empty() && (!options.metric || options.start.rounding == GruRounding::kFeedback))
    return fail(ErrorCode::kInvalidArgument, "gru search", "no inputs", "inputs to compare with the float network on");
  GruSearchReport report;
  Search search(network, ranges, options, report);
  LOWBIT_TRY_ASSIGN(Tried best, search.attempt(options.start, "start"));
  if (!(best.value >= options.floor))
    return fail(ErrorCode::kInvalidArgument, "gru search", "a start of " + std::to_string(best.value),
                "at least the floor of " + std::to_string(options.floor),
                "start from a wider preset, such as accurate");
  for (bool found = true; found;) {
    found = false;
    Tried step;
    for (const Group& g : groups()) {
      const int bits = narrower(best.config, g);
      if (bits == 0) continue;
      GruConfig config = best.config;
      set_bits(config, g, bits);
      LOWBIT_TRY_ASSIGN(Tried t, search.attempt(config, std::string(g.name) + " " + std::to_string(bits)));
      if (!(t.value >= options.floor) || (found && !better(t, step))) continue;
      step = t;
      found = true;
    }
    if (found) best = step;
  }
  report.config = best.config;
  report.value = best.value;
  report.bytes = best.bytes;
  return report;
}

}  // namespace lowbit
