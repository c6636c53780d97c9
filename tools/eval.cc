// lowbit eval: multiple-choice questions by log-likelihood.

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "generation_options.h"
#include "lowbit/evaluate.h"
#include "option_values.h"
#include "progress_display.h"
#include "text_table.h"
#include "verbs.h"

namespace lowbit::cli {
namespace {

struct EvalArguments {
  std::string model;
  std::vector<std::string> tasks;
  ModelOptions model_options;
  ChoiceOptions options;
};

struct TaskResult {
  std::string name, file;
  ChoiceReport report;
};

/// A task is a file, or a name of the test data's: arc_easy, winogrande.
std::string task_file(const std::string& task) {
  if (task.find('/') != std::string::npos || task.ends_with(".jsonl")) return task;
  const char* data = std::getenv("LOWBIT_DATA");
  return (data != nullptr && *data != '\0' ? std::string(data) : std::string("../shared/data")) + "/eval/" + task +
         ".jsonl";
}

nlohmann::json result_json(const TaskResult& result) {
  const ChoiceReport& r = result.report;
  return {{"name", result.name},
          {"file", result.file},
          {"questions", r.questions},
          {"accuracy", r.accuracy},
          {"accuracy_error", r.accuracy_error},
          {"normalized_accuracy", r.normalized_accuracy},
          {"normalized_accuracy_error", r.normalized_accuracy_error},
          {"seconds", r.seconds}};
}

void print_results(Console& console, const std::vector<TaskResult>& results) {
  TextTable table({{"task", Align::kLeft},
                   {"questions", Align::kRight},
                   {"accuracy", Align::kRight},
                   {"by length", Align::kRight}});
  const auto percent = [](double share, double error) {
    return fmt::format("{:.2f} +/- {:.2f} %", 100 * share, 100 * error);
  };
  for (const auto& [name, file, r] : results)
    table.add({name, std::to_string(r.questions), percent(r.accuracy, r.accuracy_error),
               percent(r.normalized_accuracy, r.normalized_accuracy_error)});
  console.print("{}", table.str());
}

Status eval_action(Console& console, EvalArguments& arguments, const Compute& compute) {
  // Every file is read before the model is loaded: a mistyped name should not cost minutes.
  std::vector<std::vector<ChoiceQuestion>> questions;
  for (const std::string& task : arguments.tasks) {
    auto read = read_choice_questions(task_file(task));
    if (!read) return tl::unexpected(read.error());
    questions.push_back(std::move(*read));
  }
  auto model = open_model(console, arguments.model, compute, arguments.model_options);
  if (!model) return tl::unexpected(model.error());
  std::vector<TaskResult> results;
  for (size_t i = 0; i < questions.size(); ++i) {
    ProgressDisplay progress(console);
    arguments.options.progress = progress.callback();
    auto report = multiple_choice(*model, questions[i], arguments.options);
    if (!report) return tl::unexpected(report.error());
    results.push_back({arguments.tasks[i], task_file(arguments.tasks[i]), *report});
  }
  if (!console.json()) {
    print_results(console, results);
    return {};
  }
  nlohmann::json tasks = nlohmann::json::array();
  for (const TaskResult& result : results) tasks.push_back(result_json(result));
  console.put_json({{"model", model->info().path}, {"activation", model->info().activation}, {"tasks", tasks}});
  return {};
}

}  // namespace

void add_eval_verb(CLI::App& app, Invocation& invocation) {
  auto arguments = std::make_shared<EvalArguments>();
  CLI::App* verb = app.add_subcommand("eval", "Multiple-choice questions, answered by log-likelihood");
  add_model_argument(*verb, arguments->model);
  verb->add_option("--tasks", arguments->tasks, "arc_easy, winogrande (of the test data) or JSON-lines files")
      ->delimiter(',')
      ->required()
      ->type_name("NAMES");
  add_count_option(*verb, "--questions", arguments->options.questions, {0, int64_t{1} << 40},
                   "only the first N of each task");
  add_model_options(*verb, arguments->model_options);
  verb->callback([arguments, &invocation] {
    invocation.action = [arguments, &invocation](Console& console) {
      return eval_action(console, *arguments, invocation.compute);
    };
  });
}

}  // namespace lowbit::cli
