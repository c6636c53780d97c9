#include "pipeline/conversion.h"

#include <vector>

#include "base/float.h"

namespace lowbit {

Result<QTensor> to_bf16(const QTensor& w) {
  QTensor out;
  out.format = FormatId::kBf16;
  out.n = w.n;
  out.k = w.k;
  LOWBIT_TRY_ASSIGN(out.codes, Buffer::allocate(2 * w.n * w.k, "bf16 weights"));
  std::vector<float> row(static_cast<size_t>(w.k));
  auto* to = out.codes.as<uint16_t>();
  for (int64_t r = 0; r < w.n; ++r) {
    dequantize_rows(w, r, 1, row.data());
    for (float v : row) *to++ = f32_to_bf16(v);
  }
  return out;
}

Status copy_side_files(const WeightSource& source, CheckpointWriter& writer) {
  LOWBIT_TRY(source.tokenizer_status());
  if (!source.tokenizer_json().empty()) LOWBIT_TRY(writer.add_file("tokenizer.json", source.tokenizer_json()));
  if (!source.tokenizer_config_json().empty())
    LOWBIT_TRY(writer.add_file("tokenizer_config.json", source.tokenizer_config_json()));
  if (!source.generation_config_json().empty())
    LOWBIT_TRY(writer.add_file("generation_config.json", source.generation_config_json()));
  return {};
}

}  // namespace lowbit
