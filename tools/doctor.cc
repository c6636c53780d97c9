// lowbit doctor: what this machine has, what lowbit uses of it, and what is missing.

#include <fmt/ranges.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "lowbit/compute.h"
#include "lowbit/kv_memory.h"
#include "text_table.h"
#include "verbs.h"

namespace lowbit::cli {
namespace {

nlohmann::json kv_json(const KvMemory& memory) {
  nlohmann::json rows = nlohmann::json::array();
  for (const KvMemoryRow& row : memory.kv)
    rows.push_back({{"kv", row.kv},
                    {"bits_per_element", row.bits_per_element},
                    {"context_bytes", row.context_bytes},
                    {"positions_per_gib", row.positions_per_gib}});
  return {{"model", memory.model}, {"context", memory.context}, {"formats", std::move(rows)}};
}

void print_kv(Console& console, const KvMemory& memory) {
  console.print("\nKeys and values of {}\n", printable(memory.model));
  TextTable table({{"--kv"},
                   {"bits", Align::kRight},
                   {fmt::format("{} positions", memory.context), Align::kRight},
                   {"positions in 1 GiB", Align::kRight}});
  for (const KvMemoryRow& row : memory.kv)
    table.add({row.kv, fmt::format("{:.2f}", row.bits_per_element), bytes_text(double(row.context_bytes)),
               std::to_string(row.positions_per_gib)});
  console.print("{}", table.str());
}

nlohmann::json report_json(const DoctorReport& report) {
  nlohmann::json kernel_list = nlohmann::json::array();
  for (const KernelInfo& kernel : report.kernels)
    kernel_list.push_back({{"name", kernel.name}, {"isa", kernel.isa}, {"runs_here", kernel.runs_here}});
  return {{"version", report.version},
          {"compiler", __VERSION__},
          {"cpu",
           {{"model", report.cpu.model},
            {"features", report.cpu.features},
            {"logical_cpus", report.cpu.logical_cpus},
            {"physical_cores", report.cpu.physical_cores}}},
          {"gpu", report.gpu.empty() ? nlohmann::json() : nlohmann::json(report.gpu)},
          {"cuda_built", report.cuda_built},
          {"isa", report.isa},
          {"threads", report.threads},
          {"bandwidth_gb_s", report.bandwidth_gb_s},
          {"bandwidth_range_gb_s", {report.bandwidth_least_gb_s, report.bandwidth_most_gb_s}},
          {"kernels", kernel_list},
          {"default_model", report.default_model.empty() ? nlohmann::json() : nlohmann::json(report.default_model)},
          {"data_dir", report.data_dir.empty() ? nlohmann::json() : nlohmann::json(report.data_dir)},
          {"problems", report.problems}};
}

std::string wrapped(const std::vector<std::string>& words, size_t indent, size_t width) {
  std::string out;
  size_t column = indent;
  for (const std::string& word : words) {
    if (!out.empty() && column + word.size() + 1 > width) {
      out.back() = '\n';
      out += std::string(indent, ' ');
      column = indent;
    }
    out += word + " ";
    column += word.size() + 1;
  }
  if (!out.empty()) out.pop_back();
  return out;
}

std::string kernel_counts(const std::vector<KernelInfo>& all) {
  std::map<std::string, std::pair<int, int>> counts;  // isa -> kernels, of these runnable here
  for (const KernelInfo& kernel : all) {
    ++counts[kernel.isa].first;
    counts[kernel.isa].second += kernel.runs_here;
  }
  std::vector<std::string> here, elsewhere;
  for (const auto& [isa, count] : counts)
    (count.second == 0 ? elsewhere : here).push_back(fmt::format("{} {}", count.first, isa));
  const std::string others =
      elsewhere.empty() ? "" : fmt::format("; not on this machine: {}", fmt::join(elsewhere, ", "));
  return fmt::format("{}{}", fmt::join(here, ", "), others);
}

void print_report(Console& console, const DoctorReport& report) {
  const auto line = [&](const char* name, const std::string& value) { console.print("{:<11}{}\n", name, value); };
  line("lowbit", fmt::format("{} (compiler {}, {})", report.version, __VERSION__,
                             report.cuda_built ? "with CUDA" : "without CUDA"));
  line("cpu", fmt::format("{}, {} cores, {} threads of execution", printable(report.cpu.model),
                          report.cpu.physical_cores, report.cpu.logical_cpus));
  line("features", wrapped(report.cpu.features, 11, 98));
  line("in use", fmt::format("{} kernels, {} threads", report.isa, report.threads));
  line("kernels", kernel_counts(report.kernels));
  line("memory", fmt::format("{:.1f} GB/s read ({:.1f} to {:.1f} over nine sweeps)", report.bandwidth_gb_s,
                             report.bandwidth_least_gb_s, report.bandwidth_most_gb_s));
  line("gpu", report.gpu.empty() ? "none" : report.gpu);
  line("default", report.default_model.empty() ? "no default model" : report.default_model);
  line("test data", report.data_dir.empty() ? "not found" : report.data_dir);
}

void print_problems(Console& console, const std::vector<std::string>& problems) {
  if (problems.empty()) return console.print("\nNo problems found.\n");
  console.print("\nProblems:\n");
  for (const std::string& problem : problems) console.print("  - {}\n", problem);
}

Status doctor_action(Console& console, const std::string& model, const Compute& compute) {
  // A model that is named must be there; the default one is looked at where it can be.
  auto memory = kv_memory(model.empty() ? "default" : model);
  if (!memory && !model.empty()) return tl::unexpected(memory.error());
  const auto report = doctor(compute);
  if (!report) return tl::unexpected(report.error());
  if (console.json()) {
    nlohmann::json json = report_json(*report);
    json["kv_memory"] = memory ? kv_json(*memory) : nlohmann::json();
    console.put_json(json);
    return {};
  }
  print_report(console, *report);
  if (memory) print_kv(console, *memory);
  print_problems(console, report->problems);
  return {};
}

}  // namespace

void add_doctor_verb(Verb& app, Invocation& invocation) {
  Verb* verb = app.add_subcommand("doctor", "What this machine offers and what is missing");
  auto model = std::make_shared<std::string>();
  verb->add_option("MODEL", *model,
                   "whose contexts' memory is shown: checkpoint or Hugging Face directory, GGUF file [default]");
  verb->callback([model, &invocation] {
    invocation.action = [model, &invocation](Console& console) {
      return doctor_action(console, *model, invocation.compute);
    };
  });
}

}  // namespace lowbit::cli
