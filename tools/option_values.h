#pragma once
// Options whose values are checked where they are read: a wrong one is a UsageError that names the
// option.

#include <cstdint>
#include <string>
#include <vector>

#include "command_line.h"
#include "console.h"
#include "lowbit/format.h"
#include "lowbit/quantize.h"

namespace lowbit::cli {

UsageError usage_error(const std::string& option, const std::string& got, const std::string& wanted,
                       const std::string& hint = "");

struct CountRange {
  int64_t low = 1, high = int64_t{1} << 40;
};

/// "12", "4K", "512M", "1G" (K = 1024).
Result<int64_t> parse_size(const std::string& text);

Option* add_count_option(Verb& app, const std::string& name, int64_t& value, CountRange range, const std::string& help);
Option* add_count_option(Verb& app, const std::string& name, int& value, CountRange range, const std::string& help);
Option* add_seed_option(Verb& app, uint64_t& value);
/// A finite number from low to high.
Option* add_number_option(Verb& app, const std::string& name, float& value, float low, float high,
                          const std::string& help);
/// The help text starts with the choices.
Option* add_choice_option(Verb& app, const std::string& name, std::string& value, std::vector<std::string> choices,
                          const std::string& help);
/// Only formats a checkpoint can hold.
Option* add_format_option(Verb& app, const std::string& name, FormatId& value, const std::string& help);
/// A format option that also takes "keep".
Option* add_format_or_keep_option(Verb& app, const std::string& name, FormatId& value, bool& keep,
                                  const std::string& help);
/// QuantizeSpec::group.
Option* add_group_option(Verb& app, GroupShape& value, const std::string& help);
/// --act
Option* add_activation_option(Verb& app, std::string& value, bool allow_auto = true);
/// --kv, --kv-residual, --kv-keep, --kv-refresh and --kv-demote, of ModelOptions or ModelBenchOptions.
template <class Options>
void add_kv_options(Verb& app, Options& options);
/// --exact
void add_exact_option(Verb& app, bool& exact);
/// --gpu-layers.
void add_gpu_layers_option(Verb& app, int64_t& layers);
/// "1,2,3", for an option of that name.
std::vector<int32_t> parse_ids(const std::string& option, const std::string& text);
/// The positional MODEL.
Option* add_model_argument(Verb& app, std::string& value);

}  // namespace lowbit::cli
