// lowbit doctor: what this machine has, what lowbit uses of it, and what is missing.

#include <fmt/ranges.h>

#include <map>

#include "lowbit/compute.h"
#include "text_table.h"
#include "verbs.h"

namespace lowbit::cli {
namespace {

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
  if (report.problems.empty()) {
    console.print("\nNo problems found.\n");
    return;
  }
  console.print("\nProblems:\n");
  for (const std::string& problem : report.problems) console.print("  - {}\n", problem);
}

Status doctor_action(Console& console, const Compute& compute) {
  const auto report = doctor(compute);
  if (!report) return tl::unexpected(report.error());
  if (console.json())
    console.put_json(report_json(*report));
  else
    print_report(console, *report);
  return {};
}

}  // namespace

void add_doctor_verb(CLI::App& app, Invocation& invocation) {
  CLI::App* verb = app.add_subcommand("doctor", "What this machine offers and what is missing");
  verb->callback([&invocation] {
    invocation.action = [&invocation](Console& console) { return doctor_action(console, invocation.compute); };
  });
}

}  // namespace lowbit::cli
