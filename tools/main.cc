// The `lowbit` command: `lowbit VERB [options]`, described in docs/cli.md.

#include <fcntl.h>
#include <unistd.h>

#include <exception>

#include "console.h"
#include "interrupt.h"
#include "verbs.h"

namespace lowbit::cli {
namespace {

/// The verb that was named, for the hint: "lowbit bench matmul".
std::string command_name(const CLI::App& app) {
  std::string name = "lowbit";
  for (const CLI::App* at = &app; !at->get_subcommands().empty();) {
    at = at->get_subcommands().front();
    name += " " + at->get_name();
  }
  return name;
}

/// A verb, or the verbs below it: `bench` has three.
void add_common_options_to_verbs(CLI::App& app, Invocation& invocation) {
  for (CLI::App* verb : app.get_subcommands({})) {
    if (verb->get_subcommands({}).empty())
      add_common_options(*verb, invocation);
    else
      add_common_options_to_verbs(*verb, invocation);
  }
}

/// The innermost verb that was named; the program when there is none.
const CLI::App& named_verb(const CLI::App& app) {
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().front();
  return *at;
}

/// "matmul, model, memory, gru"
std::string verbs_of(const CLI::App& app) {
  std::string names;
  for (const CLI::App* verb : named_verb(app).get_subcommands({}))
    names += (names.empty() ? "" : ", ") + verb->get_name();
  return names;
}

/// CLI11's words as "got" and "wanted".
Error parse_error(const CLI::App& app, const CLI::ParseError& error) {
  const std::string name = command_name(app), what = error.what();
  Error out{ErrorCode::kInvalidArgument, name, what, "", "see `" + name + " --help`"};
  const auto ends_with_required = what.find(" is required");
  if (what == "A subcommand is required") {
    const auto rest = named_verb(app).remaining();
    out.got = rest.empty() ? "no verb" : "'" + rest.front() + "'";
    out.wanted = "one of " + verbs_of(app);
  } else if (ends_with_required != std::string::npos) {
    out.got = "no " + what.substr(0, ends_with_required);
    out.wanted = "one";
  } else if (dynamic_cast<const CLI::ExtrasError*>(&error)) {
    out.got = "unexpected arguments" + what.substr(what.find(": ") + 1);
  }
  return out;
}

/// A file that is opened later must not take the place of a closed stdin, stdout or stderr: messages would go into a checkpoint. What
/// is put there can only be read, so that writing to it is still an error.
void occupy_standard_descriptors() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd)
    if (fcntl(fd, F_GETFD) < 0) (void)!open("/dev/null", O_RDONLY);  // takes the lowest free number: this one
}

int run_action(Console& console, const Invocation& invocation) {
  console.set_json(invocation.json);
  console.set_quiet(invocation.quiet);
  Status status = invocation.action(console);
  if (status) status = console.stdout_status();
  if (status) return kDone;
  if (status.error().code == ErrorCode::kCancelled) return kInterrupted;
  console.error(status.error());
  return kFailed;
}

int run(int argc, char** argv) {
  CLI::App app{"Low-bit language models on CPUs and GPUs: quantize, look at, measure and run them."};
  app.name("lowbit");
  app.get_formatter()->column_width(32);
  app.set_help_flag("-h,--help", "this text");
  app.set_version_flag("--version", std::string("lowbit ") + version(), "lowbit's version");
  app.require_subcommand(1);
  app.footer("`lowbit VERB --help` explains a verb. MODEL may be `default`.");
  Invocation invocation;
  for (const auto add :
       {add_import_verb, add_quantize_verb, add_inspect_verb, add_verify_verb, add_run_verb, add_chat_verb,
        add_tokenize_verb, add_ppl_verb, add_eval_verb, add_report_verb, add_bench_verb, add_gru_verb, add_doctor_verb})
    add(app, invocation);
  add_common_options_to_verbs(app, invocation);
  Console console;
  try {
    app.parse(argc, argv);
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
  Error error{ErrorCode::kOutOfMemory, "lowbit", "an unexpected failure", "", ""};
  int code = cli::kFailed;
  try {
    return cli::run(argc, argv);
  } catch (const cli::UsageError& usage) {
    error = usage.error;
    code = cli::kUsage;
  } catch (const std::exception& exception) {  // out of memory, or a fault of this program
    error.got = exception.what();
  }
  const std::string line = "error: " + error.message() + "\n";
  fputs(line.c_str(), stderr);
  return code;
}
