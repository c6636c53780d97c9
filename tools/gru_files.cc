#include "gru_files.h"

#include "option_values.h"
#include "text_table.h"

namespace lowbit::cli {

Result<Sequence> read_sequence(const std::string& path, const InputArguments& options, bool batch_first) {
  auto array = read_float_array(path);
  if (!array) return tl::unexpected(array.error());
  if (array->shape.size() != 2 && array->shape.size() != 3)
    return fail(ErrorCode::kShapeMismatch, path, std::to_string(array->shape.size()) + " axes",
                "[steps, sequences, columns] or [steps, columns]");
  Sequence s;
  s.array = std::move(*array);
  s.batch_first = options.batch_first || batch_first;
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

Result<std::vector<Sequence>> read_data(const DataArguments& data, bool batch_first) {
  std::vector<Sequence> out;
  for (const std::string& path : data.files) {
    auto s = read_sequence(path, data.input, batch_first);
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

Result<GruNetwork> load_network(Console& console, const std::string& net, const GruLoadOptions& options) {
  auto network = load_gru(net, options);
  if (!network || network->left_out.empty()) return network;
  std::string names;
  for (const std::string& name : network->left_out) names += (names.empty() ? "" : ", ") + name;
  console.note("{}: only the GRU is read; left out: {}", net, printable(names));
  return network;
}

void add_network(Verb& verb, std::string& net, GruLoadOptions& options) {
  verb.add_option("NET", net, "npz, directory of npy, ONNX or safetensors")->required()->type_name("");
  verb.add_option("--select", options.select, "prefix of the arrays' names, or an ONNX node")->type_name("NAME");
}

void add_data(Verb& verb, DataArguments& data, bool required) {
  auto* option = verb.add_option("--data", data.files, "calibration input, [T, N, C] or [T, C]; may be repeated");
  option->repeatable()->type_name("X.npy");
  if (required) option->required();
  verb.add_option("--h0", data.input.h0, "initial states of every input, per layer and direction [N, H]")
      ->type_name("FILE");
  verb.add_flag("--batch-first", data.input.batch_first, "arrays are [N, T, C]");
}

void add_input(Verb& verb, std::string& path, InputArguments& input) {
  verb.add_option("--input", path, "what to run on, [T, N, C] or [T, C]")->required()->type_name("X.npy");
  verb.add_option("--h0", input.h0, "initial states, per layer and direction [N, H]")->type_name("FILE");
  verb.add_option("--lengths", input.lengths, "[N] steps of each sequence")->type_name("FILE");
  verb.add_flag("--batch-first", input.batch_first, "arrays are [N, T, C]");
}

void add_model(Verb& verb, std::string& model) {
  verb.add_option("MODEL", model, "integer network of `gru quantize`")->required()->type_name("");
}

void add_formats(Verb& verb, std::string& preset, std::string& bits) {
  add_choice_option(verb, "--preset", preset, gru_presets(), ": formats of all tensors [seed8]");
  verb.add_option("--bits", bits, "JSON of formats that replace the preset's; docs/gru.md")->type_name("FILE");
}

Result<GruConfig> chosen_config(const std::string& preset, const std::string& bits) {
  auto config = gru_preset(preset);
  if (!config || bits.empty()) return config;
  return read_gru_config(bits, *config);
}

}  // namespace lowbit::cli
