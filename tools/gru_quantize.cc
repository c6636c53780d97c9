// lowbit gru calibrate | quantize | encodings: float networks to integer ones.

#include <memory>
#include <nlohmann/json.hpp>

#include "gru_files.h"
#include "option_values.h"
#include "progress_display.h"
#include "text_table.h"

namespace lowbit::cli {
namespace {

using Json = nlohmann::json;

struct CalibrateArguments {
  std::string net, out, method = "minmax";
  float percentile = 0.9999f;
  GruLoadOptions load;
  DataArguments data;
};

Status calibrate_action(Console& console, const CalibrateArguments& a) {
  const auto net = load_network(console, a.net, a.load);
  if (!net) return tl::unexpected(net.error());
  const auto method = parse_gru_method(a.method);
  if (!method) return tl::unexpected(method.error());
  const auto sequences = read_data(a.data, net->batch_first);
  if (!sequences) return tl::unexpected(sequences.error());
  const auto inputs = inputs_of(*sequences);
  const auto ranges = GruRanges::measure(*net, inputs, {*method, static_cast<double>(a.percentile)});
  if (!ranges) return tl::unexpected(ranges.error());
  if (auto saved = ranges->save(a.out); !saved) return saved;
  Json cells = Json::array();
  TextTable table({{"cell"}, {"tensor"}, {"min", Align::kRight}, {"max", Align::kRight}});
  for (int c = 0; c < ranges->cells(); ++c) {
    Json cell = Json::object();
    for (int t = 0; t < kGruTensors; ++t) {
      const auto tensor = static_cast<GruTensor>(t);
      const auto [low, high] = ranges->range(c, tensor);
      cell[gru_tensor_name(tensor)] = {low, high};
      table.add({std::to_string(c), gru_tensor_name(tensor), fmt::format("{:.4f}", low), fmt::format("{:.4f}", high)});
    }
    cells.push_back(cell);
  }
  if (console.json())
    console.put_json({{"network", a.net},
                      {"target", a.out},
                      {"method", a.method},
                      {"steps", ranges->steps_seen()},
                      {"layers", net->layers()},
                      {"left_out", net->left_out},
                      {"bidirectional", net->bidirectional},
                      {"cells", cells}});
  console.print("{}\n{}: ranges by {} over {} steps\n", table.str(), a.out, a.method, ranges->steps_seen());
  return {};
}

struct GruQuantizeArguments {
  std::string net, ranges, encodings, out, preset = "seed8", bits;
  GruLoadOptions load;
  DataArguments data;
};

Json scale_json(const GruScale& s) { return {{"shift", s.shift}, {"zero_point", s.zp}}; }

Json report_json(const GruModel& model) {
  Json cells = Json::array();
  for (const GruCellReport& r : model.report()) {
    Json scales = Json::object(), tables = Json::object();
    for (int t = 0; t < kGruTensors; ++t)
      scales[gru_tensor_name(static_cast<GruTensor>(t))] = scale_json(r.scales[static_cast<size_t>(t)]);
    const char* names[] = {"u", "r", "n"};
    for (size_t i = 0; i < 3; ++i)
      tables[names[i]] = {{"max_error", r.tables[i].max}, {"mean_error", r.tables[i].mean}};
    cells.push_back({{"scales", scales},
                     {"weight_shift", r.w_shift},
                     {"recurrent_shift", r.r_shift},
                     {"tables", tables},
                     {"widths",
                      {{"input_product", r.widths.input_product},
                       {"state_product", r.widths.state_product},
                       {"gate_sum", r.widths.gate_sum},
                       {"candidate", r.widths.candidate},
                       {"state", r.widths.state},
                       {"table", r.widths.table}}},
                     {"weight_bytes", r.weight_bytes},
                     {"bytes", r.bytes}});
  }
  return cells;
}

/// Ranges of an encodings file; its formats go into `config`.
Result<GruRanges> read_encodings(const GruQuantizeArguments& a, const GruNetwork& net, GruConfig& config) {
  auto read = read_gru_encodings(a.encodings, net, config);
  if (!read) return tl::unexpected(read.error());
  config = read->config;
  return std::move(read->ranges);
}

Status quantize_action(Console& console, const GruQuantizeArguments& a) {
  const auto net = load_network(console, a.net, a.load);
  if (!net) return tl::unexpected(net.error());
  auto config = chosen_config(a.preset, a.bits);
  if (!config) return tl::unexpected(config.error());
  auto ranges = a.encodings.empty() ? GruRanges::open(a.ranges) : read_encodings(a, *net, *config);
  if (!ranges) return tl::unexpected(ranges.error());
  const auto sequences = read_data(a.data, net->batch_first);
  if (!sequences) return tl::unexpected(sequences.error());
  const auto inputs = inputs_of(*sequences);
  const auto model = GruModel::quantize(*net, *ranges, *config, {inputs});
  if (!model) return tl::unexpected(model.error());
  if (auto saved = model->save(a.out); !saved) return saved;
  const double floats = 4 * static_cast<double>(model->parameters());
  if (console.json())
    console.put_json({{"source", a.net},
                      {"target", a.out},
                      {"preset", a.preset},
                      {"config", Json::parse(gru_config_json(*config), nullptr, false)},
                      {"parameters", model->parameters()},
                      {"bytes", model->bytes()},
                      {"float_bytes", floats},
                      {"ratio", static_cast<double>(model->bytes()) / floats},
                      {"cells", report_json(*model)}});
  TextTable table(
      {{"cell"}, {"tensor"}, {"bits", Align::kRight}, {"shift", Align::kRight}, {"zero point", Align::kRight}});
  const auto report = model->report();
  for (size_t c = 0; c < report.size(); ++c)
    for (int t = 0; t < kGruTensors; ++t) {
      const GruFormat& f = config->tensors[static_cast<size_t>(t)];
      const GruScale& s = report[c].scales[static_cast<size_t>(t)];
      table.add({std::to_string(c), gru_tensor_name(static_cast<GruTensor>(t)),
                 fmt::format("{}{}", f.is_unsigned ? "u" : "", f.bits), std::to_string(s.shift), std::to_string(s.zp)});
    }
  console.print("{}\n{}: {}, {:.3f} of the float network\n", table.str(), a.out,
                bytes_text(static_cast<double>(model->bytes())), static_cast<double>(model->bytes()) / floats);
  return {};
}

struct EncodingsArguments {
  std::string model, out, format = "1.0.0";
};

Status encodings_action(Console& console, const EncodingsArguments& a) {
  const auto model = GruModel::open(a.model);
  if (!model) return tl::unexpected(model.error());
  if (auto saved = model->save_encodings(a.out, a.format == "1.0.0"); !saved) return saved;
  if (console.json()) console.put_json({{"source", a.model}, {"target", a.out}, {"version", a.format}});
  console.print("{}: AIMET encodings {}\n", a.out, a.format);
  return {};
}

}  // namespace

void add_gru_calibrate(Verb& gru, Invocation& invocation) {
  auto a = std::make_shared<CalibrateArguments>();
  Verb* verb = gru.add_subcommand("calibrate", "Ranges of every tensor of a float network over some inputs");
  add_network(*verb, a->net, a->load);
  add_data(*verb, a->data, true);
  add_choice_option(*verb, "--method", a->method, {"minmax", "ema", "percentile", "mse", "sqnr"}, " [minmax]");
  add_number_option(*verb, "--percentile", a->percentile, 0.5f, 1.0f, "for --method percentile");
  verb->add_option("-o,--output", a->out, "file to write")->required()->type_name("RANGES.json");
  verb->callback(
      [a, &invocation] { invocation.action = [a](Console& console) { return calibrate_action(console, *a); }; });
}

void add_gru_quantize(Verb& gru, Invocation& invocation) {
  auto a = std::make_shared<GruQuantizeArguments>();
  Verb* verb = gru.add_subcommand("quantize", "A float network and its ranges as an integer network");
  add_network(*verb, a->net, a->load);
  auto* ranges = verb->add_option("--ranges", a->ranges, "what `gru calibrate` wrote")->type_name("RANGES.json");
  auto* encodings = verb->add_option("--encodings", a->encodings, "AIMET encodings instead: ranges and formats");
  encodings->type_name("FILE")->excludes(ranges);
  add_formats(*verb, a->preset, a->bits);
  add_data(*verb, a->data, false);
  verb->add_option("-o,--output", a->out, "file to write")->required()->type_name("NET.lbgru");
  verb->callback([a, &invocation] {
    if (a->ranges.empty() && a->encodings.empty())
      throw UsageError{{ErrorCode::kInvalidArgument, "lowbit gru quantize", "no ranges",
                        "--ranges RANGES.json or --encodings AIMET.json", "`lowbit gru calibrate` makes ranges"}};
    invocation.action = [a](Console& console) { return quantize_action(console, *a); };
  });
}

void add_gru_encodings(Verb& gru, Invocation& invocation) {
  auto a = std::make_shared<EncodingsArguments>();
  Verb* verb = gru.add_subcommand("encodings", "An integer network's scales as AIMET encodings");
  verb->add_option("MODEL", a->model, "integer network of `gru quantize`")->required()->type_name("");
  add_choice_option(*verb, "--schema", a->format, {"1.0.0", "0.6.1"}, ": version of the file [1.0.0]");
  verb->add_option("-o,--output", a->out, "file to write")->required()->type_name("NET.encodings");
  verb->callback(
      [a, &invocation] { invocation.action = [a](Console& console) { return encodings_action(console, *a); }; });
}

}  // namespace lowbit::cli
