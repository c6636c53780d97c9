#pragma once
// One function per verb: adds its subcommand; parsing it sets Invocation::action.

#include "command_line.h"
#include "common_options.h"

namespace lowbit::cli {

void add_import_verb(Verb& app, Invocation& invocation);
void add_export_verb(Verb& app, Invocation& invocation);
void add_quantize_verb(Verb& app, Invocation& invocation);
void add_inspect_verb(Verb& app, Invocation& invocation);
void add_verify_verb(Verb& app, Invocation& invocation);
void add_run_verb(Verb& app, Invocation& invocation);
void add_chat_verb(Verb& app, Invocation& invocation);
void add_tokenize_verb(Verb& app, Invocation& invocation);
void add_trace_verb(Verb& app, Invocation& invocation);
void add_eval_verb(Verb& app, Invocation& invocation);
void add_logits_verb(Verb& app, Invocation& invocation);
void add_ppl_verb(Verb& app, Invocation& invocation);
void add_bench_verb(Verb& app, Invocation& invocation);
void add_model_bench(Verb& bench, Invocation& invocation);  // of the verb bench
void add_gru_bench(Verb& bench, Invocation& invocation);    // the same
void add_fp8_bench(Verb& bench, Invocation& invocation);    // the same
void add_doctor_verb(Verb& app, Invocation& invocation);
void add_gru_verb(Verb& app, Invocation& invocation);
void add_report_verb(Verb& app, Invocation& invocation);

}  // namespace lowbit::cli
