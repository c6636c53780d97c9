// lowbit gru calibrate | quantize | run | verify | search: recurrent networks on integers only.

#include "lowbit/gru.h"

#include <chrono>
#include <memory>

#include "option_values.h"
#include "progress_display.h"
#include "text_table.h"
#include "verbs.h"

namespace lowbit::cli {
namespace {

using Json = nlohmann::json;

// ---- Input files

/// An .npy of [T, N, C] (or [T, C], one sequence) as a GruInput; keeps the numbers.
struct Sequence {
  GruArray array;
  std::vector<int64_t> lengths;
  std::vector<float> h0;
  bool batch_first = false;

  GruInput input() const {
    const auto& s = array.shape;
    GruInput in;
    in.batch_first = batch_first;
    in.steps = s.size() == 2 ? s[0] : batch_first ? s[1] : s[0];
    in.batch = s.size() == 2 ? 1 : batch_first ? s[0] : s[1];
    in.x = array.data;
    in.h0 = h0;
    in.lengths = lengths;
    return in;
  }
};

struct InputArguments {
  std::string h0, lengths;
  bool batch_first = false;
};

Result<Sequence> read_sequence(const std::string& path, const InputArguments& options) {
  auto array = read_float_array(path);
  if (!array) return tl::unexpected(array.error());
  if (array->shape.size() != 2 && array->shape.size() != 3)
    return fail(ErrorCode::kShapeMismatch, path, std::to_string(array->shape.size()) + " axes",
                "[steps, sequences, columns] or [steps, columns]");
  Sequence s;
  s.array = std::move(*array);
  s.batch_first = options.batch_first;
  if (!options.h0.empty()) {
    auto h0 = read_float_array(options.h0);
    if (!h0) return tl::unexpected(h0.error());
    s.h0 = std::move(h0->data);
  }
  if (!options.lengths.empty()) {
    const auto lengths = read_float_array(options.lengths);
    if (!lengths) return tl::unexpected(lengths.error());
    for (const float v : lengths->data) {
      if (!(v >= 0 && v < 1e9f && v == static_cast<float>(static_cast<int64_t>(v))))
        return fail(ErrorCode::kInvalidArgument, options.lengths, fmt::format("the length {}", v), "whole numbers");
      s.lengths.push_back(static_cast<int64_t>(v));
    }
  }
  return s;
}

struct DataArguments {
  std::vector<std::string> files;
  InputArguments input;
};

Result<std::vector<Sequence>> read_data(const DataArguments& data) {
  std::vector<Sequence> out;
  for (const std::string& path : data.files) {
    auto s = read_sequence(path, data.input);
    if (!s) return tl::unexpected(s.error());
    out.push_back(std::move(*s));
  }
  return out;
}

std::vector<GruInput> inputs_of(const std::vector<Sequence>& sequences) {
  std::vector<GruInput> out;
  for (const Sequence& s : sequences) out.push_back(s.input());
  return out;
}

// ---- Options

void add_network(CLI::App& verb, std::string& net, GruLoadOptions& options) {
  verb.add_option("NET", net, "npz, directory of npy, ONNX or safetensors")->required()->type_name("");
  verb.add_option("--select", options.select, "prefix of the arrays' names, or an ONNX node")->type_name("NAME");
}

void add_data(CLI::App& verb, DataArguments& data, bool required) {
  auto* option = verb.add_option("--data", data.files, "calibration input, [T, N, C] or [T, C]; may be repeated");
  option->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false)
      ->type_name("X.npy");
  if (required) option->required();
  verb.add_flag("--batch-first", data.input.batch_first, "arrays are [N, T, C]");
}

void add_input(CLI::App& verb, std::string& path, InputArguments& input) {
  verb.add_option("--input", path, "what to run on, [T, N, C] or [T, C]")->required()->type_name("X.npy");
  verb.add_option("--h0", input.h0, "initial states, per layer and direction [N, H]")->type_name("FILE");
  verb.add_option("--lengths", input.lengths, "[N] steps of each sequence")->type_name("FILE");
  verb.add_flag("--batch-first", input.batch_first, "arrays are [N, T, C]");
}

void add_formats(CLI::App& verb, std::string& preset, std::string& bits) {
  add_choice_option(verb, "--preset", preset, gru_presets(), ": formats of all tensors [seed8]");
  verb.add_option("--bits", bits, "JSON of formats that replace the preset's; docs/gru.md")->type_name("FILE");
}

Result<GruConfig> chosen_config(const std::string& preset, const std::string& bits) {
  auto config = gru_preset(preset);
  if (!config || bits.empty()) return config;
  return read_gru_config(bits, *config);
}

Status write_config(const std::string& path, const GruConfig& config) {
  const std::string text = gru_config_json(config) + "\n";
  std::FILE* file = std::fopen(path.c_str(), "wb");
  const bool written = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (file != nullptr && std::fclose(file) == 0 && written) return {};
  return fail(ErrorCode::kIo, path, "no file that can be written", "one");
}

// ---- calibrate

struct CalibrateArguments {
  std::string net, out, method = "minmax";
  float percentile = 0.9999f;
  GruLoadOptions load;
  DataArguments data;
};

Status calibrate_action(Console& console, const CalibrateArguments& a) {
  const auto net = load_gru(a.net, a.load);
  if (!net) return tl::unexpected(net.error());
  const auto method = parse_gru_method(a.method);
  if (!method) return tl::unexpected(method.error());
  const auto sequences = read_data(a.data);
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
                      {"bidirectional", net->bidirectional},
                      {"cells", cells}});
  console.print("{}\n{}: ranges by {} over {} steps\n", table.str(), a.out, a.method, ranges->steps_seen());
  return {};
}

void add_calibrate(CLI::App& gru, Invocation& invocation) {
  auto a = std::make_shared<CalibrateArguments>();
  CLI::App* verb = gru.add_subcommand("calibrate", "Ranges of every tensor of a float network over some inputs");
  add_network(*verb, a->net, a->load);
  add_data(*verb, a->data, true);
  add_choice_option(*verb, "--method", a->method, {"minmax", "ema", "percentile", "mse", "sqnr"}, "[minmax]");
  add_number_option(*verb, "--percentile", a->percentile, 0.5f, 1.0f, "for --method percentile [0.9999]");
  verb->add_option("-o,--output", a->out, "file to write")->required()->type_name("RANGES.json");
  verb->callback(
      [a, &invocation] { invocation.action = [a](Console& console) { return calibrate_action(console, *a); }; });
}

// ---- quantize

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
  const auto net = load_gru(a.net, a.load);
  if (!net) return tl::unexpected(net.error());
  auto config = chosen_config(a.preset, a.bits);
  if (!config) return tl::unexpected(config.error());
  auto ranges = a.encodings.empty() ? GruRanges::open(a.ranges) : read_encodings(a, *net, *config);
  if (!ranges) return tl::unexpected(ranges.error());
  const auto sequences = read_data(a.data);
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

void add_quantize(CLI::App& gru, Invocation& invocation) {
  auto a = std::make_shared<GruQuantizeArguments>();
  CLI::App* verb = gru.add_subcommand("quantize", "A float network and its ranges as an integer network");
  add_network(*verb, a->net, a->load);
  auto* ranges = verb->add_option("--ranges", a->ranges, "what `gru calibrate` wrote")->type_name("RANGES.json");
  auto* encodings = verb->add_option("--encodings", a->encodings, "AIMET encodings instead: ranges and formats");
  encodings->type_name("FILE")->excludes(ranges);
  add_formats(*verb, a->preset, a->bits);
  add_data(*verb, a->data, false);
  verb->add_option("-o,--output", a->out, "file to write")->required()->type_name("NET.lbgru");
  verb->callback([a, &invocation] {
    if (a->ranges.empty() && a->encodings.empty()) throw usage_error("--ranges", "nothing", "ranges or encodings");
    invocation.action = [a](Console& console) { return quantize_action(console, *a); };
  });
}

// ---- search

struct SearchArguments {
  std::string net, ranges, input, out, preset = "accurate", bits;
  float floor = 30;
  InputArguments options;
  GruLoadOptions load;
};

Status search_action(Console& console, const SearchArguments& a) {
  const auto net = load_gru(a.net, a.load);
  if (!net) return tl::unexpected(net.error());
  const auto ranges = GruRanges::open(a.ranges);
  if (!ranges) return tl::unexpected(ranges.error());
  const auto sequence = read_sequence(a.input, a.options);
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
  if (auto saved = write_config(a.out, report->config); !saved) return saved;
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

void add_search(CLI::App& gru, Invocation& invocation) {
  auto a = std::make_shared<SearchArguments>();
  CLI::App* verb =
      gru.add_subcommand("search", "The fewest bytes that keep an SQNR: formats for `gru quantize --bits`");
  add_network(*verb, a->net, a->load);
  verb->add_option("--ranges", a->ranges, "what `gru calibrate` wrote")->required()->type_name("RANGES.json");
  add_input(*verb, a->input, a->options);
  add_number_option(*verb, "--floor", a->floor, 0.0f, 150.0f, "SQNR of the outputs in dB that must be kept [30]");
  add_choice_option(*verb, "--preset", a->preset, gru_presets(), ": where to start [accurate]");
  verb->add_option("--bits", a->bits, "JSON of formats that replace the preset's; docs/gru.md")->type_name("FILE");
  verb->add_option("-o,--output", a->out, "formats to write")->required()->type_name("BITS.json");
  verb->callback(
      [a, &invocation] { invocation.action = [a](Console& console) { return search_action(console, *a); }; });
}

// ---- encodings

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

void add_encodings(CLI::App& gru, Invocation& invocation) {
  auto a = std::make_shared<EncodingsArguments>();
  CLI::App* verb = gru.add_subcommand("encodings", "An integer network's scales as AIMET encodings");
  verb->add_option("MODEL", a->model, "integer network of `gru quantize`")->required()->type_name("");
  add_choice_option(*verb, "--schema", a->format, {"1.0.0", "0.6.1"}, ": version of the file [1.0.0]");
  verb->add_option("-o,--output", a->out, "file to write")->required()->type_name("NET.encodings");
  verb->callback(
      [a, &invocation] { invocation.action = [a](Console& console) { return encodings_action(console, *a); }; });
}

// ---- run

struct GruRunArguments {
  std::string model, input, out, net, final_state;
  InputArguments options;
  GruLoadOptions load;
  bool in_float = false, trace = false;
};

/// Y.npy -> Y.trace.npy
std::string beside(const std::string& path, const std::string& what) {
  const size_t dot = path.ends_with(".npy") ? path.size() - 4 : path.size();
  return path.substr(0, dot) + "." + what + ".npy";
}

/// The float network: NET if given, else the integer network's weights in floats.
Result<GruNetwork> float_network(const GruModel& model, const std::string& net, const GruLoadOptions& load) {
  if (net.empty()) return model.dequantized();
  return load_gru(net, load);
}

Status run_action(Console& console, const GruRunArguments& a, const Compute& compute) {
  const auto model = GruModel::open(a.model);
  if (!model) return tl::unexpected(model.error());
  const auto sequence = read_sequence(a.input, a.options);
  if (!sequence) return tl::unexpected(sequence.error());
  const GruInput in = sequence->input();
  const auto start = std::chrono::steady_clock::now();
  Result<GruOutput> out = tl::unexpected(Error{});
  if (a.in_float) {
    const auto net = float_network(*model, a.net, a.load);
    if (!net) return tl::unexpected(net.error());
    out = run_gru(*net, in, a.trace);
  } else {
    GruModel::RunOptions options;
    options.isa = compute.isa;
    options.device = compute.device;
    options.trace = a.trace;
    out = model->run(in, options);
  }
  if (!out) return tl::unexpected(out.error());
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  auto shape = sequence->array.shape;
  shape.back() = model->output();
  if (auto saved = write_float_array(a.out, out->y, shape); !saved) return saved;
  if (!a.final_state.empty()) {
    const std::vector<int64_t> states = {static_cast<int64_t>(out->final_state.size()) / in.batch * in.batch};
    if (auto saved = write_float_array(a.final_state, out->final_state, states); !saved) return saved;
  }
  if (a.trace)
    if (auto saved = write_float_array(beside(a.out, "trace"), out->trace,
                                       std::vector<int64_t>{static_cast<int64_t>(out->trace.size())});
        !saved)
      return saved;
  const double per_step = in.steps > 0 ? 1e6 * seconds / static_cast<double>(in.steps) : 0;
  if (console.json())
    console.put_json({{"model", a.model},
                      {"output", a.out},
                      {"shape", shape},
                      {"float", a.in_float},
                      {"steps", in.steps},
                      {"batch", in.batch},
                      {"seconds", seconds},
                      {"us_per_step", per_step}});
  console.print("{}: {} steps of {} sequences, {:.2f} us a step\n", a.out, in.steps, in.batch, per_step);
  return {};
}

void add_model(CLI::App& verb, std::string& model) {
  verb.add_option("MODEL", model, "integer network of `gru quantize`")->required()->type_name("");
}

void add_float_source(CLI::App& verb, std::string& net, GruLoadOptions& load) {
  verb.add_option("--net", net, "the float network it was made of [its own weights in floats]")->type_name("NET");
  verb.add_option("--select", load.select, "prefix of NET's names, or an ONNX node")->type_name("NAME");
}

void add_run(CLI::App& gru, Invocation& invocation) {
  auto a = std::make_shared<GruRunArguments>();
  CLI::App* verb = gru.add_subcommand("run", "An integer network over sequences");
  add_model(*verb, a->model);
  add_input(*verb, a->input, a->options);
  verb->add_option("-o,--output", a->out, "outputs, [T, N, directions * H]")->required()->type_name("H.npy");
  verb->add_option("--final", a->final_state, "final states, per layer and direction [N, H]")->type_name("FILE");
  verb->add_flag("--float", a->in_float, "run in floats instead");
  add_float_source(*verb, a->net, a->load);
  verb->add_flag("--trace", a->trace, "u, r, n, hh_n of every cell and step, into H.trace.npy");
  verb->callback([a, &invocation] {
    invocation.action = [a, &invocation](Console& console) { return run_action(console, *a, invocation.compute); };
  });
}

// ---- verify

struct VerifyArguments {
  std::string model, input, net;
  InputArguments options;
  GruLoadOptions load;
};

Status verify_action(Console& console, const VerifyArguments& a) {
  const auto model = GruModel::open(a.model);
  if (!model) return tl::unexpected(model.error());
  const auto sequence = read_sequence(a.input, a.options);
  if (!sequence) return tl::unexpected(sequence.error());
  const auto net = float_network(*model, a.net, a.load);
  if (!net) return tl::unexpected(net.error());
  const auto report = verify_gru(*model, *net, sequence->input());
  if (!report) return tl::unexpected(report.error());
  Json targets = Json::array(), tensors = Json::array();
  TextTable table({{"cell"}, {"tensor"}, {"SQNR dB", Align::kRight}, {"largest error", Align::kRight}});
  for (const auto& t : report->targets)
    targets.push_back({{"name", t.name}, {"compared", t.compared}, {"different", t.different}});
  for (const auto& t : report->tensors) {
    tensors.push_back({{"cell", t.cell},
                       {"tensor", gru_tensor_name(t.tensor)},
                       {"sqnr_db", t.sqnr_db},
                       {"max_abs", t.max_abs},
                       {"by_step", t.by_step}});
    table.add({std::to_string(t.cell), gru_tensor_name(t.tensor), fmt::format("{:.2f}", t.sqnr_db),
               fmt::format("{:.5f}", t.max_abs)});
  }
  if (console.json())
    console.put_json({{"model", a.model},
                      {"ok", report->ok},
                      {"reference", "scalar"},
                      {"targets", targets},
                      {"tensors", tensors},
                      {"sqnr_by_step", report->sqnr_by_step}});
  console.print("{}\n", table.str());
  for (const auto& t : report->targets)
    console.print("{}: {} of {} codes differ from the scalar reference\n", t.name, t.different, t.compared);
  if (report->ok) return {};
  return fail(ErrorCode::kCorrupt, a.model, "other codes than the reference's", "the same bits",
              "this is a fault of lowbit: please report it");
}

void add_verify(CLI::App& gru, Invocation& invocation) {
  auto a = std::make_shared<VerifyArguments>();
  CLI::App* verb =
      gru.add_subcommand("verify", "Every instruction set bit for bit, and the error of every tensor against floats");
  add_model(*verb, a->model);
  add_input(*verb, a->input, a->options);
  add_float_source(*verb, a->net, a->load);
  verb->callback(
      [a, &invocation] { invocation.action = [a](Console& console) { return verify_action(console, *a); }; });
}

}  // namespace

void add_gru_verb(CLI::App& app, Invocation& invocation) {
  CLI::App* gru = app.add_subcommand("gru", "Recurrent networks on integers only: calibrate, quantize, run, verify");
  gru->set_help_flag("-h,--help", "this text");
  gru->require_subcommand(1);
  add_calibrate(*gru, invocation);
  add_quantize(*gru, invocation);
  add_search(*gru, invocation);
  add_encodings(*gru, invocation);
  add_run(*gru, invocation);
  add_verify(*gru, invocation);
}

}  // namespace lowbit::cli
