// Blocks of a calibration on the CPU.

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "base/try.h"
#include "pipeline/block_runner.h"
#include "runtime/transformer.h"

namespace lowbit {
namespace {

constexpr auto kFloat = int64_t{sizeof(float)};

class HostRunner final : public BlockRunner {
 public:
  HostRunner(const ModelSpec& spec, int64_t context, const Engine& engine)
      : spec_(spec), hidden_(spec.hidden_size), context_(context), isa_(engine.isa), threads_(engine.threads) {}

  Result<Buffer> allocate(int64_t windows) override {
    return Buffer::allocate(windows * floats_per_window() * kFloat, "hidden states");
  }
  Status write(Buffer& states, int64_t floats, std::span<const float> from) override {
    std::copy(from.begin(), from.end(), states.as<float>() + floats);
    return {};
  }
  Status read(const Buffer& states, int64_t floats, std::span<float> to) override {
    std::copy_n(states.as<float>() + floats, to.size(), to.begin());
    return {};
  }

  Status load(const WeightSource& source, int64_t block) override {
    LoadOptions load;
    load.x.activation = Activation::kF32;
    load.isa = isa_;
    load.threads = threads_;
    load.context = context_;
    load.only_block = block;
    model_.reset();
    LOWBIT_TRY_ASSIGN(model_, Transformer::load(source, load));
    LOWBIT_TRY_ASSIGN(KvCache cache, model_->make_cache());
    cache_ = std::make_unique<KvCache>(std::move(cache));
    backend_ = make_cpu_backend(isa_, model_->pool(), false);
    measured_ = measured_layers(spec_, block);
    return {};
  }

  Result<std::vector<SecondMoments>> measure(const Buffer& states, const BeforeWindow& before) override {
    std::map<std::string, std::unique_ptr<MomentSum>> sums;
    std::optional<Error> failure;
    model_->set_observer([&](const std::string& name, const float* x, int64_t m, int64_t k) {
      if (failure || std::ranges::find(measured_, name) == measured_.end()) return;
      std::unique_ptr<MomentSum>& sum = sums[name];
      if (!sum) sum = std::move(*backend_->moment_sum(k, false));
      if (auto status = sum->add(x, nullptr, m); !status) failure = std::move(status.error());
    });
    for (int64_t i = 0; i < windows_of(states) && !failure; ++i) {
      if (before) LOWBIT_TRY(before(i));
      LOWBIT_TRY(model_->show_block_input(window(states, i), *cache_, InputRole::kDown));  // and those before it
    }
    model_->set_observer({});
    if (failure) return tl::unexpected<Error>(std::move(*failure));
    std::vector<SecondMoments> moments;
    for (const std::string& name : measured_) {
      LOWBIT_TRY_ASSIGN(auto measured, sums.at(name)->finish(name));
      moments.push_back(std::move(measured));
    }
    return moments;
  }

  Status follow(Buffer& source, const BeforeWindow& before) override {
    followed_.assign(measured_.size(), {});
    const int64_t rows_of_all = windows_of(source) * context_;
    return advance(source, before, [&](const std::string& name, const float* x, int64_t m, int64_t k) {
      for (size_t i = 0; i < followed_.size(); ++i) {
        if (name != measured_[i]) continue;
        followed_[i].reserve(static_cast<size_t>(rows_of_all * k));
        followed_[i].insert(followed_[i].end(), x, x + m * k);
      }
    });
  }

  Result<SecondMoments> measure_followed(const Buffer& states, size_t which, const BeforeWindow& before) override {
    const std::vector<float> followed = std::move(followed_[which]);
    const std::string& wanted = measured_[which];
    std::unique_ptr<MomentSum> sum;
    std::optional<Error> failure;
    const float* y = followed.data();
    model_->set_observer([&](const std::string& name, const float* x, int64_t m, int64_t k) {
      if (name != wanted || failure) return;
      if (!sum) sum = std::move(*backend_->moment_sum(k, true));
      if (auto status = sum->add(x, y, m); !status) failure = std::move(status.error());
      y += m * k;
    });
    for (int64_t i = 0; i < windows_of(states) && !failure; ++i) {
      if (before) LOWBIT_TRY(before(i));
      LOWBIT_TRY(model_->show_block_input(window(states, i), *cache_, static_cast<InputRole>(which)));
    }
    model_->set_observer({});
    if (failure) return tl::unexpected<Error>(std::move(*failure));
    return sum->finish(wanted);
  }

  Status advance(Buffer& states, const BeforeWindow& before, const LinearObserver& observer) override {
    model_->set_observer(observer);
    for (int64_t i = 0; i < windows_of(states); ++i) {
      if (before) LOWBIT_TRY(before(i));
      const auto size = static_cast<size_t>(floats_per_window());
      LOWBIT_TRY(model_->run_block({states.as<float>() + i * floats_per_window(), size}, *cache_));
    }
    model_->set_observer({});
    return {};
  }

 private:
  int64_t floats_per_window() const { return context_ * hidden_; }
  std::span<const float> window(const Buffer& states, int64_t index) const {
    return {states.as<float>() + index * floats_per_window(), static_cast<size_t>(floats_per_window())};
  }
  int64_t windows_of(const Buffer& states) const { return states.size() / (floats_per_window() * kFloat); }

  ModelSpec spec_;
  int64_t hidden_, context_;
  std::vector<std::string> measured_;         // layers of the loaded block
  std::vector<std::vector<float>> followed_;  // by input: rows of the source's stream
  Isa isa_;
  int threads_;
  std::unique_ptr<Transformer> model_;
  std::unique_ptr<Backend> backend_;  // its sums
  std::unique_ptr<KvCache> cache_;
};

}  // namespace

Result<std::unique_ptr<BlockRunner>> make_host_runner(const ModelSpec& spec, int64_t context, const Engine& engine) {
  return std::make_unique<HostRunner>(spec, context, engine);
}

}  // namespace lowbit
