// lowbit gru tune: scales chosen by what they do to the outputs.

#include <memory>
#include <nlohmann/json.hpp>

#include "gru_files.h"
#include "option_values.h"
#include "progress_display.h"
#include "text_table.h"

namespace lowbit::cli {
namespace {

using Json = nlohmann::json;

struct TuneArguments {
  std::string net, ranges, out, preset = "seed8", bits;
  int passes = 3;
  GruLoadOptions load;
  DataArguments data;
};

std::string scale_text(const GruScale& s) { return fmt::format("{}, {}", s.shift, s.zp); }

Status tune_action(Console& console, const TuneArguments& a) {
  const auto net = load_network(console, a.net, a.load);
  if (!net) return tl::unexpected(net.error());
  const auto ranges = GruRanges::open(a.ranges);
  if (!ranges) return tl::unexpected(ranges.error());
  const auto sequences = read_data(a.data, net->batch_first);
  if (!sequences) return tl::unexpected(sequences.error());
  const auto config = chosen_config(a.preset, a.bits);
  if (!config) return tl::unexpected(config.error());
  const auto inputs = inputs_of(*sequences);
  GruTuneOptions options;
  options.config = *config;
  options.inputs = inputs;
  options.passes = a.passes;
  const auto report = tune_gru_ranges(*net, *ranges, options);
  if (!report) return tl::unexpected(report.error());
  if (auto saved = report->ranges.save(a.out); !saved) return saved;
  Json changes = Json::array();
  TextTable table({{"cell"}, {"tensor"}, {"shift, zero point"}, {"becomes"}, {"SQNR dB", Align::kRight}});
  for (const auto& c : report->changes) {
    const auto pair = [](const GruScale& s) { return Json{{"shift", s.shift}, {"zero_point", s.zp}}; };
    changes.push_back({{"cell", c.cell},
                       {"tensor", gru_tensor_name(c.tensor)},
                       {"before", pair(c.before)},
                       {"after", pair(c.after)},
                       {"sqnr_db", c.value}});
    table.add({std::to_string(c.cell), gru_tensor_name(c.tensor), scale_text(c.before), scale_text(c.after),
               fmt::format("{:.2f}", c.value)});
  }
  if (console.json())
    console.put_json({{"source", a.ranges},
                      {"target", a.out},
                      {"preset", a.preset},
                      {"start_sqnr_db", report->start},
                      {"sqnr_db", report->value},
                      {"tried", report->tried},
                      {"changes", changes}});
  console.print("{}\n{}: {:.2f} dB instead of {:.2f}, {} scales tried\n", table.str(), a.out, report->value,
                report->start, report->tried);
  return {};
}

}  // namespace

void add_gru_tune(Verb& gru, Invocation& invocation) {
  auto a = std::make_shared<TuneArguments>();
  Verb* verb = gru.add_subcommand("tune", "Scales by what they do to the outputs: better ranges for `gru quantize`");
  add_network(*verb, a->net, a->load);
  verb->add_option("--ranges", a->ranges, "what `gru calibrate` wrote")->required()->type_name("RANGES.json");
  add_data(*verb, a->data, true);
  add_formats(*verb, a->preset, a->bits);
  add_count_option(*verb, "--passes", a->passes, {1, 100}, "over all tensors, at most [3]");
  verb->add_option("-o,--output", a->out, "ranges to write")->required()->type_name("RANGES.json");
  verb->callback([a, &invocation] { invocation.action = [a](Console& console) { return tune_action(console, *a); }; });
}

}  // namespace lowbit::cli
