// lowbit gru run | verify: integer networks over sequences.

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>

#include "gru_files.h"
#include "option_values.h"
#include "text_table.h"

namespace lowbit::cli {
namespace {

using Json = nlohmann::json;

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

/// [cells, rows, columns * H], as PyTorch stacks layers and directions; one axis when the cells' H differ.
std::vector<int64_t> stacked_shape(const GruModel& model, int64_t rows, int64_t columns, size_t numbers) {
  const auto cells = model.report();
  const size_t shifts = cells.front().w_shift.size();  // 3H
  if (!std::ranges::all_of(cells, [&](const GruCellReport& cell) { return cell.w_shift.size() == shifts; }))
    return {static_cast<int64_t>(numbers)};
  return {static_cast<int64_t>(cells.size()), rows, columns * static_cast<int64_t>(shifts / 3)};
}

Status run_action(Console& console, const GruRunArguments& a, const Compute& compute) {
  const auto model = GruModel::open(a.model);
  if (!model) return tl::unexpected(model.error());
  const auto sequence = read_sequence(a.input, a.options, model->batch_first());
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
    const auto states = stacked_shape(*model, in.batch, 1, out->final_state.size());
    if (auto saved = write_float_array(a.final_state, out->final_state, states); !saved) return saved;
  }
  if (a.trace) {
    const auto gates = stacked_shape(*model, in.steps * in.batch, 4, out->trace.size());
    if (auto saved = write_float_array(beside(a.out, "trace"), out->trace, gates); !saved) return saved;
  }
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

void add_float_source(Verb& verb, std::string& net, GruLoadOptions& load) {
  verb.add_option("--net", net, "the float network it was made of [its own weights in floats]")->type_name("NET");
  verb.add_option("--select", load.select, "prefix of NET's names, or an ONNX node")->type_name("NAME");
}

struct VerifyArguments {
  std::string model, input, net;
  InputArguments options;
  GruLoadOptions load;
};

Status verify_action(Console& console, const VerifyArguments& a) {
  const auto model = GruModel::open(a.model);
  if (!model) return tl::unexpected(model.error());
  const auto sequence = read_sequence(a.input, a.options, model->batch_first());
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

}  // namespace

void add_gru_run(Verb& gru, Invocation& invocation) {
  auto a = std::make_shared<GruRunArguments>();
  Verb* verb = gru.add_subcommand("run", "An integer network over sequences");
  add_model(*verb, a->model);
  add_input(*verb, a->input, a->options);
  verb->add_option("-o,--output", a->out, "outputs, [T, N, directions * H]")->required()->type_name("H.npy");
  verb->add_option("--final", a->final_state, "final states, [layers and directions, N, H]")->type_name("FILE");
  verb->add_flag("--float", a->in_float, "run in floats instead");
  add_float_source(*verb, a->net, a->load);
  verb->add_flag("--trace", a->trace, "u, r, n, hh_n of every step into H.trace.npy, [layers and directions, T N, 4H]");
  verb->callback([a, &invocation] {
    invocation.action = [a, &invocation](Console& console) { return run_action(console, *a, invocation.compute); };
  });
}

void add_gru_verify(Verb& gru, Invocation& invocation) {
  auto a = std::make_shared<VerifyArguments>();
  Verb* verb =
      gru.add_subcommand("verify", "Every instruction set bit for bit, and the error of every tensor against floats");
  add_model(*verb, a->model);
  add_input(*verb, a->input, a->options);
  add_float_source(*verb, a->net, a->load);
  verb->callback(
      [a, &invocation] { invocation.action = [a](Console& console) { return verify_action(console, *a); }; });
}

}  // namespace lowbit::cli
