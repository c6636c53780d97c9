#include "pipeline/presets.h"

#include <array>
#include <string>
#include <utility>
#include <vector>

namespace lowbit {
namespace {

/// Codes of a row under int8 codes of scales, which are cheap: a group of 32 costs 0.28 bits a weight, one of 192 0.05.
struct Candidate {
  FormatId format;
  int64_t group;
};

/// Formats of embedding and head where they cost too little to be seen; otherwise int8, a scale per row.
constexpr std::array<Candidate, 2> kEmbeddingHeadSizes = {{{FormatId::kCodebook3, 32}, {FormatId::kCodebook4, 32}}};

QuantizeSpec spec_of(const Candidate& candidate, std::string fit) {
  QuantizeSpec spec;
  spec.fit = std::move(fit);
  spec.format = candidate.format;
  spec.group = candidate.group;
  if (candidate.group > 0) spec.scale = ScaleKind::kDouble;
  return spec;
}

struct Preset {
  const char* name;
  float bits;      // per weight of all linear layers
  int64_t tokens;  // of the calibration text, where nobody says how many
  std::vector<Candidate> candidates;
};

/// Tables and even levels at the size, finer and coarser ones for what is more and less fragile. Each candidate is
/// fitted to every layer once, so formats that no budget of this size takes are left out.
const std::array<Preset, 3>& presets() {
  static const std::array<Preset, 3> all = {{
      {"best",
       4.25f,
       CalibrationOptions::kTokens,
       {{FormatId::kCodebook3, 192},
        {FormatId::kInt4, 64},
        {FormatId::kCodebook4, 192},
        {FormatId::kCodebook4, 64},
        {FormatId::kCodebook4, 32},
        {FormatId::kInt8, QuantizeSpec::kDefaultGroup}}},
      {"balanced",
       3.25f,
       2 * CalibrationOptions::kTokens,
       {{FormatId::kTrellis2, 192},
        {FormatId::kCodebook3, 64},
        {FormatId::kTrellis3, 192},
        {FormatId::kTrellis3, 64},
        {FormatId::kCodebook4, 64},
        {FormatId::kInt8, QuantizeSpec::kDefaultGroup}}},
      {"small",
       2.25f,
       CalibrationOptions::kTokens,
       {{FormatId::kTernaryPacked, 192},
        {FormatId::kTrellis2, 192},
        {FormatId::kTrellis2, 64},
        {FormatId::kTrellis3, 192},
        {FormatId::kCodebook4, 192}}},
  }};
  return all;
}

}  // namespace

Status apply_preset(QuantizeOptions& options) {
  if (options.preset.empty()) return {};
  for (const Preset& preset : presets()) {
    if (options.preset != preset.name) continue;
    if (options.target_bpw > 0) return fail(ErrorCode::kInvalidArgument, "--preset", "--target-bpw too", "one of them");
    options.linear = {};
    options.linear.fit = "asymmetric";
    options.target_bpw = preset.bits;
    options.candidates.clear();
    for (const Candidate& candidate : preset.candidates)
      options.candidates.push_back(spec_of(candidate, options.linear.fit));
    options.embedding_head_candidates.clear();
    if (options.search_embedding_head)
      for (const Candidate& candidate : kEmbeddingHeadSizes)
        options.embedding_head_candidates.push_back(spec_of(candidate, "auto"));
    if (options.calibration.file.empty()) options.calibration.file = CalibrationOptions::kSelf;
    if (options.calibration.tokens == 0) options.calibration.tokens = preset.tokens;
    return {};
  }
  return fail(ErrorCode::kInvalidArgument, "--preset", "'" + options.preset + "'", "best, balanced or small");
}

}  // namespace lowbit
