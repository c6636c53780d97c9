#include "eval_long.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "eval_compare.h"
#include "generation_options.h"
#include "progress_display.h"
#include "text_file.h"
#include "text_table.h"

namespace lowbit::cli {
namespace {

nlohmann::json score_json(const ProbeScore& s) {
  return {{"asked", s.asked}, {"base", s.base}, {"model", s.model}, {"both", s.both}};
}

nlohmann::json length_json(const LongContextLength& l) {
  nlohmann::json written = nlohmann::json::array();
  for (const WrittenText& w : l.written)
    written.push_back({{"alike", w.alike}, {"before", w.before}, {"base", w.base}, {"model", w.model}});
  return {{"length", l.length}, {"needle", score_json(l.needle)}, {"chain", score_json(l.chain)}, {"written", written}};
}

std::string share_text(const ProbeScore& s) {
  if (s.base == 0) return fmt::format("none of {} by f16", s.asked);
  return fmt::format("{} of {} ({:.1f} %)", s.both, s.base, 100.0 * double(s.both) / double(s.base));
}

/// One line, whatever was written.
std::string one_line(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  return printable(std::move(text));
}

void print_probes(Console& console, const LongContextReport& report, const std::string& kv) {
  TextTable table({{"tokens", Align::kRight}, {"needles"}, {"sums"}, {"written alike", Align::kRight}});
  for (const LongContextLength& l : report.lengths) {
    std::string alike;
    for (const WrittenText& w : l.written) alike += (alike.empty() ? "" : ", ") + std::to_string(w.alike);
    table.add({std::to_string(l.length), share_text(l.needle), share_text(l.chain), alike});
  }
  console.print("\nof the answers that f16 has right, {} has:\n{}", kv, table.str());
  const LongContextLength& longest = report.lengths.back();
  for (const WrittenText& w : longest.written)
    console.print("\nbehind {} tokens: ... {}\n  f16: {}\n  {}: {}\n", longest.length, one_line(w.before),
                  one_line(w.base), kv, one_line(w.model));
}

}  // namespace

Status run_long(Console& console, Model& model, Model& base, const LongArguments& arguments) {
  const auto text = read_text(arguments.file);
  if (!text) return tl::unexpected(text.error());
  LongContextOptions options;
  options.lengths = arguments.lengths;
  options.texts = std::max<int64_t>(1, arguments.sequences);
  std::ranges::sort(options.lengths);
  const int64_t longest = options.lengths.empty() ? model.info().context : options.lengths.back();
  const auto drift = run_text_task(console, model, &base, {"drift", arguments.file, longest, options.texts});
  if (!drift) return tl::unexpected(drift.error());
  const auto report = [&] {
    ProgressDisplay progress(console);
    options.progress = progress.callback();
    return probe_long_context(model, base, *text, options);
  }();
  if (!report) return tl::unexpected(report.error());
  if (!console.json()) {
    print_text_task(console, *drift);
    print_probes(console, *report, model.info().kv);
    return {};
  }
  nlohmann::json lengths = nlohmann::json::array();
  for (const LongContextLength& l : report->lengths) lengths.push_back(length_json(l));
  const ModelInfo& info = model.info();
  console.put_json({{"model", info.path},
                    {"activation", info.activation},
                    {"isa", info.isa},
                    {"threads", info.threads},
                    {"kv", info.kv},
                    {"kv_bytes", info.kv_bytes},
                    {"base_kv", base.info().kv},
                    {"base_kv_bytes", base.info().kv_bytes},
                    {"drift", *drift},
                    {"lengths", lengths},
                    {"seconds", report->seconds}});
  return {};
}

}  // namespace lowbit::cli
