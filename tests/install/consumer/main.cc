// Every public header, and one call through the library.
#include <cstdio>

#include "lowbit/bench.h"
#include "lowbit/chat_template.h"
#include "lowbit/compute.h"
#include "lowbit/dense.h"
#include "lowbit/error.h"
#include "lowbit/evaluate.h"
#include "lowbit/file.h"
#include "lowbit/format.h"
#include "lowbit/format_id.h"
#include "lowbit/gru.h"
#include "lowbit/lowbit.h"
#include "lowbit/model.h"
#include "lowbit/quantize.h"
#include "lowbit/sampling.h"
#include "lowbit/tensor.h"
#include "lowbit/tokenizer.h"
#include "lowbit/trace.h"

int main() {
  const auto model = lowbit::Model::open("no such file", {});
  if (model) return 1;
  std::printf("%s: %zu formats; %s\n", lowbit::version(), lowbit::formats().size(), model.error().message().c_str());
  return lowbit::kernels().empty() ? 1 : 0;
}
