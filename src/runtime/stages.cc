#include "runtime/stages.h"

#include <algorithm>

#include "base/try.h"

namespace lowbit {

std::vector<StagePlan> plan_stages(int64_t blocks, std::span<const int> gpus, int64_t gpu_layers) {
  const int64_t on_gpus = gpus.empty() ? 0 : gpu_layers < 0 ? blocks : std::min(gpu_layers, blocks);
  std::vector<StagePlan> plans;
  const auto add = [&](int gpu, int64_t first, int64_t last) {
    if (first < last) plans.push_back({gpu, first, last});
  };
  const int64_t on_cpu = blocks - on_gpus, count = int64_t(gpus.size());
  add(-1, 0, on_cpu);
  for (int64_t g = 0; g < count; ++g)
    add(gpus[size_t(g)], on_cpu + on_gpus * g / count, on_cpu + on_gpus * (g + 1) / count);
  if (plans.empty()) plans.push_back({gpus.empty() ? -1 : gpus.front(), 0, 0});  // a model without blocks
  return plans;
}

Result<Stages> Stages::make(const std::vector<StagePlan>& plans, const MakeBackend& make) {
  Stages stages;
  for (const StagePlan& plan : plans) {
    Stage stage;
    stage.plan = plan;
    LOWBIT_TRY_ASSIGN(stage.backend, make(plan.gpu));
    stages.stages_.push_back(std::move(stage));
  }
  stages.free_at_first_ = stages.free_memory();
  return stages;
}

size_t Stages::stage_of(int64_t block) const {
  size_t s = 0;
  while (s + 1 < stages_.size() && block >= stages_[s].plan.last) ++s;
  return s;
}

BatchSize Stages::batch_size() const {
  BatchSize least = stages_.front().backend->batch_size();
  for (const Stage& s : stages_) {
    const BatchSize own = s.backend->batch_size();
    least = {std::min(least.rows, own.rows), std::min(least.bytes, own.bytes),
             std::min(least.session_rows, own.session_rows), std::min(least.session_bytes, own.session_bytes)};
  }
  return least;
}

Status Stages::compile(std::span<const Step> steps, const Limits& limits, bool exact) {
  exact_ = exact;
  width_ = limits.widths[kStream];
  for (size_t s = 0; s < stages_.size(); ++s) {
    Stage& stage = stages_[s];
    // Behind the embedding.
    const int64_t first = s == 0 ? 0 : 1 + stage.plan.first * kBlockSteps;
    const int64_t last = s + 1 == stages_.size() ? int64_t(steps.size()) : 1 + stage.plan.last * kBlockSteps;
    stage.steps.assign(steps.begin() + first, steps.begin() + last);
    LOWBIT_TRY_ASSIGN(stage.program, stage.backend->compile(stage.steps, {.exact = exact_}));
    LOWBIT_TRY_ASSIGN(stage.work, stage.backend->workspace(stage.steps, limits));
  }
  if (stages_.size() > 1) rows_.resize(size_t(limits.rows * width_));
  return {};
}

Result<const Program*> Stages::program(Stage& stage, bool taps) {
  if (!taps) return stage.program.get();
  if (stage.with_taps == nullptr) {
    LOWBIT_TRY_ASSIGN(stage.with_taps, stage.backend->compile(stage.steps, {.taps = true, .exact = exact_}));
  }
  return stage.with_taps.get();
}

Status Stages::run(const Batch& batch, bool taps) {
  for (size_t s = 0; s < stages_.size(); ++s) {
    Stage& stage = stages_[s];
    LOWBIT_TRY_ASSIGN(const Program* const program, this->program(stage, taps));
    const bool last = s + 1 == stages_.size();
    if (s > 0) LOWBIT_TRY(stage.work->write(kStream, 0, batch.rows(), rows_.data()));
    LOWBIT_TRY(program->run(*stage.work, last ? batch : Batch{batch.tokens, batch.sequences, {}}, 0, program->steps()));
    if (!last) LOWBIT_TRY(stage.work->read(kStream, 0, batch.rows(), rows_.data()));
  }
  return {};
}

void Stages::set_observer(const TapObserver& observer) {
  for (Stage& stage : stages_) {
    if (!observer || stage.backend->shows_rows_on_host()) {
      stage.work->set_observer(observer);
      continue;
    }
    stage.work->set_observer([backend = stage.backend.get(), observer, rows = std::vector<float>()](
                                 int tap, const float* x, int64_t m, int64_t k) mutable -> Status {
      rows.resize(size_t(m * k));
      auto* const bytes = reinterpret_cast<std::byte*>(const_cast<float*>(x));
      const Buffer shown = Buffer::borrow({bytes, rows.size() * sizeof(float)}, nullptr, Device::kCuda);
      LOWBIT_TRY(backend->download(shown, 0, rows));
      return observer(tap, rows.data(), m, k);
    });
  }
}

void Stages::set_profile(Profile* profile) {
  for (Stage& stage : stages_) stage.work->set_profile(profile);
}

int64_t Stages::workspace_bytes() const {
  int64_t total = int64_t(rows_.size() * sizeof(float));
  for (const Stage& stage : stages_) total += stage.work->bytes();
  return total;
}

int64_t Stages::free_memory() const {
  int64_t total = 0;
  std::vector<int> counted;
  for (const Stage& s : stages_) {
    if (std::ranges::count(counted, s.plan.gpu) > 0) continue;
    counted.push_back(s.plan.gpu);
    total += s.backend->free_memory().value_or(0);
  }
  return total;
}

int64_t Stages::device_bytes() const { return free_at_first_ - free_memory(); }

std::vector<KvGroup> Stages::split(std::vector<KvGroup> groups) const {
  std::vector<KvGroup> all;
  for (KvGroup& group : groups) {
    const std::vector<int> layers = std::move(group.layers);
    for (size_t s = 0; s < stages_.size(); ++s) {
      group.layers.clear();
      std::ranges::copy_if(layers, std::back_inserter(group.layers), [&](int layer) { return stage_of(layer) == s; });
      if (!group.layers.empty()) all.push_back(group);
    }
  }
  return all;
}

Result<std::shared_ptr<KvPool>> Stages::make_pool(std::vector<KvGroup> groups, int64_t max_pages,
                                                  int64_t slab_pages) const {
  std::vector<KvPageMemory> memories;
  for (const KvGroup& group : groups)
    memories.push_back(stages_[stage_of(group.layers.front())].backend->kv_page_memory());
  return KvPool::make(std::move(groups), max_pages, slab_pages, std::move(memories));
}

}  // namespace lowbit
