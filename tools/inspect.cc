// lowbit inspect: what is in a model, which formats exist, which kernels run.

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "lowbit/format_advice.h"
#include "lowbit/quantize.h"
#include "option_values.h"
#include "text_table.h"
#include "verbs.h"

namespace lowbit::cli {
namespace {

struct InspectArguments {
  std::string model, activation = "auto", drawn;
  bool formats = false, all = false, kernels = false;
};

const char* kind_name(ValueKind kind) {
  switch (kind) {
    case ValueKind::kDense:
      return "float";
    case ValueKind::kInteger:
      return "integer";
    case ValueKind::kFloat:
      return "e4m3";
    case ValueKind::kTable:
      return "table";
  }
  return "";
}

/// The formats that people choose, and when; the most bits first.
std::string chosen_formats() {
  std::vector<const FormatInfo*> chosen;
  for (const FormatInfo& info : formats())
    if (*format_advice(info.id) != '\0') chosen.push_back(&info);
  std::ranges::stable_sort(
      chosen, [](const FormatInfo* a, const FormatInfo* b) { return a->bits_per_code() > b->bits_per_code(); });
  TextTable table({{"format", Align::kLeft, 14}, {"bits/code", Align::kRight}, {"when", Align::kLeft, 60}});
  for (const FormatInfo* const info : chosen)
    table.add({info->name, fmt::format("{:.3g}", info->bits_per_code()), format_advice(info->id)});
  return table.str();
}

/// All of this build, with what those are for that nobody chooses.
std::string all_formats() {
  TextTable table({{"format", Align::kLeft, 20},
                   {"values", Align::kLeft, 34},
                   {"kind"},
                   {"bits/code", Align::kRight},
                   {"packed run"},
                   {"in files"}});
  for (const FormatInfo& info : formats())
    table.add({info.name, info.alphabet, kind_name(info.kind), fmt::format("{:.3g}", info.bits_per_code()),
               fmt::format("{} in {} B", info.pack_elems, info.pack_bytes),
               !info.canonical                   ? "no: kernels only"
               : *format_advice(info.id) == '\0' ? "when imported"
                                                 : "yes"});
  return table.str();
}

/// JSON always has all of them.
void inspect_formats(Console& console, bool all, nlohmann::json& json) {
  json["formats"] = nlohmann::json::array();
  for (const FormatInfo& info : formats())
    json["formats"].push_back(
        {{"name", info.name},
         {"values", info.alphabet},
         {"kind", kind_name(info.kind)},
         {"bits_per_code", info.bits_per_code()},
         {"canonical", info.canonical},
         {"when", *format_advice(info.id) == '\0' ? nlohmann::json() : nlohmann::json(format_advice(info.id))}});
  console.print("{}\n`lowbit inspect --format NAME` draws one{}.\n", all ? all_formats() : chosen_formats(),
                all ? "" : ", `--formats --all` lists more");
}

void draw_format(Console& console, const std::string& name, nlohmann::json& json) {
  const auto format = parse_format(name);  // checked when the option was read
  const std::string drawing = draw_layout(*format);
  json["format"] = name;
  json["layout"] = drawing;
  console.print("{}", drawing);
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string out;
  for (const int64_t extent : shape) out += (out.empty() ? "" : " x ") + std::to_string(extent);
  return out.empty() ? "scalar" : out;
}

Status inspect_tensors(Console& console, const std::string& path, nlohmann::json& json) {
  const auto report = inspect_model(path);
  if (!report) return tl::unexpected(report.error());
  TextTable table({{"tensor", Align::kLeft, 46},
                   {"shape", Align::kRight, 16},
                   {"stored as", Align::kLeft, 14},
                   {"size", Align::kRight},
                   {"bits", Align::kRight}});
  json["tensors"] = nlohmann::json::array();
  for (const TensorReport& tensor : report->tensors) {
    table.add({tensor.name, shape_text(tensor.shape), tensor.stored_as, bytes_text(static_cast<double>(tensor.bytes)),
               fmt::format("{:.3f}", tensor.bits_per_weight)});
    json["tensors"].push_back({{"name", tensor.name},
                               {"shape", tensor.shape},
                               {"stored_as", tensor.stored_as},
                               {"bytes", tensor.bytes},
                               {"bits_per_weight", tensor.bits_per_weight}});
  }
  json["kind"] = report->kind;
  json["architecture"] = report->architecture;
  json["parameters"] = report->parameters;
  json["bits_per_weight"] = report->bits_per_weight;
  json["bits_per_weight_total"] = report->bits_per_weight_total;
  json["bytes"] = report->bytes;
  console.print("{}: {}, {}\n\n{}\n", path, report->kind, printable(report->architecture), table.str());
  console.print("{:.2f} M parameters in {} tensors, {}\n", static_cast<double>(report->parameters) / 1e6,
                report->tensors.size(), bytes_text(static_cast<double>(report->bytes)));
  console.print("{:.3f} bits per weight in the linear layers, {:.3f} in all\n", report->bits_per_weight,
                report->bits_per_weight_total);
  return {};
}

void inspect_layer_kernels(Console& console, const std::vector<KernelChoice>& choices, nlohmann::json& json) {
  TextTable table({{"layer", Align::kLeft, 46}, {"kernel", Align::kLeft, 50}});
  json["kernels"] = nlohmann::json::array();
  std::map<std::pair<std::string, std::string>, int> why;  // layers of a kernel for a reason
  for (const KernelChoice& choice : choices) {
    table.add({choice.layer, choice.kernel});
    ++why[{choice.kernel, choice.reason}];
    json["kernels"].push_back({{"layer", choice.layer}, {"kernel", choice.kernel}, {"reason", choice.reason}});
  }
  console.print("\n{}\n", table.str());
  for (const auto& [choice, layers] : why)
    console.print("{}, {} layer{}:\n  {}\n", choice.first, layers, layers == 1 ? "" : "s", choice.second);
}

void inspect_build_kernels(Console& console, nlohmann::json& json) {
  // The name says weights, activations and instruction set.
  TextTable table({{"kernel", Align::kLeft, 44}, {"runs here"}, {"page", Align::kLeft, 40}});
  json["kernels"] = nlohmann::json::array();
  for (const KernelInfo& kernel : kernels()) {
    table.add({kernel.name, kernel.runs_here ? "yes" : "no", kernel.doc});
    json["kernels"].push_back({{"name", kernel.name},
                               {"isa", kernel.isa},
                               {"format", kernel.format},
                               {"activation", kernel.activation},
                               {"doc", kernel.doc},
                               {"runs_here", kernel.runs_here}});
  }
  console.print("{}", table.str());
}

Status inspect_action(Console& console, const InspectArguments& arguments, const Compute& compute) {
  nlohmann::json json = nlohmann::json::object();
  if (arguments.formats) inspect_formats(console, arguments.all, json);
  if (!arguments.drawn.empty()) draw_format(console, arguments.drawn, json);
  if (!arguments.model.empty()) {
    const auto path = resolve_model(arguments.model);
    if (!path) return tl::unexpected(path.error());
    json["path"] = *path;
    std::vector<KernelChoice> choices;  // before anything is printed: a device that is not there prints nothing
    if (arguments.kernels) {
      auto chosen = inspect_kernels(*path, arguments.activation, compute);
      if (!chosen) return tl::unexpected(chosen.error());
      choices = std::move(*chosen);
    }
    if (const Status status = inspect_tensors(console, *path, json); !status) return status;
    json["kernels"] = nlohmann::json::array();
    if (arguments.kernels) inspect_layer_kernels(console, choices, json);
  } else if (arguments.kernels) {
    inspect_build_kernels(console, json);
  }
  if (console.json()) console.put_json(json);
  return {};
}

void add_drawing_option(Verb& verb, InspectArguments& arguments) {
  verb.add_option_function(
          "--format",
          [&arguments](const std::string& text) {
            const auto format = parse_format(text);
            if (!format)
              throw UsageError{{ErrorCode::kInvalidArgument, "--format", format.error().got, format.error().wanted,
                                "`lowbit inspect --formats` lists them"}};
            arguments.drawn = text;
          },
          "draw the bit layout of one format")
      ->type_name("NAME");
}

}  // namespace

void add_inspect_verb(Verb& app, Invocation& invocation) {
  auto arguments = std::make_shared<InspectArguments>();
  Verb* verb = app.add_subcommand("inspect", "Tensors of a model; formats; kernels");
  verb->add_option("PATH", arguments->model, "checkpoint or Hugging Face directory, GGUF file, or `default`")
      ->type_name("");
  Option* const formats = verb->add_flag("--formats", arguments->formats, "formats to choose from, and when");
  verb->add_flag("--all", arguments->all, "with --formats: those of tests, kernels and imports too")->needs(formats);
  add_drawing_option(*verb, *arguments);
  verb->add_flag("--kernels", arguments->kernels,
                 "with PATH: the kernel of each layer on this machine and why; without: all of this build");
  add_activation_option(*verb, arguments->activation);
  verb->callback([arguments, &invocation] {
    if (arguments->model.empty() && !arguments->formats && !arguments->kernels && arguments->drawn.empty())
      throw UsageError{{ErrorCode::kInvalidArgument, "lowbit inspect", "nothing to inspect",
                        "PATH, --formats, --format NAME or --kernels", "see `lowbit inspect --help`"}};
    invocation.action = [arguments, &invocation](Console& console) {
      return inspect_action(console, *arguments, invocation.compute);
    };
  });
}

}  // namespace lowbit::cli
