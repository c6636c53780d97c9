#include "text/tokenizer_json_steps.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "base/try.h"

namespace lowbit::text {
namespace {

using Prepend = PreTokenizerStep::Prepend;

constexpr std::size_t kMaxSteps = 64;

template <class Enum>
using Name = std::pair<const char*, Enum>;

constexpr Name<NormalizerStep::Kind> kNormalizers[] = {
    {"NFC", NormalizerStep::Kind::kNfc},
    {"NFD", NormalizerStep::Kind::kNfd},
    {"NFKC", NormalizerStep::Kind::kNfkc},
    {"NFKD", NormalizerStep::Kind::kNfkd},
    {"Lowercase", NormalizerStep::Kind::kLowercase},
    {"Prepend", NormalizerStep::Kind::kPrepend},
    {"Replace", NormalizerStep::Kind::kReplace},
    {"Strip", NormalizerStep::Kind::kStrip},
};
constexpr Name<PreTokenizerStep::Kind> kPreTokenizers[] = {
    {"Split", PreTokenizerStep::Kind::kSplit},
    {"Digits", PreTokenizerStep::Kind::kDigits},
    {"Punctuation", PreTokenizerStep::Kind::kPunctuation},
    {"WhitespaceSplit", PreTokenizerStep::Kind::kWhitespaceSplit},
    {"Whitespace", PreTokenizerStep::Kind::kWhitespace},
    {"Metaspace", PreTokenizerStep::Kind::kMetaspace},
    {"ByteLevel", PreTokenizerStep::Kind::kByteLevel},
};
constexpr Name<DecoderStep::Kind> kDecoders[] = {
    {"ByteLevel", DecoderStep::Kind::kByteLevel},
    {"Replace", DecoderStep::Kind::kReplace},
    {"ByteFallback", DecoderStep::Kind::kByteFallback},
    {"Fuse", DecoderStep::Kind::kFuse},
    {"Strip", DecoderStep::Kind::kStrip},
    {"Metaspace", DecoderStep::Kind::kMetaspace},
};
constexpr Name<SplitBehavior> kBehaviors[] = {
    {"Removed", SplitBehavior::kRemoved},
    {"Isolated", SplitBehavior::kIsolated},
    {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
    {"MergedWithNext", SplitBehavior::kMergedWithNext},
    {"Contiguous", SplitBehavior::kContiguous},
};
constexpr Name<Prepend> kPrepends[] = {
    {"always", Prepend::kAlways}, {"first", Prepend::kFirst}, {"never", Prepend::kNever}};

template <class Enum, std::size_t N>
Result<Enum> by_name(const Name<Enum> (&names)[N], const std::string& name, std::string_view where) {
  std::string known;
  for (const auto& [text, value] : names) {
    if (name == text) return value;
    known += known.empty() ? text : fmt::format(", {}", text);
  }
  return fail(ErrorCode::kUnsupported, std::string(where), fmt::format("{:.60}", name), "one of " + known);
}

template <class Enum, std::size_t N>
const char* name_of(const Name<Enum> (&names)[N], Enum value) {
  for (const auto& [text, v] : names)
    if (v == value) return text;
  return "";
}

// Calls read(step) for the section itself or for each member of its Sequence. Sequences may nest.
template <class Read>
Status for_each_step(const Json& section, const char* list, std::string_view where, std::size_t& count, Read read) {
  if (section.is_null()) return {};
  if (++count > kMaxSteps)
    return fail(ErrorCode::kUnsupported, std::string(where), "too many steps", fmt::format("at most {}", kMaxSteps));
  LOWBIT_TRY_ASSIGN(const std::string type, string_member(section, "type", "", where));
  if (type != "Sequence") {
    if (!section.is_object() || type.empty())
      return fail(ErrorCode::kCorrupt, std::string(where), "a step without a type", "an object with \"type\"");
    return read(section, type);
  }
  const Json& members = member(section, list);
  if (!members.is_array())
    return fail(ErrorCode::kCorrupt, fmt::format("{} Sequence", where), members.type_name(),
                fmt::format("an array \"{}\"", list));
  for (const Json& step : members) LOWBIT_TRY(for_each_step(step, list, where, count, read));
  return {};
}

// "pattern": {"String": "x"} or {"Regex": "x"}.
Status read_pattern(const Json& step, std::string_view where, std::string& pattern, bool& is_regex) {
  const Json& json = member(step, "pattern");
  is_regex = json.is_object() && json.contains("Regex");
  LOWBIT_TRY_ASSIGN(pattern, string_member(json, is_regex ? "Regex" : "String", "", where));
  if (pattern.empty())
    return fail(ErrorCode::kCorrupt, fmt::format("{} \"pattern\"", where), "none",
                "{\"String\": ...} or {\"Regex\": ...}");
  return {};
}

Result<int> count_member(const Json& step, const char* key, std::string_view where) {
  const Json& json = member(step, key);
  if (json.is_null()) return 0;
  if (!json.is_number_unsigned() || json.get<std::uint64_t>() > 1000)
    return fail(ErrorCode::kCorrupt, fmt::format("{} \"{}\"", where, key), json.type_name(), "0 to 1000");
  return json.get<int>();
}

// Older files say add_prefix_space where newer ones say prepend_scheme.
Result<Prepend> read_prepend(const Json& step, std::string_view where) {
  LOWBIT_TRY_ASSIGN(const bool prefix, bool_member(step, "add_prefix_space", true, where));
  LOWBIT_TRY_ASSIGN(const std::string scheme,
                    string_member(step, "prepend_scheme", prefix ? "always" : "never", where));
  return by_name(kPrepends, scheme, where);
}

Result<PreTokenizerStep> read_pre_tokenizer_step(const Json& json, const std::string& type, std::string_view where) {
  PreTokenizerStep step;
  LOWBIT_TRY_ASSIGN(step.kind, by_name(kPreTokenizers, type, where));
  switch (step.kind) {
    case PreTokenizerStep::Kind::kSplit: {
      LOWBIT_TRY(read_pattern(json, where, step.pattern, step.is_regex));
      LOWBIT_TRY_ASSIGN(step.invert, bool_member(json, "invert", false, where));
      LOWBIT_TRY_ASSIGN(const std::string b, string_member(json, "behavior", "Isolated", where));
      LOWBIT_TRY_ASSIGN(step.behavior, by_name(kBehaviors, b, where));
      break;
    }
    case PreTokenizerStep::Kind::kPunctuation: {
      LOWBIT_TRY_ASSIGN(const std::string b, string_member(json, "behavior", "Isolated", where));
      LOWBIT_TRY_ASSIGN(step.behavior, by_name(kBehaviors, b, where));
      break;
    }
    case PreTokenizerStep::Kind::kDigits: {
      LOWBIT_TRY_ASSIGN(step.individual_digits, bool_member(json, "individual_digits", false, where));
      break;
    }
    case PreTokenizerStep::Kind::kByteLevel: {
      LOWBIT_TRY_ASSIGN(step.add_prefix_space, bool_member(json, "add_prefix_space", true, where));
      LOWBIT_TRY_ASSIGN(step.use_regex, bool_member(json, "use_regex", true, where));
      break;
    }
    case PreTokenizerStep::Kind::kMetaspace: {
      LOWBIT_TRY_ASSIGN(step.replacement, string_member(json, "replacement", "\u2581", where));
      LOWBIT_TRY_ASSIGN(step.prepend, read_prepend(json, where));
      LOWBIT_TRY_ASSIGN(step.split, bool_member(json, "split", true, where));
      break;
    }
    case PreTokenizerStep::Kind::kWhitespaceSplit:
    case PreTokenizerStep::Kind::kWhitespace:
      break;
  }
  return step;
}

Json pattern_json(const std::string& pattern, bool is_regex) { return Json{{is_regex ? "Regex" : "String", pattern}}; }

Json sequence(const char* list, std::vector<Json> steps) {
  if (steps.empty()) return nullptr;
  if (steps.size() == 1) return std::move(steps[0]);
  return Json{{"type", "Sequence"}, {list, std::move(steps)}};
}

}  // namespace

Result<std::vector<NormalizerStep>> read_normalizer(const Json& json) {
  constexpr std::string_view kWhere = "tokenizer.json normalizer";
  std::vector<NormalizerStep> steps;
  std::size_t count = 0;
  const auto read = [&](const Json& j, const std::string& type) -> Status {
    NormalizerStep step;
    LOWBIT_TRY_ASSIGN(step.kind, by_name(kNormalizers, type, kWhere));
    if (step.kind == NormalizerStep::Kind::kPrepend) {
      LOWBIT_TRY_ASSIGN(step.content, string_member(j, "prepend", "", kWhere));
    } else if (step.kind == NormalizerStep::Kind::kReplace) {
      LOWBIT_TRY(read_pattern(j, kWhere, step.pattern, step.is_regex));
      LOWBIT_TRY_ASSIGN(step.content, string_member(j, "content", "", kWhere));
    } else if (step.kind == NormalizerStep::Kind::kStrip) {
      LOWBIT_TRY_ASSIGN(step.left, bool_member(j, "strip_left", true, kWhere));
      LOWBIT_TRY_ASSIGN(step.right, bool_member(j, "strip_right", true, kWhere));
    }
    steps.push_back(std::move(step));
    return {};
  };
  LOWBIT_TRY(for_each_step(json, "normalizers", kWhere, count, read));
  return steps;
}

Result<std::vector<PreTokenizerStep>> read_pre_tokenizer(const Json& json) {
  constexpr std::string_view kWhere = "tokenizer.json pre_tokenizer";
  std::vector<PreTokenizerStep> steps;
  std::size_t count = 0;
  const auto read = [&](const Json& j, const std::string& type) -> Status {
    LOWBIT_TRY_ASSIGN(PreTokenizerStep step, read_pre_tokenizer_step(j, type, kWhere));
    steps.push_back(std::move(step));
    return {};
  };
  LOWBIT_TRY(for_each_step(json, "pretokenizers", kWhere, count, read));
  return steps;
}

Result<std::vector<DecoderStep>> read_decoder(const Json& json) {
  constexpr std::string_view kWhere = "tokenizer.json decoder";
  std::vector<DecoderStep> steps;
  std::size_t count = 0;
  const auto read = [&](const Json& j, const std::string& type) -> Status {
    DecoderStep step;
    LOWBIT_TRY_ASSIGN(step.kind, by_name(kDecoders, type, kWhere));
    if (step.kind == DecoderStep::Kind::kReplace) {
      bool is_regex = false;
      LOWBIT_TRY(read_pattern(j, kWhere, step.pattern, is_regex));
      if (is_regex) return fail(ErrorCode::kUnsupported, "tokenizer.json decoder Replace", "a Regex", "a String");
      LOWBIT_TRY_ASSIGN(step.content, string_member(j, "content", "", kWhere));
    } else if (step.kind == DecoderStep::Kind::kStrip) {
      LOWBIT_TRY_ASSIGN(step.content, string_member(j, "content", " ", kWhere));
      LOWBIT_TRY_ASSIGN(step.start, count_member(j, "start", kWhere));
      LOWBIT_TRY_ASSIGN(step.stop, count_member(j, "stop", kWhere));
    } else if (step.kind == DecoderStep::Kind::kMetaspace) {
      LOWBIT_TRY_ASSIGN(step.pattern, string_member(j, "replacement", "\u2581", kWhere));
      LOWBIT_TRY_ASSIGN(step.prepend, read_prepend(j, kWhere));
    }
    steps.push_back(std::move(step));
    return {};
  };
  LOWBIT_TRY(for_each_step(json, "decoders", kWhere, count, read));
  return steps;
}

Json write_normalizer(const std::vector<NormalizerStep>& steps) {
  std::vector<Json> out;
  for (const NormalizerStep& s : steps) {
    Json j{{"type", name_of(kNormalizers, s.kind)}};
    if (s.kind == NormalizerStep::Kind::kPrepend) j["prepend"] = s.content;
    if (s.kind == NormalizerStep::Kind::kReplace) {
      j["pattern"] = pattern_json(s.pattern, s.is_regex);
      j["content"] = s.content;
    }
    if (s.kind == NormalizerStep::Kind::kStrip) {
      j["strip_left"] = s.left;
      j["strip_right"] = s.right;
    }
    out.push_back(std::move(j));
  }
  return sequence("normalizers", std::move(out));
}

Json write_pre_tokenizer(const std::vector<PreTokenizerStep>& steps) {
  using Kind = PreTokenizerStep::Kind;
  std::vector<Json> out;
  for (const PreTokenizerStep& s : steps) {
    Json j{{"type", name_of(kPreTokenizers, s.kind)}};
    if (s.kind == Kind::kSplit) {
      j["pattern"] = pattern_json(s.pattern, s.is_regex);
      j["invert"] = s.invert;
    }
    if (s.kind == Kind::kSplit || s.kind == Kind::kPunctuation) j["behavior"] = name_of(kBehaviors, s.behavior);
    if (s.kind == Kind::kDigits) j["individual_digits"] = s.individual_digits;
    if (s.kind == Kind::kByteLevel) {
      j["add_prefix_space"] = s.add_prefix_space;
      j["trim_offsets"] = true;
      j["use_regex"] = s.use_regex;
    }
    if (s.kind == Kind::kMetaspace) {
      j["replacement"] = s.replacement;
      j["prepend_scheme"] = name_of(kPrepends, s.prepend);
      j["split"] = s.split;
    }
    out.push_back(std::move(j));
  }
  return sequence("pretokenizers", std::move(out));
}

Json write_decoder(const std::vector<DecoderStep>& steps) {
  using Kind = DecoderStep::Kind;
  std::vector<Json> out;
  for (const DecoderStep& s : steps) {
    Json j{{"type", name_of(kDecoders, s.kind)}};
    if (s.kind == Kind::kByteLevel) {
      j["add_prefix_space"] = true;  // a decoder has no use for these three, but its reader wants them
      j["trim_offsets"] = true;
      j["use_regex"] = true;
    }
    if (s.kind == Kind::kReplace) {
      j["pattern"] = pattern_json(s.pattern, false);
      j["content"] = s.content;
    }
    if (s.kind == Kind::kStrip) {
      j["content"] = s.content;
      j["start"] = s.start;
      j["stop"] = s.stop;
    }
    if (s.kind == Kind::kMetaspace) {
      j["replacement"] = s.pattern;
      j["prepend_scheme"] = name_of(kPrepends, s.prepend);
      j["split"] = true;
    }
    out.push_back(std::move(j));
  }
  return sequence("decoders", std::move(out));
}

}  // namespace lowbit::text
