// Blocks of a calibration on a GPU.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/try.h"
#include "kernels/cuda_api.h"
#include "kernels/cuda_block_api.h"
#include "model/device_block.h"
#include "pipeline/block_runner.h"
#include "pipeline/device_moment_sum.h"

namespace lowbit {
namespace {

constexpr auto kFloat = int64_t{sizeof(float)};

/// Some bytes of a buffer on the device.
Buffer part_of(const Buffer& whole, int64_t floats, size_t count) {
  const auto bytes =
      const_cast<Buffer&>(whole).span().subspan(static_cast<size_t>(floats * kFloat), count * sizeof(float));
  return Buffer::borrow(bytes, std::make_shared<Buffer>(whole), Device::kCuda);
}

class DeviceRunner final : public BlockRunner {
 public:
  static Result<std::unique_ptr<BlockRunner>> make(const ModelSpec& spec, int64_t context, int64_t most_windows,
                                                   const Engine& engine) {
    LOWBIT_TRY(cuda::use_device(engine.gpu));
    auto runner = std::make_unique<DeviceRunner>(spec, context, engine);
    LOWBIT_TRY_ASSIGN(runner->work_, DeviceBlockWorkspace::make(spec, context, most_windows, *engine.pool));
    LOWBIT_TRY_ASSIGN(runner->x_, runner->allocate(runner->work_.windows()));
    return std::unique_ptr<BlockRunner>(std::move(runner));
  }
  DeviceRunner(const ModelSpec& spec, int64_t context, const Engine& engine)
      : spec_(spec), context_(context), pool_(engine.pool.get()) {}

  Result<Buffer> allocate(int64_t windows) override {
    return cuda::allocate(windows * floats_per_window() * kFloat, "hidden states");
  }
  Status write(Buffer& states, int64_t floats, std::span<const float> from) override {
    Buffer part = part_of(states, floats, from.size());
    return cuda::upload(part, from.data(), part.size());
  }
  Status read(const Buffer& states, int64_t floats, std::span<float> to) override {
    const Buffer part = part_of(states, floats, to.size());
    return cuda::download(to.data(), part, part.size());
  }

  Status load(const WeightSource& source, int64_t block) override {
    block_.reset();  // one block in device memory at a time
    LOWBIT_TRY_ASSIGN(DeviceBlock loaded, DeviceBlock::load(source, spec_, block, *pool_));
    block_ = std::make_unique<DeviceBlock>(std::move(loaded));
    measured_ = measured_layers(spec_, block);
    return {};
  }

  Result<std::vector<SecondMoments>> measure(const Buffer& states, const BeforeWindow& before) override {
    std::map<std::string, DeviceMomentSum> sums;
    for (const std::string& name : measured_) sums.try_emplace(name);
    const DeviceObserver observer = [&](const DeviceLinear& layer, const float* x, int64_t m) -> Status {
      const auto it = sums.find(layer.name());
      return it == sums.end() ? Status{} : it->second.add(x, nullptr, m, layer.k());
    };
    LOWBIT_TRY(each_batch(states, before,
                          [&](int64_t first, int64_t windows) { return run_copy(states, first, windows, observer); }));
    std::vector<SecondMoments> moments;
    for (const std::string& name : measured_) {
      LOWBIT_TRY_ASSIGN(auto measured, sums.at(name).finish(name));
      moments.push_back(std::move(measured));
    }
    return moments;
  }

  Status follow(Buffer& source, const BeforeWindow& before) override {
    followed_.clear();
    followed_.resize(measured_.size());
    const int64_t all = rows_of(source);
    std::vector<int64_t> used(followed_.size());
    const DeviceObserver observer = [&](const DeviceLinear& layer, const float* x, int64_t m) -> Status {
      for (size_t i = 0; i < followed_.size(); ++i) {
        if (layer.name() != measured_[i]) continue;
        if (followed_[i].empty()) {
          LOWBIT_TRY_ASSIGN(followed_[i], cuda::allocate(all * layer.k() * kFloat, "inputs of the source's stream"));
        }
        LOWBIT_TRY(cuda::copy_floats(x, m * layer.k(), followed_[i].as<float>() + used[i], nullptr));
        used[i] += m * layer.k();
      }
      return {};
    };
    const auto run = [&](int64_t first, int64_t windows) {
      return block_->run(work_, source.as<float>() + first * floats_per_window(), windows, observer);
    };
    return each_batch(source, before, run);
  }

  Result<SecondMoments> measure_followed(const Buffer& states, size_t which, const BeforeWindow& before) override {
    const Buffer followed = std::move(followed_[which]);
    const std::string& wanted = measured_[which];
    DeviceMomentSum sum;
    const float* y = followed.as<float>();
    const DeviceObserver observer = [&](const DeviceLinear& layer, const float* x, int64_t m) -> Status {
      if (layer.name() != wanted) return {};
      LOWBIT_TRY(sum.add(x, y, m, layer.k()));
      y += m * layer.k();
      return {};
    };
    LOWBIT_TRY(each_batch(states, before,
                          [&](int64_t first, int64_t windows) { return run_copy(states, first, windows, observer); }));
    return sum.finish(wanted);
  }

  Status advance(Buffer& states, const BeforeWindow& before, const LinearObserver& observer) override {
    DeviceObserver on_device;
    std::vector<float> rows;
    if (observer)
      on_device = [&](const DeviceLinear& layer, const float* x, int64_t m) -> Status {
        rows.resize(static_cast<size_t>(m * layer.k()));
        auto* const bytes = reinterpret_cast<std::byte*>(const_cast<float*>(x));
        LOWBIT_TRY(cuda::download(rows.data(), Buffer::borrow({bytes, 4 * rows.size()}, nullptr, Device::kCuda),
                                  int64_t(4 * rows.size())));
        observer(layer.name(), rows.data(), m, layer.k());
        return {};
      };
    const auto run = [&](int64_t first, int64_t windows) {
      return block_->run(work_, states.as<float>() + first * floats_per_window(), windows, on_device);
    };
    return each_batch(states, before, run);
  }

 private:
  int64_t floats_per_window() const { return context_ * spec_.hidden_size; }
  int64_t rows_of(const Buffer& states) const { return states.size() / (spec_.hidden_size * kFloat); }

  /// Without keeping what comes out.
  Status run_copy(const Buffer& states, int64_t first, int64_t windows, const DeviceObserver& observer) {
    const float* const from = states.as<float>() + first * floats_per_window();
    LOWBIT_TRY(cuda::copy_floats(from, windows * floats_per_window(), x_.as<float>(), nullptr));
    return block_->run(work_, x_.as<float>(), windows, observer);
  }

  /// As many windows at a time as the workspace takes.
  Status each_batch(const Buffer& states, const BeforeWindow& before,
                    const std::function<Status(int64_t first, int64_t windows)>& run) const {
    const int64_t all = states.size() / (floats_per_window() * kFloat);
    for (int64_t first = 0; first < all; first += work_.windows()) {
      if (before) LOWBIT_TRY(before(first));
      LOWBIT_TRY(run(first, std::min(work_.windows(), all - first)));
      LOWBIT_TRY(cuda::synchronize(nullptr));  // so that progress is what has happened
    }
    return {};
  }

  ModelSpec spec_;
  int64_t context_;
  std::vector<std::string> measured_;  // layers of the loaded block
  ThreadPool* pool_;
  DeviceBlockWorkspace work_;
  Buffer x_;                      // what measure() runs on
  std::vector<Buffer> followed_;  // by input: rows of the source's stream
  std::unique_ptr<DeviceBlock> block_;
};

}  // namespace

Result<std::unique_ptr<BlockRunner>> make_device_runner(const ModelSpec& spec, int64_t context, int64_t most_windows,
                                                        const Engine& engine) {
  return DeviceRunner::make(spec, context, most_windows, engine);
}

}  // namespace lowbit
