// Texts that people write and programs hand on. The first byte says which: a recipe, or the configuration, ranges or
// AIMET encodings of a recurrent network, or questions.

#include "calibrate/recipe.h"

#include "fuzz_file.h"
#include "fuzz_limits.h"
#include "lowbit/evaluate.h"
#include "lowbit/gru.h"

namespace {

using lowbit::fuzz::require;

template <class T>
bool sound(const lowbit::Result<T>& result) {
  if (!result) require(!result.error().where.empty(), "an error without a place");
  return result.has_value();
}

void read_recipe(const std::string& path) {
  lowbit::QuantizeOptions options;
  options.recipe_file = path;
  const auto recipe = lowbit::Recipe::make(options);
  if (!sound(recipe)) return;
  for (const char* name : {"model.layers.0.self_attn.q_proj.weight", "model.layers.11.mlp.down_proj.weight", "x"})
    for (const auto role : {lowbit::LayerRole::kLinear, lowbit::LayerRole::kEmbedding, lowbit::LayerRole::kHead}) {
      const auto spec = recipe->spec_for(name, role);
      if (sound(spec) && !spec->keep) (void)lowbit::scaling_of(*spec);
    }
}

void read_config(const std::string& path) {
  const auto config = lowbit::read_gru_config(path, *lowbit::gru_preset("seed8"));
  if (!sound(config)) return;
  const std::string text = lowbit::gru_config_json(*config);
  const lowbit::fuzz::FuzzFile again(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
  const auto same = lowbit::read_gru_config(again.path(), *lowbit::gru_preset("w8a16"));
  require(same && lowbit::gru_config_json(*same) == text, "a configuration that does not survive writing");
}

const lowbit::GruNetwork& network() {
  static const lowbit::GruNetwork made = [] {
    lowbit::GruNetwork n;
    n.cells.push_back({2, 1, std::vector<float>(6, 0.5f), std::vector<float>(3, -0.25f), {0, 1, 2}, {1, 0, 0}});
    return n;
  }();
  return made;
}

/// One preset at a time: its tables cost an instrumented build two seconds.
void quantize_by_ranges(const std::string& path, const char* preset) {
  const auto ranges = lowbit::GruRanges::open(path);
  if (sound(ranges)) sound(lowbit::GruModel::quantize(network(), *ranges, *lowbit::gru_preset(preset)));
}
void read_ranges(const std::string& path) { quantize_by_ranges(path, "seed8"); }
void read_accurate_ranges(const std::string& path) { quantize_by_ranges(path, "accurate"); }

void read_encodings(const std::string& path) {
  const auto encodings = lowbit::read_gru_encodings(path, network(), *lowbit::gru_preset("seed8"));
  if (sound(encodings)) sound(lowbit::GruModel::quantize(network(), encodings->ranges, encodings->config));
}

void read_questions(const std::string& path) {
  const auto questions = lowbit::read_choice_questions(path);
  if (!sound(questions)) return;
  for (const lowbit::ChoiceQuestion& q : *questions)
    require(!q.choices.empty() && q.gold >= 0 && q.gold < static_cast<int64_t>(q.choices.size()), "an answer outside");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const lowbit::fuzz::TimeLimit limit;
  if (size == 0) return 0;
  const lowbit::fuzz::FuzzFile file(data + 1, size - 1);
  constexpr void (*kReaders[])(const std::string&) = {read_recipe,    read_config,    read_ranges,
                                                      read_encodings, read_questions, read_accurate_ranges};
  kReaders[(data[0] - '0') % 6u](file.path());
  return 0;
}
