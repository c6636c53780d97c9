#pragma once
// The tasks of `lowbit eval` that read a text: ppl, kld, drift and agreement.

#include <cstdint>
#include <optional>
#include <string>

#include "console.h"
#include "lowbit/evaluate.h"

namespace lowbit::cli {

struct TextTask {
  std::string name;       // "ppl", "kld", "drift", "agreement"
  std::string file;       // the text
  int64_t context = 0;    // 0: 512 for ppl and kld, 4096 or what the models hold for drift
  int64_t sequences = 0;  // 0: 16 for ppl and kld, 1 for drift
};

bool is_text_task(const std::string& name);
/// Without --text: wiki.test.raw of the test data.
std::string default_text_file();

/// `base` may be null for ppl. JSON as docs/cli.md says.
Result<nlohmann::json> run_text_task(Console& console, Model& model, Model* base, const TextTask& task);
void print_text_task(Console& console, const nlohmann::json& result);

}  // namespace lowbit::cli
