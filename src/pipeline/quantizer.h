#pragma once
// One run of quantize_model.

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "calibrate/calibration.h"
#include "calibrate/recipe.h"
#include "io/json_text.h"
#include "lowbit/quantize.h"
#include "pipeline/calibration_state.h"
#include "pipeline/conversion.h"
#include "runtime/engine.h"

namespace lowbit {

class Quantizer {
 public:
  /// `target` and `run` are those of the calibration's state: its directory's name and what decides the bytes.
  Quantizer(const WeightSource& source, CheckpointWriter& writer, Recipe& recipe, const Engine& engine,
            const QuantizeOptions& options, std::string target, nlohmann::json run);

  Status run();
  /// After the checkpoint is in its place.
  void remove_state() {
    if (state_) state_->remove();
  }

  QuantizeReport report;
  CheckpointInfo info;
  nlohmann::json calibration;  // for config.json; null without a text

 private:
  using Tensors = std::vector<const SourceTensor*>;

  /// run_calibrated(), with an error of its own where memory ends, and a hint at what is kept.
  Status run_guarded();
  Status run_calibrated();
  /// Sets asymmetric_; whether a layer was told to align.
  Result<bool> ask_whether_asymmetric();
  Status choose_formats();
  /// Has the model write the text that it is calibrated on, or takes over what an earlier run had it write.
  Status have_text_written();
  struct BlockRun;
  /// Fits the block's layers, or takes over what an earlier run fitted, and lets the text through them.
  Status calibrate_block(Calibration& text, int64_t block, const Tensors& linears);
  /// Fits its layers to the text's activations: all at once, or, following the source's stream, those of one input
  /// after the other.
  Status measure_and_fit(BlockRun& run);
  Status fit_layers(BlockRun& run, const HessianByWeight& hessian, const Tensors& layers);
  Status check_held_out(Calibration& text);
  /// Names of the weights whose fits need their inputs factored.
  struct ToBeFactored {
    std::vector<std::string> any_order, on_trellis;  // names of weights
  };
  Result<ToBeFactored> to_be_factored(const Tensors& linears) const;
  Result<QTensor> quantize(const SourceTensor& t, const QTensor& w, const LayerInput& input, LayerFit& fit);
  Status finish(const SourceTensor& t, const QTensor& w, const LayerFit& fit);
  Status convert(const SourceTensor& t);

  const WeightSource& source_;
  Recipe& recipe_;
  const Engine& engine_;
  QuantizeOptions options_;
  Conversion conversion_;
  std::string target_;
  nlohmann::json run_;
  const JsonEnd end_run_{run_}, end_calibration_{calibration};
  std::unique_ptr<CalibrationState> state_;
  std::map<std::string, QTensor> embedding_and_head_;  // embedding and head as quantized, for the held-out text
  const char* step_ = "calibrating";                   // for an error
  bool asymmetric_ = false;                            // some layer's fit is asymmetric
  int64_t all_bytes_ = 0, all_elements_ = 0;
};

}  // namespace lowbit
