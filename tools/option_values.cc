#include "option_values.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "lowbit/bench.h"
#include "lowbit/model.h"
#include "lowbit/quantize.h"

namespace lowbit::cli {
namespace {

/// 1073741824 -> "1G"
std::string size_text(int64_t size) {
  const char* unit = "";
  for (const char* larger : {"K", "M", "G"}) {
    if (size == 0 || size % 1024 != 0) break;
    size /= 1024;
    unit = larger;
  }
  return fmt::format("{}{}", size, unit);
}

template <class T>
Option* add_count(Verb& app, const std::string& name, T& value, CountRange range, const std::string& help) {
  return app
      .add_option_function(
          name,
          [name, range, &value](const std::string& text) {
            const Result<int64_t> parsed = parse_size(text);
            if (!parsed || *parsed < range.low || *parsed > range.high)
              throw usage_error(
                  name, text, fmt::format("a whole number from {} to {}", size_text(range.low), size_text(range.high)),
                  "K, M and G may follow it: 4K is 4096");
            value = static_cast<T>(*parsed);
          },
          help)
      ->type_name("COUNT");
}

/// lowbit's name for a format of that many bits, found in what other programs call theirs (Q4_K_M, nf4, w4a16, INT4):
/// "did you mean `int4`? ", or "".
std::string format_suggestion(const std::string& text) {
  constexpr std::pair<std::string_view, const char*> kByBits[] = {
      {"1", "binary"}, {"2", "int2"}, {"3", "int3"}, {"4", "int4"}, {"8", "int8"}, {"16", "f16"}, {"32", "f32"}};
  constexpr const char* kDigits = "0123456789";
  const size_t first = text.find_first_of(kDigits);
  if (first == text.npos) return "";
  const std::string number = text.substr(first, text.find_first_not_of(kDigits, first) - first);
  for (const auto& [bits, name] : kByBits)
    if (number == bits) return fmt::format("did you mean `{}`? ", name);
  return "";
}

FormatId checked_format(const std::string& option, const std::string& text) {
  std::vector<std::string> names;
  for (const FormatInfo& info : formats()) {
    if (!info.canonical && info.kind != ValueKind::kDense) continue;
    if (info.name == text) return info.id;
    names.push_back(info.name);
  }
  throw usage_error(option, text, fmt::format("one of {}", fmt::join(names, " ")),
                    format_suggestion(text) + "`lowbit inspect --formats` explains them");
}

}  // namespace

UsageError usage_error(const std::string& option, const std::string& got, const std::string& wanted,
                       const std::string& hint) {
  return {{ErrorCode::kInvalidArgument, option, "\"" + got + "\"", wanted, hint}};
}

std::vector<int32_t> parse_ids(const std::string& option, const std::string& text) {
  std::vector<int32_t> ids;
  const char *at = text.data(), *end = at + text.size();
  while (at != end) {
    int32_t id = 0;
    const auto [rest, error] = std::from_chars(at, end, id);
    if (error != std::errc() || (rest != end && *rest != ',' && *rest != ' '))
      throw usage_error(option, text, "token ids between commas");
    ids.push_back(id);
    at = rest;
    for (bool comma = false; at != end && (*at == ' ' || (*at == ',' && !comma)); ++at) comma |= *at == ',';
  }
  return ids;
}

Result<int64_t> parse_size(const std::string& text) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  int shift = 0;
  if (error == std::errc() && rest + 1 == end) {
    const size_t unit = std::string_view("kKmMgG").find(*rest);
    shift = unit == std::string_view::npos ? -1 : 10 * (static_cast<int>(unit) / 2 + 1);
  } else if (error != std::errc() || rest != end) {
    shift = -1;
  }
  if (shift < 0 || value < 0 || value > std::numeric_limits<int64_t>::max() >> shift)
    return fail(ErrorCode::kInvalidArgument, "size", "\"" + text + "\"", "a whole number, with K, M or G if you like");
  return value << shift;
}

Option* add_count_option(Verb& app, const std::string& name, int64_t& value, CountRange range,
                         const std::string& help) {
  return add_count(app, name, value, range, help);
}
Option* add_count_option(Verb& app, const std::string& name, int& value, CountRange range, const std::string& help) {
  return add_count(app, name, value, range, help);
}

Option* add_seed_option(Verb& app, uint64_t& value) {
  return app
      .add_option_function(
          "--seed",
          [&value](const std::string& text) {
            const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
            if (error != std::errc() || rest != text.data() + text.size())
              throw usage_error("--seed", text, "a whole number from 0 to 2^64 - 1");
          },
          "seed of all random choices [0]")
      ->type_name("N");
}

Option* add_number_option(Verb& app, const std::string& name, float& value, float low, float high,
                          const std::string& help) {
  return app
      .add_option_function(
          name,
          [=, &value](const std::string& text) {
            float number = 0;
            const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
            if (error != std::errc() || rest != text.data() + text.size() || !(number >= low && number <= high))
              throw usage_error(name, text, fmt::format("a number from {} to {}", low, high));
            value = number;
          },
          value < low ? help : fmt::format("{} [{}]", help, value))  // below: an option that is off
      ->type_name("X");
}

Option* add_choice_option(Verb& app, const std::string& name, std::string& value, std::vector<std::string> choices,
                          const std::string& help) {
  const std::string list = fmt::format("{}", fmt::join(choices, ", "));
  return app
      .add_option_function(
          name,
          [=, &value](const std::string& text) {
            if (std::find(choices.begin(), choices.end(), text) == choices.end())
              throw usage_error(name, text, "one of " + list);
            value = text;
          },
          list + help)
      ->type_name("NAME");
}

Option* add_format_option(Verb& app, const std::string& name, FormatId& value, const std::string& help) {
  return app
      .add_option_function(
          name, [name, &value](const std::string& text) { value = checked_format(name, text); }, help)
      ->type_name("FORMAT");
}

Option* add_format_or_keep_option(Verb& app, const std::string& name, FormatId& value, bool& keep,
                                  const std::string& help) {
  return app
      .add_option_function(
          name,
          [name, &value, &keep](const std::string& text) {
            keep = text == "keep";
            if (!keep) value = checked_format(name, text);
          },
          help)
      ->type_name("FORMAT");
}

Option* add_group_option(Verb& app, GroupShape& value, const std::string& help) {
  return app
      .add_option_function(
          "--group",
          [&value](const std::string& text) {
            const Result<GroupShape> group = parse_group(text);
            if (!group) throw usage_error("--group", text, group.error().wanted);
            value = *group;
          },
          help)
      ->type_name("GROUP");
}

Option* add_activation_option(Verb& app, std::string& value, bool allow_auto) {
  if (!allow_auto)
    return add_choice_option(app, "--act", value, {"int8", "int8-row", "fp8", "f16", "bf16", "f32"},
                             fmt::format(": activations in int8 with a scale per 32 columns or per row, in E4M3 per "
                                         "128 columns, in 16 bits, or exact "
                                         "[{}]",
                                         value));
  return add_choice_option(
      app, "--act", value, {"auto", "int8", "int8-row", "int8-clip", "int4", "fp8", "f16", "bf16", "f32"},
      fmt::format(
          ": activations in int8 with a scale per 32 columns, per row, or per row and clipped, in 4 bits per "
          "32 columns, in E4M3 per 128 columns of fp8 layers, in 16 bits, or exact; auto: int8, per row for ternary "
          "and binary layers with one scale per row, per 128 columns for up to 4 bits in groups of 128 "
          "[{}]",
          value));
}

template <class Options>
void add_kv_options(Verb& app, Options& options) {
  app.add_option("--kv", options.kv,
                 "keys and values: f16, fp8, int8, int4, int3, int2, or kXvY with X and Y of 2, 3, 4 and 8 [f16]")
      ->type_name("NAME");
  add_count_option(app, "--kv-residual", options.kv_residual, {0, int64_t{1} << 30},
                   "newest positions that stay f16 beside quantized ones [128]");
  app.add_option("--kv-keep", options.kv_keep, "layers that stay f16: first, last, numbers from 0 on")
      ->type_name("NAMES");
  add_count_option(app, "--kv-refresh", options.kv_refresh, {1, int64_t{1} << 30},
                   "compute each N positions once more, reading each other as f16, before those behind them [never]");
  app.add_option("--kv-demote", options.kv_demote,
                 "keep what lies LENGTH positions or more behind with fewer bits, as 4096:int2")
      ->type_name("LENGTH:FORMAT");
}
template void add_kv_options(Verb&, ModelOptions&);
template void add_kv_options(Verb&, ModelBenchOptions&);

void add_exact_option(Verb& app, bool& exact) {
  app.add_flag("--exact", exact, "attention and 16-bit activations on a GPU with the CPU's bits: slower");
}

void add_gpu_layers_option(Verb& app, int64_t& layers) {
  add_count_option(app, "--gpu-layers", layers, {0, int64_t{1} << 30},
                   "the last N layers on the GPU, the rest on the CPU [all with --device cuda]");
}

Option* add_model_argument(Verb& app, std::string& value) {
  return app.add_option("MODEL", value, "checkpoint or Hugging Face directory, GGUF file, or `default`")
      ->required()
      ->type_name("");
}

}  // namespace lowbit::cli
