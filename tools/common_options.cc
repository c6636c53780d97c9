#include "common_options.h"

#include <algorithm>
#include <cstdlib>

#include "option_values.h"

namespace lowbit::cli {
namespace {

bool is_gpu(const std::string& text) {
  if (text == "cuda") return true;
  const std::string prefix = "cuda:";
  return text.size() > prefix.size() && text.size() <= prefix.size() + 3 && text.rfind(prefix, 0) == 0 &&
         text.find_first_not_of("0123456789", prefix.size()) == std::string::npos;
}

bool is_device(const std::string& text) {
  if (text == "auto" || text == "cpu") return true;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    if (!is_gpu(text.substr(begin, end - begin))) return false;
    begin = end + 1;
  }
  return true;
}

}  // namespace

void add_common_options(Verb& verb, Invocation& invocation) {
  const std::string group = "Common options";
  verb.set_help_flag("-h,--help", "this text")->group(group);
  verb.set_version_flag("--version", std::string("lowbit ") + version(), "lowbit's version")->group(group);
  verb.add_flag("--json", invocation.json, "one JSON document on stdout, nothing else there")->group(group);
  verb.add_flag("--quiet", invocation.quiet, "no progress, notes or warnings on stderr")->group(group);
  add_count_option(verb, "--threads", invocation.compute.threads, {1, 1024},
                   "threads; without it LOWBIT_THREADS, else the physical cores")
      ->group(group);
  verb.add_option_function(
          "--device",
          [&invocation](const std::string& text) {
            if (!is_device(text)) throw usage_error("--device", text, "auto, cpu, cuda, cuda:<i> or cuda:<i>,cuda:<j>");
            invocation.compute.device = text;
          },
          "cpu, cuda or cuda:<i>, of models that run also several GPUs (cuda:0,cuda:1), which share the layers, and "
          "auto: a GPU where there is one; without it LOWBIT_DEVICE, else cpu")
      ->type_name("NAME")
      ->group(group);
  add_choice_option(verb, "--isa", invocation.compute.isa, {"scalar", "avx2", "avxvnni", "avx512", "amx", "ref"},
                    "; ref: models by plain loops, which all others agree with; without it LOWBIT_ISA, else the best "
                    "this CPU has")
      ->group(group);
}

Compute with_gpu_found(const Compute& compute) {
  const char* env = std::getenv("LOWBIT_DEVICE");
  const std::string wanted = compute.device.empty() && env != nullptr ? env : compute.device;
  if (wanted != "auto") return compute;
  Compute found = compute;
  const bool has_gpu =
      std::ranges::any_of(kernels(), [](const KernelInfo& k) { return k.isa == "cuda" && k.runs_here; });
  found.device = has_gpu ? "cuda" : "cpu";
  return found;
}

}  // namespace lowbit::cli
