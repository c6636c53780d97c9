#pragma once
// One function per verb: adds its subcommand; parsing it sets Invocation::action.

#include <CLI/CLI.hpp>

#include "common_options.h"

namespace lowbit::cli {

void add_import_verb(CLI::App& app, Invocation& invocation);
void add_export_verb(CLI::App& app, Invocation& invocation);
void add_quantize_verb(CLI::App& app, Invocation& invocation);
void add_inspect_verb(CLI::App& app, Invocation& invocation);
void add_verify_verb(CLI::App& app, Invocation& invocation);
void add_run_verb(CLI::App& app, Invocation& invocation);
void add_chat_verb(CLI::App& app, Invocation& invocation);
void add_tokenize_verb(CLI::App& app, Invocation& invocation);
void add_trace_verb(CLI::App& app, Invocation& invocation);
void add_eval_verb(CLI::App& app, Invocation& invocation);
void add_logits_verb(CLI::App& app, Invocation& invocation);
void add_ppl_verb(CLI::App& app, Invocation& invocation);
void add_bench_verb(CLI::App& app, Invocation& invocation);
void add_model_bench(CLI::App& bench, Invocation& invocation);  // of the verb bench
void add_gru_bench(CLI::App& bench, Invocation& invocation);    // the same
void add_fp8_bench(CLI::App& bench, Invocation& invocation);    // the same
void add_doctor_verb(CLI::App& app, Invocation& invocation);
void add_gru_verb(CLI::App& app, Invocation& invocation);
void add_report_verb(CLI::App& app, Invocation& invocation);

}  // namespace lowbit::cli
