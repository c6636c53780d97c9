// lowbit gru calibrate | quantize | tune | search | encodings | run | verify: recurrent networks on integers only.

#include "gru_files.h"

namespace lowbit::cli {

void add_gru_verb(Verb& app, Invocation& invocation) {
  Verb* gru = app.add_subcommand("gru", "Recurrent networks (GRU) on integers only");
  gru->set_help_flag("-h,--help", "this text");
  gru->require_subcommand(1);
  add_gru_calibrate(*gru, invocation);
  add_gru_quantize(*gru, invocation);
  add_gru_tune(*gru, invocation);
  add_gru_search(*gru, invocation);
  add_gru_encodings(*gru, invocation);
  add_gru_run(*gru, invocation);
  add_gru_verify(*gru, invocation);
}

}  // namespace lowbit::cli
