// A lowbit checkpoint as a WeightSource.
#include <utility>

#include "base/try.h"
#include "io/checkpoint.h"
#include "model/source_kinds.h"

namespace lowbit {
namespace {

class LowbitSource final : public WeightSource {
 public:
  LowbitSource(Checkpoint checkpoint, ModelTexts texts) : checkpoint_(std::move(checkpoint)), texts_(std::move(texts)) {
    for (const auto& t : checkpoint_.tensors()) {
      const FormatInfo& info = format_info(t.format);
      const std::string name =
          info.kind == ValueKind::kDense ? info.name : std::string(info.name) + " " + scaling_name(t.scaling);
      tensors_.push_back({t.name, t.shape, name, t.stored_bytes});
    }
  }
  const std::string& path() const override { return checkpoint_.path(); }
  const char* kind() const override { return "lowbit"; }
  const std::string& config_json() const override { return checkpoint_.config_json(); }
  const std::string& tokenizer_json() const override { return texts_.tokenizer; }
  const std::string& tokenizer_config_json() const override { return texts_.tokenizer_config; }
  const std::string& generation_config_json() const override { return texts_.generation_config; }
  const std::vector<SourceTensor>& tensors() const override { return tensors_; }
  bool has(const std::string& name) const override { return checkpoint_.find(name) != nullptr; }
  Result<QTensor> load(const std::string& name) const override { return checkpoint_.load(name); }
  bool lossless(const std::string&) const override { return true; }
  void release(const std::string& name) const override { checkpoint_.release(name); }

 private:
  Checkpoint checkpoint_;
  ModelTexts texts_;
  std::vector<SourceTensor> tensors_;
};

}  // namespace

Result<std::unique_ptr<WeightSource>> open_lowbit_source(const std::string& path) {
  LOWBIT_TRY_ASSIGN(auto checkpoint, Checkpoint::open(path));
  LOWBIT_TRY_ASSIGN(auto texts, read_model_texts(path));
  return std::unique_ptr<WeightSource>(std::make_unique<LowbitSource>(std::move(checkpoint), std::move(texts)));
}

}  // namespace lowbit
