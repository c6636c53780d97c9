// lowbit verify: structure and checksums.

#include <memory>
#include <nlohmann/json.hpp>

#include "lowbit/quantize.h"
#include "text_table.h"
#include "verbs.h"

namespace lowbit::cli {
namespace {

Status verify_action(Console& console, const std::string& model) {
  const auto path = resolve_model(model);
  if (!path) return tl::unexpected(path.error());
  auto report = verify_model(*path);
  if (!report) {
    // A file too broken to be read is an answer too; one that is not there is not.
    if (report.error().code != ErrorCode::kCorrupt) return tl::unexpected(report.error());
    report = VerifyReport{false, {report.error().message()}, 0};
  }
  if (console.json())
    console.put_json(
        {{"path", *path}, {"ok", report->ok}, {"tensors", report->tensors}, {"problems", report->problems}});
  for (const std::string& problem : report->problems) console.print("problem: {}\n", printable(problem));
  if (report->ok) {
    console.print("{}: ok, {} tensors\n", *path, report->tensors);
    return {};
  }
  const size_t count = report->problems.size();
  return fail(ErrorCode::kCorrupt, *path, count == 1 ? report->problems.front() : fmt::format("{} problems", count),
              "none", "make the checkpoint again with `lowbit quantize` or `lowbit import`");
}

}  // namespace

void add_verify_verb(Verb& app, Invocation& invocation) {
  auto model = std::make_shared<std::string>();
  Verb* verb = app.add_subcommand("verify", "Check the structure and the checksums of a model");
  verb->add_option("PATH", *model, "checkpoint or Hugging Face directory, GGUF file, or `default`")
      ->required()
      ->type_name("");
  verb->callback([model, &invocation] {
    invocation.action = [model](Console& console) { return verify_action(console, *model); };
  });
}

}  // namespace lowbit::cli
