#pragma once
// The finished blocks of a calibration under way, kept beside the target so that a killed run can go on.

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "calibrate/layer_fit.h"
#include "format/qtensor.h"
#include "lowbit/error.h"

namespace lowbit {

struct FinishedBlock {
  std::map<std::string, QTensor> weights;  // by tensor name
  std::map<std::string, LayerFit> fits;
};

/// The directory TARGET.calibration: run.json names source, text and options; block-N is a checkpoint of block N's
/// linear layers, with checksums, that appears whole or not at all, block-N.json what was measured of them.
class CalibrationState {
 public:
  /// `run`: whatever decides the bytes. `discard`: a directory of another run is emptied instead of refused, as one
  /// always is whose result was refused or that has none. Errors: kInvalidArgument (another run's state; another
  /// process at work), kIo.
  static Result<std::unique_ptr<CalibrationState>> open(const std::string& target, const nlohmann::json& run,
                                                        bool discard);
  /// Removes the directory where nothing was done.
  ~CalibrationState();
  CalibrationState(const CalibrationState&) = delete;
  CalibrationState& operator=(const CalibrationState&) = delete;

  const std::string& path() const { return path_; }
  /// Whether something is done that the next run would take over.
  bool has_results() const;

  /// Block i, if it is there and undamaged.
  bool load(int64_t block, FinishedBlock& out) const;
  Status save(int64_t block, const FinishedBlock& finished) const;
  /// Some JSON of the run under a name of its own, written whole or not at all; null when it is absent or damaged.
  nlohmann::json load_json(const std::string& name) const;
  Status save_json(const std::string& name, const nlohmann::json& value) const;

  /// The run has ended and its result was refused as broken: other options may take its place.
  Status mark_refused() const;
  /// After success.
  void remove();

 private:
  CalibrationState(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}
  std::string block_path(int64_t block) const;

  std::string path_;
  int lock_ = -1;
  bool is_ours_ = false;  // of this run, by the lock and by run.json
};

}  // namespace lowbit
