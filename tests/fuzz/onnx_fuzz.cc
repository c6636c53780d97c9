// GRU nodes of ONNX files.
#include "fuzz_file.h"
#include "fuzz_limits.h"
#include "gru/gate_order.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, size_t size) {
  const lowbit::fuzz::TimeLimit limit;
  const lowbit::fuzz::FuzzFile input(data, size);
  (void)lowbit::load_onnx_gru(input.path(), "");
  (void)lowbit::load_onnx_gru(input.path(), "gru1");
  return 0;
}
