// lowbit gru search: the formats with the fewest bytes that keep an SQNR.

#include <memory>
#include <nlohmann/json.hpp>

#include "gru_files.h"
#include "lowbit/file.h"
#include "option_values.h"
#include "progress_display.h"
#include "text_table.h"

namespace lowbit::cli {
namespace {

using Json = nlohmann::json;

struct SearchArguments {
  std::string net, ranges, input, out, preset = "accurate", bits;
  float floor = 30;
  InputArguments options;
  GruLoadOptions load;
};

Status search_action(Console& console, const SearchArguments& a) {
  const auto net = load_network(console, a.net, a.load);
  if (!net) return tl::unexpected(net.error());
  const auto ranges = GruRanges::open(a.ranges);
  if (!ranges) return tl::unexpected(ranges.error());
  const auto sequence = read_sequence(a.input, a.options, net->batch_first);
  if (!sequence) return tl::unexpected(sequence.error());
  const auto start = chosen_config(a.preset, a.bits);
  if (!start) return tl::unexpected(start.error());
  const GruInput in = sequence->input();
  GruSearchOptions options;
  options.start = *start;
  options.inputs = std::span(&in, 1);
  options.floor = static_cast<double>(a.floor);
  const auto report = search_gru_bits(*net, *ranges, options);
  if (!report) return tl::unexpected(report.error());
  if (auto saved = write_text_file(a.out, gru_config_json(report->config) + "\n"); !saved) return saved;
  Json tried = Json::array();
  TextTable table({{"change"}, {"SQNR dB", Align::kRight}, {"bytes", Align::kRight}});
  for (const auto& t : report->tried) {
    tried.push_back({{"change", t.change}, {"sqnr_db", t.value}, {"bytes", t.bytes}, {"meets", t.meets}});
    table.add({t.change, fmt::format("{:.2f}", t.value), std::to_string(t.bytes)});
  }
  if (console.json())
    console.put_json({{"source", a.net},
                      {"target", a.out},
                      {"floor_db", a.floor},
                      {"sqnr_db", report->value},
                      {"bytes", report->bytes},
                      {"config", Json::parse(gru_config_json(report->config), nullptr, false)},
                      {"tried", tried}});
  console.print("{}\n{}: {} at {:.2f} dB, of {} tried\n", table.str(), a.out,
                bytes_text(static_cast<double>(report->bytes)), report->value, report->tried.size());
  return {};
}

}  // namespace

void add_gru_search(Verb& gru, Invocation& invocation) {
  auto a = std::make_shared<SearchArguments>();
  Verb* verb = gru.add_subcommand("search", "The fewest bytes that keep an SQNR: formats for `gru quantize --bits`");
  add_network(*verb, a->net, a->load);
  verb->add_option("--ranges", a->ranges, "what `gru calibrate` wrote")->required()->type_name("RANGES.json");
  add_input(*verb, a->input, a->options);
  add_number_option(*verb, "--floor", a->floor, 0.0f, 150.0f, "SQNR of the outputs in dB that must be kept");
  add_choice_option(*verb, "--preset", a->preset, gru_presets(), ": where to start [accurate]");
  verb->add_option("--bits", a->bits, "JSON of formats that replace the preset's; docs/gru.md")->type_name("FILE");
  verb->add_option("-o,--output", a->out, "formats to write")->required()->type_name("BITS.json");
  verb->callback(
      [a, &invocation] { invocation.action = [a](Console& console) { return search_action(console, *a); }; });
}

}  // namespace lowbit::cli
