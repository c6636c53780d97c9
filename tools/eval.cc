// lowbit eval: multiple-choice questions by log-likelihood, perplexity, divergence from another model, and its drift.

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "eval_compare.h"
#include "eval_long.h"
#include "generation_options.h"
#include "lowbit/evaluate.h"
#include "lowbit/file.h"
#include "option_values.h"
#include "progress_display.h"
#include "report_page.h"
#include "text_file.h"
#include "text_table.h"
#include "verbs.h"

namespace lowbit::cli {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSpeedPrompt = 128, kSpeedDecode = 32;
constexpr char kContinuation[] = "continuation";
constexpr int64_t kContinuations = 512;

struct EvalArguments {
  std::string model, against, text, page;
  std::vector<std::string> tasks;
  int64_t sequences = 0;
  bool uses_old_name = false;  // --windows
  bool long_context = false;
  std::vector<int64_t> lengths;
  ModelOptions model_options;
  ChoiceOptions options;
};

/// The other model's answers, and how far apart the two are.
struct Compared {
  std::string against;
  ChoiceReport base;
  PairedDifference plain, normalized;
};

struct TaskResult {
  std::string name, file;
  ChoiceReport report;
  std::optional<Compared> compared;
};

/// A task is a file, or a name of the test data's: arc_easy, winogrande.
std::string task_file(const std::string& task) {
  if (task.find('/') != std::string::npos || task.ends_with(".jsonl")) return task;
  const char* data = std::getenv("LOWBIT_DATA");
  return (data != nullptr && *data != '\0' ? std::string(data) : std::string("../shared/data")) + "/eval/" + task +
         ".jsonl";
}

/// "0110..": which questions were answered rightly, so that any two reports can be compared question by question.
std::string answers(const std::vector<bool>& right) {
  std::string text;
  for (const bool is_right : right) text += is_right ? '1' : '0';
  return text;
}

nlohmann::json shares_json(const ChoiceReport& r) {
  return {{"right", answers(r.right)},
          {"right_normalized", answers(r.right_normalized)},
          {"accuracy", r.accuracy},
          {"accuracy_error", r.accuracy_error},
          {"normalized_accuracy", r.normalized_accuracy},
          {"normalized_accuracy_error", r.normalized_accuracy_error},
          {"seconds", r.seconds}};
}

nlohmann::json difference_json(const PairedDifference& d) {
  return {{"mean", d.mean}, {"error", d.error}, {"only_model", d.only_model}, {"only_base", d.only_base}};
}

nlohmann::json result_json(const TaskResult& result) {
  nlohmann::json json = shares_json(result.report);
  json["name"] = result.name;
  json["file"] = result.file;
  json["questions"] = result.report.questions;
  if (result.compared) {
    json["against"] = shares_json(result.compared->base);
    json["against"]["model"] = result.compared->against;
    json["difference"] = difference_json(result.compared->plain);
    json["normalized_difference"] = difference_json(result.compared->normalized);
  }
  return json;
}

void print_results(Console& console, const std::vector<TaskResult>& results) {
  TextTable table({{"task", Align::kLeft},
                   {"questions", Align::kRight},
                   {"accuracy", Align::kRight},
                   {"by length", Align::kRight}});
  const auto percent = [](double share, double error) {
    return fmt::format("{:.2f} +/- {:.2f} %", 100 * share, 100 * error);
  };
  const auto points = [](const PairedDifference& d) {
    return fmt::format("{:+.2f} +/- {:.2f} %", 100 * d.mean, 100 * d.error);
  };
  for (const auto& [name, file, r, compared] : results) {
    table.add({name, std::to_string(r.questions), percent(r.accuracy, r.accuracy_error),
               percent(r.normalized_accuracy, r.normalized_accuracy_error)});
    if (!compared) continue;
    const ChoiceReport& base = compared->base;
    table.add({"  the other model", "", percent(base.accuracy, base.accuracy_error),
               percent(base.normalized_accuracy, base.normalized_accuracy_error)});
    table.add({"  difference, paired", "", points(compared->plain), points(compared->normalized)});
  }
  console.print("{}", table.str());
}

/// Tokens per second of a short prompt and of what follows it, one run each.
Result<nlohmann::json> measure_speed(Model& model) {
  using Clock = std::chrono::steady_clock;
  const auto seconds = [](Clock::duration d) { return std::chrono::duration<double>(d).count(); };
  const std::vector<TokenId> prompt(static_cast<size_t>(std::min<int64_t>(kSpeedPrompt, model.info().context / 2)), 0);
  model.clear();
  const auto start = Clock::now();
  if (auto logits = model.prefill(prompt); !logits) return tl::unexpected(logits.error());
  const auto middle = Clock::now();
  for (int64_t i = 0; i < kSpeedDecode; ++i)
    if (auto logits = model.decode(0); !logits) return tl::unexpected(logits.error());
  return nlohmann::json{{"prompt", prompt.size()},
                        {"prefill_tok_s", static_cast<double>(prompt.size()) / seconds(middle - start)},
                        {"decode_tok_s", static_cast<double>(kSpeedDecode) / seconds(Clock::now() - middle)}};
}

std::string text_file(const EvalArguments& arguments) {
  return arguments.text.empty() ? default_text_file() : arguments.text;
}

/// A text that nobody named is one of the test data, which few have.
Status check_text(const EvalArguments& arguments) {
  const auto reads_text = [](const std::string& task) { return is_text_task(task) || task == kContinuation; };
  if (!arguments.long_context && std::ranges::none_of(arguments.tasks, reads_text)) return {};
  std::error_code ignored;
  if (!arguments.text.empty() || fs::exists(default_text_file(), ignored)) return {};
  return tl::unexpected(
      Error{ErrorCode::kNotFound, "--text", "no text, and no " + default_text_file(), "a text file",
            "--text FILE, any that the models should know about; or LOWBIT_DATA names the folder of the test data"});
}

/// Every file is read before the model is loaded: a mistyped name should not cost minutes.
Result<std::vector<std::vector<ChoiceQuestion>>> read_questions(const EvalArguments& arguments) {
  std::vector<std::vector<ChoiceQuestion>> questions(arguments.tasks.size());
  for (size_t i = 0; i < questions.size(); ++i) {
    if (is_text_task(arguments.tasks[i])) continue;
    const std::string& task = arguments.tasks[i];
    if (task == kContinuation) {
      const auto text = read_text(text_file(arguments));
      if (!text) return tl::unexpected(text.error());
      questions[i] = continuation_questions(*text, kContinuations);
      continue;
    }
    auto read = read_choice_questions(task_file(task));
    if (!read && read.error().code == ErrorCode::kNotFound && task_file(task) != task)
      return tl::unexpected(
          Error{ErrorCode::kNotFound, "--tasks", "'" + task + "', and no " + task_file(task),
                "ppl, kld, drift, agreement, continuation, a .jsonl file, or arc_easy and winogrande of the test data",
                "LOWBIT_DATA names the folder of the test data"});
    if (!read) return tl::unexpected(read.error());
    questions[i] = std::move(*read);
    const int64_t asked = arguments.options.questions;  // those behind them need not lie beside the model
    if (asked > 0 && asked < int64_t(questions[i].size())) questions[i].resize(size_t(asked));
    questions[i].shrink_to_fit();
  }
  return questions;
}

Result<ChoiceReport> answer(Console& console, Model& model, const std::vector<ChoiceQuestion>& questions,
                            ChoiceOptions options) {
  ProgressDisplay progress(console);
  options.progress = progress.callback();
  return multiple_choice(model, questions, options);
}

Result<TaskResult> answer(Console& console, Model& model, Model* base, const std::string& task, const std::string& text,
                          const std::vector<ChoiceQuestion>& questions, const ChoiceOptions& options) {
  auto report = answer(console, model, questions, options);
  if (!report) return tl::unexpected(report.error());
  TaskResult result{task, task == kContinuation ? text : task_file(task), std::move(*report), std::nullopt};
  if (base == nullptr) return result;
  auto other = answer(console, *base, questions, options);
  if (!other) return tl::unexpected(other.error());
  const auto plain = paired_difference(result.report.right, other->right);
  if (!plain) return tl::unexpected(plain.error());
  const auto normalized = paired_difference(result.report.right_normalized, other->right_normalized);
  if (!normalized) return tl::unexpected(normalized.error());
  result.compared = Compared{base->info().path, std::move(*other), *plain, *normalized};
  return result;
}

void note_old_name(Console& console, const EvalArguments& arguments) {
  if (arguments.uses_old_name) console.note("--windows is now --sequences");
}

/// The model beside itself with an f16 cache.
Status long_action(Console& console, const EvalArguments& arguments, const Compute& compute) {
  note_old_name(console, arguments);
  if (auto status = check_text(arguments); !status) return status;
  auto model = open_model(console, arguments.model, compute, arguments.model_options);
  if (!model) return tl::unexpected(model.error());
  ModelOptions exact = arguments.model_options;
  exact.kv = "f16";
  exact.kv_refresh = 0;
  exact.kv_demote = "";
  auto base = open_model(console, arguments.model, compute, exact);
  if (!base) return tl::unexpected(base.error());
  return run_long(console, *model, *base, {text_file(arguments), arguments.lengths, arguments.sequences});
}

Status write_page(Console& console, const std::string& file, const nlohmann::json& document) {
  using nlohmann::json;  // texts of a model may break off in a character: as --json has them
  const json readable = json::parse(document.dump(-1, ' ', false, json::error_handler_t::replace));
  const fs::path model = fs::path(text_or(readable, "model", "")).lexically_normal();
  Findings found;
  read_evaluation((model.has_filename() ? model : model.parent_path()).filename().string(), readable, found);
  if (auto written = write_text_file(file, report_page(found, figures_of(found))); !written) return written;
  console.note("{}: the same with plots", file);
  return {};
}

Status report(Console& console, const EvalArguments& arguments, const ModelInfo& info, const nlohmann::json& speed,
              const nlohmann::json& tasks) {
  const nlohmann::json document = {
      {"model", info.path},
      {"activation", info.activation},
      {"isa", info.isa},
      {"threads", info.threads},
      {"footprint",
       {{"weight_bytes", info.weight_bytes}, {"kv_bytes", info.kv_bytes}, {"peak_bytes", peak_memory_bytes()}}},
      {"speed", speed},
      {"tasks", tasks}};
  if (!arguments.page.empty())
    if (auto written = write_page(console, arguments.page, document); !written) return written;
  if (console.json()) {
    console.put_json(document);
    return {};
  }
  console.print(
      "\nweights {}, KV cache {}, peak {} of memory; {:.0f} tok/s for a prompt of {}, {:.0f} tok/s generated\n",
      bytes_text(double(info.weight_bytes)), bytes_text(double(info.kv_bytes)), bytes_text(double(peak_memory_bytes())),
      speed.at("prefill_tok_s").get<double>(), speed.at("prompt").get<size_t>(),
      speed.at("decode_tok_s").get<double>());
  return {};
}

Status eval_action(Console& console, EvalArguments& arguments, const Compute& compute) {
  note_old_name(console, arguments);
  if (auto status = check_text(arguments); !status) return status;
  auto questions = read_questions(arguments);
  if (!questions) return tl::unexpected(questions.error());
  auto model = open_model(console, arguments.model, compute, arguments.model_options);
  if (!model) return tl::unexpected(model.error());
  std::unique_ptr<Model> base;
  if (!arguments.against.empty()) {
    ModelOptions exact = arguments.model_options;
    exact.activation = "f32";
    auto opened = open_model(console, arguments.against, compute, exact);
    if (!opened) return tl::unexpected(opened.error());
    base = std::make_unique<Model>(std::move(*opened));
  }
  std::vector<TaskResult> choices;
  nlohmann::json tasks = nlohmann::json::array();
  for (size_t i = 0; i < arguments.tasks.size(); ++i) {
    const std::string& name = arguments.tasks[i];
    if (is_text_task(name)) {
      auto result = run_text_task(console, *model, base.get(),
                                  {name, text_file(arguments), arguments.model_options.context, arguments.sequences});
      if (!result) return tl::unexpected(result.error());
      if (!console.json()) print_text_task(console, *result);
      tasks.push_back(std::move(*result));
    } else {
      auto result = answer(console, *model, base.get(), name, text_file(arguments), (*questions)[i], arguments.options);
      if (!result) return tl::unexpected(result.error());
      tasks.push_back(result_json(*result));
      choices.push_back(std::move(*result));
    }
  }
  if (!choices.empty() && !console.json()) print_results(console, choices);
  auto speed = measure_speed(*model);
  if (!speed) return tl::unexpected(speed.error());
  return report(console, arguments, model->info(), *speed, tasks);
}

}  // namespace

void add_eval_verb(Verb& app, Invocation& invocation) {
  auto arguments = std::make_shared<EvalArguments>();
  Verb* verb = app.add_subcommand("eval", "Questions, perplexity, divergence from another model");
  add_model_argument(*verb, arguments->model);
  verb->add_option(
          "--tasks", arguments->tasks,
          "ppl, kld, drift, agreement, continuation, arc_easy, winogrande (of the test data), JSON-lines files "
          "(docs/cli.md) [with --against: kld, agreement, continuation]")
      ->delimiter(',')
      ->type_name("NAMES");
  verb->add_option("--against", arguments->against,
                   "the model that all tasks but ppl compare with, on exact activations")
      ->type_name("MODEL");
  verb->add_option("--text", arguments->text,
                   "text of ppl, kld, drift, agreement and continuation [wiki.test.raw of the test data]")
      ->type_name("FILE");
  verb->add_option("--page", arguments->page, "also writes the results as one HTML page with plots")->type_name("FILE");
  add_count_option(*verb, "--sequences", arguments->sequences, {1, int64_t{1} << 40},
                   "sequences of -c tokens: ppl and kld [16 of 512], drift [1 of 4096]");
  add_count_option(*verb, "--windows", arguments->sequences, {1, int64_t{1} << 40}, "the old name of --sequences")
      ->group("");
  verb->add_flag("--long", arguments->long_context,
                 "the cache of --kv beside f16 over a long text: divergence by position, facts that are asked for at "
                 "its end, sums of them, and what is written behind it");
  verb->add_option("--lengths", arguments->lengths, "tokens of the texts of --long [a quarter, a half and all of -c]")
      ->delimiter(',')
      ->type_name("NUMBERS");
  add_count_option(*verb, "--questions", arguments->options.questions, {0, int64_t{1} << 40},
                   "only the first N of each task");
  add_model_options(*verb, arguments->model_options);
  verb->callback([arguments, verb, &invocation] {
    arguments->uses_old_name = verb->count("--windows") > 0;
    if (arguments->long_context) {
      if (!arguments->tasks.empty() || !arguments->against.empty() || !arguments->page.empty())
        throw UsageError{{ErrorCode::kInvalidArgument, "--long", "--tasks, --against or --page", "--long alone",
                          "it compares --kv with f16"}};
      if (arguments->model_options.kv == "f16")
        throw UsageError{{ErrorCode::kInvalidArgument, "--long", "no quantized cache", "--kv int8, int4, ...", ""}};
      invocation.action = [arguments, &invocation](Console& console) {
        return long_action(console, *arguments, invocation.compute);
      };
      return;
    }
    if (!arguments->lengths.empty())
      throw UsageError{{ErrorCode::kInvalidArgument, "--lengths", "no --long", "both", ""}};
    if (arguments->tasks.empty() && !arguments->against.empty()) arguments->tasks = {"kld", "agreement", kContinuation};
    if (arguments->tasks.empty())
      throw UsageError{{ErrorCode::kInvalidArgument, "lowbit eval", "no --tasks", "what to measure",
                        "--against SOURCE measures what a model lost"}};
    for (const std::string& task : arguments->tasks)
      if ((task == "kld" || task == "drift" || task == "agreement") && arguments->against.empty())
        throw UsageError{{ErrorCode::kInvalidArgument, "--tasks " + task, "no --against", "the model to compare with",
                          "--against MODEL"}};
    invocation.action = [arguments, &invocation](Console& console) {
      return eval_action(console, *arguments, invocation.compute);
    };
  });
}

}  // namespace lowbit::cli
