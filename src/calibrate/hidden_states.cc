#include "calibrate/hidden_states.h"

#include <algorithm>
#include <utility>

#include "base/try.h"

namespace lowbit {
namespace {

/// Slots as bits.
using Slots = uint32_t;
constexpr Slots bit(Slot slot) { return Slots{1} << slot; }

struct Traffic {
  Slots reads = 0, writes = 0;
};

/// The slots that a step of a block reads before it writes, and those that it writes. Attention changes q and k in
/// place, but no later step reads them.
Traffic traffic_of(const Step& step) {
  Traffic t;
  if (const auto* linear = std::get_if<LinearStep>(&step)) {
    t.reads = bit(linear->in.from);
    for (const Product& p : linear->out) {
      if (p.add) t.reads |= bit(p.to);
      t.writes |= bit(p.to);
    }
  } else if (const auto* glu = std::get_if<GluStep>(&step)) {
    t = {bit(glu->in.from), bit(glu->to)};
  } else if (const auto* attention = std::get_if<AttentionStep>(&step)) {
    t = {bit(attention->q) | bit(attention->k) | bit(attention->v), bit(attention->to)};
  }
  return t;
}

/// The slots that steps [first, last) read before they write them.
Slots needed(const std::vector<Step>& steps, int first, int last) {
  Slots reads = 0, written = 0;
  for (int i = first; i < last; ++i) {
    const Traffic t = traffic_of(steps[static_cast<size_t>(i)]);
    reads |= t.reads & ~written;
    written |= t.writes;
  }
  return reads;
}

Slots written(const std::vector<Step>& steps, int first, int last) {
  Slots slots = 0;
  for (int i = first; i < last; ++i) slots |= traffic_of(steps[static_cast<size_t>(i)]).writes;
  return slots;
}

/// The slots needed before `step` of a block, whose result is the stream.
Slots live(const std::vector<Step>& steps, int step) {
  return needed(steps, step, static_cast<int>(steps.size())) | bit(kStream);
}

/// Whether nothing but the stream is needed before `step`.
bool needs_stream_alone(const std::vector<Step>& steps, int step) { return live(steps, step) == bit(kStream); }

bool attends(const std::vector<Step>& steps, int first, int last) {
  return std::any_of(steps.begin() + first, steps.begin() + last,
                     [](const Step& step) { return std::holds_alternative<AttentionStep>(step); });
}

/// An observer sees the rows of a workspace for as long as this lives.
class Watch {
 public:
  Watch(Workspace& work, TapObserver observer) : work_(work) { work_.set_observer(std::move(observer)); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  ~Watch() { work_.set_observer({}); }

 private:
  Workspace& work_;
};

/// In a program of one block a tap is the role of its input.
TapObserver by_role(const RowUse& use) {
  if (!use) return {};
  return [&use](int tap, const float* x, int64_t m, int64_t k) { return use(static_cast<InputRole>(tap), x, m, k); };
}

constexpr int step_of(InputRole role) { return kInputSteps[static_cast<size_t>(role)]; }

double share_of(const RowRange& range, int64_t rows) {
  return static_cast<double>(range.first) / static_cast<double>(rows);
}

}  // namespace

Result<HiddenStates> HiddenStates::make(Backend& backend, int64_t sequences, int64_t context, int64_t hidden,
                                        int64_t most_between, RowFormat format) {
  HiddenStates states;
  states.backend_ = &backend;
  states.sequences_ = sequences;
  states.context_ = context;
  states.hidden_ = hidden;
  states.most_between_ = most_between;
  LOWBIT_TRY_ASSIGN(states.stream_, backend.allocate_rows(sequences * context * hidden, format, "hidden states"));
  return states;
}

Status HiddenStates::write(int64_t first, std::span<const float> from) {
  return backend_->upload(from, stream_, first * hidden_);
}

Status HiddenStates::read(int64_t first, std::span<float> to) const {
  return backend_->download(stream_, first * hidden_, to);
}

Status HiddenStates::copy_from(const HiddenStates& other) {
  const auto copy = [&](const RowBuffer& from, RowBuffer& to) -> Status {
    if (to.bytes.size() < from.bytes.size()) {
      LOWBIT_TRY_ASSIGN(to, backend_->allocate_rows(from.numbers, from.format, "hidden states"));
    }
    std::vector<float> host(static_cast<size_t>(from.numbers));
    LOWBIT_TRY(backend_->download(from, 0, host));
    return backend_->upload(host, to, 0);
  };
  step_ = other.step_;
  stream_step_ = other.stream_step_;
  kept_ = other.kept_;
  LOWBIT_TRY(copy(other.stream_, stream_));
  return copy(other.between_, between_);
}

Status HiddenStates::run_batch(BlockProgram& program, BatchRoom& room, const Range& range,
                               const AtStep& at_step) const {
  const auto& steps = program.steps();
  const bool shows = at_step && range.at < kBlockSteps;
  const Slots slots = needed(steps, range.first, std::max(range.last, shows ? range.at + 1 : 0));
  for (Slot slot = 0; slot < kModelSlots; ++slot)
    if ((slots & bit(slot)) != 0)
      LOWBIT_TRY(room.work().load(slot, 0, range.rows.rows, rows_of(slot), range.rows.first * room.width(slot)));
  const bool attending = attends(steps, range.first, range.last);
  LOWBIT_TRY_ASSIGN(const Batch batch, room.begin(program.source(), range.rows, attending));
  LOWBIT_TRY_ASSIGN(const Program* const compiled, program.compiled());
  LOWBIT_TRY(compiled->run(room.work(), batch, range.first, range.at));
  if (at_step) LOWBIT_TRY(at_step(*compiled, batch));
  LOWBIT_TRY(compiled->run(room.work(), batch, range.at, range.last));
  if (attending) room.end();
  return {};
}

int64_t HiddenStates::sequences_kept(const BlockProgram& program, const BatchRoom& room, int step) const {
  int64_t kept = sequences_;
  for (Slot slot = 0; slot < kModelSlots; ++slot)
    if (slot != kStream && (live(program.steps(), step) & bit(slot)) != 0)
      kept = std::min(kept, most_between_ / (context_ * room.width(slot) * int64_t(sizeof(float))));
  return kept;
}

void HiddenStates::stopped_at(const BlockProgram& program, int step, int64_t kept) {
  step_ = step == kBlockSteps ? 0 : step;
  if (needs_stream_alone(program.steps(), step)) stream_step_ = step_;
  kept_ = kept;
}

Status HiddenStates::keep(const BlockProgram& program, BatchRoom& room, const Range& range, int64_t kept) {
  const auto& steps = program.steps();
  const Slots slots = live(steps, range.last) & written(steps, range.first, range.last);
  for (Slot slot = 0; slot < kModelSlots; ++slot) {
    if ((slots & bit(slot)) == 0 || (slot != kStream && !are_kept(range.rows, kept))) continue;
    if (slot != kStream && between_.numbers < kept * context_ * room.width(slot)) {
      // Room for the wider of the two, so that there is never one for each.
      const int64_t floats = rows() * std::max(room.width(kAttended), room.width(kGated));
      LOWBIT_TRY_ASSIGN(between_, backend_->allocate_rows(std::min(floats, most_between_ / int64_t(sizeof(float))),
                                                          RowFormat::kF32, "rows between two steps"));
    }
    RowBuffer& to = slot == kStream ? stream_ : between_;
    LOWBIT_TRY(room.work().save(slot, 0, range.rows.rows, to, range.rows.first * room.width(slot)));
  }
  return {};
}

Status HiddenStates::run(BlockProgram& program, BatchRoom& room, int last, const BeforeBatch& before,
                         const RowUse& use) {
  int through = step_ + 1;
  while (through < last && !needs_stream_alone(program.steps(), through)) ++through;
  // By way of the stream: rows that are kept for `last` would overwrite those that are needed until there. A rounded
  // stream has the same bits however a block is cut into runs.
  if (through < last && (stream_.format != RowFormat::kF32 || !needs_stream_alone(program.steps(), last)))
    LOWBIT_TRY(run(program, room, through, before, use));
  const Watch watch(room.work(), by_role(use));
  const int64_t kept = sequences_kept(program, room, last);
  for (const RowRange& rows : room.batches(sequences_)) {
    if (before) LOWBIT_TRY(before(share_of(rows, this->rows())));
    const Range range{rows, begin_of(rows), last, last};
    LOWBIT_TRY(run_batch(program, room, range, {}));
    LOWBIT_TRY(keep(program, room, range, kept));
  }
  stopped_at(program, last, kept);
  return {};
}

Status HiddenStates::show_inputs(BlockProgram& program, BatchRoom& room, const BeforeBatch& before,
                                 const RowUse& use) const {
  const Watch watch(room.work(), by_role(use));
  const int last = step_of(InputRole::kDown);
  for (const RowRange& rows : room.batches(sequences_)) {
    if (before) LOWBIT_TRY(before(share_of(rows, this->rows())));
    LOWBIT_TRY(run_batch(program, room, {rows, 0, last, last}, [&](const Program& compiled, const Batch& batch) {
      return compiled.show(room.work(), batch, last);
    }));
  }
  return {};
}

Status HiddenStates::compare_inputs(const Side& source, const Side& quantized, InputRole role,
                                    const BeforeBatch& before, HessianSum& sum) {
  const int at = step_of(role);
  const auto& steps = source.program.steps();
  int next = at;
  while (!needs_stream_alone(steps, next)) ++next;
  const bool on_stream = adds_to_stream(role);
  RowBuffer y_stream, z_stream;  // of a batch
  const std::vector<RowRange> batches = source.room.batches(source.states.sequences_);
  for (RowBuffer* stream : {&y_stream, &z_stream}) {
    if (!on_stream) break;
    const int64_t rows = std::ranges::max(batches, {}, &RowRange::rows).rows;
    LOWBIT_TRY_ASSIGN(
        *stream, source.states.backend_->allocate_rows(rows * source.states.hidden_, RowFormat::kF32, "hidden states"));
  }
  const int64_t kept = quantized.states.sequences_kept(quantized.program, quantized.room, at);
  for (const RowRange& rows : batches) {
    if (before) LOWBIT_TRY(before(share_of(rows, source.states.rows())));
    const Range ours{rows, source.states.step_, on_stream ? next : at, next},
        theirs{rows, quantized.states.begin_of(rows), at, at};
    Workspace &y_work = source.room.work(), &x_work = quantized.room.work();
    /// y and x at the same time: each is there while its observer is asked.
    const auto add_inputs = [&](const Program& of_source, const Batch& y_batch, const Program& of_quantized,
                                const Batch& x_batch) {
      const Watch watch_y(y_work, [&](int, const float* y, int64_t, int64_t) {
        const Watch watch_x(x_work, [&](int, const float* x, int64_t m, int64_t) { return sum.add(x, y, x, m); });
        return of_quantized.show(x_work, x_batch, at);
      });
      return of_source.show(y_work, y_batch, at);
    };
    /// The source is behind the layer; the other side goes there and keeps the input, from which the layer that is to
    /// be fitted runs again.
    const auto add_streams = [&](const Program& of_quantized, const Batch& x_batch) -> Status {
      LOWBIT_TRY(y_work.save(kStream, 0, rows.rows, y_stream, 0));
      LOWBIT_TRY(of_quantized.run(x_work, x_batch, at, at + 1));
      LOWBIT_TRY(x_work.save(kStream, 0, rows.rows, z_stream, 0));
      const Watch watch(x_work, [&](int, const float* x, int64_t m, int64_t) {
        return sum.add(x, y_stream.bytes.as<float>(), z_stream.bytes.as<float>(), m);
      });
      return of_quantized.show(x_work, x_batch, at);
    };
    const auto add_both = [&](const Program& of_source, const Batch& y_batch) {
      return quantized.states.run_batch(quantized.program, quantized.room, theirs,
                                        [&](const Program& of_quantized, const Batch& x_batch) {
                                          return on_stream ? add_streams(of_quantized, x_batch)
                                                           : add_inputs(of_source, y_batch, of_quantized, x_batch);
                                        });
    };
    LOWBIT_TRY(source.states.run_batch(source.program, source.room, ours, add_both));
    LOWBIT_TRY(source.states.keep(source.program, source.room, ours, 0));
    LOWBIT_TRY(quantized.states.keep(quantized.program, quantized.room, theirs, kept));
  }
  source.states.stopped_at(source.program, next, 0);
  quantized.states.stopped_at(quantized.program, at, kept);
  return {};
}

}  // namespace lowbit
