#include "gru/model.h"

#include <algorithm>

#include "base/try.h"
#include "gru/ranges.h"
#include "gru/table.h"

namespace lowbit {
namespace {

struct Level {
  Isa isa;
  const GruKernel* kernel;
};

// Weakest first.
const Level kLevels[] = {
    {Isa::kScalar, &kRefGru},
#if defined(__x86_64__)
    {Isa::kAvx2, &kAvx2Gru},
    {Isa::kAvx512, &kAvx512Gru},
    {Isa::kAmx, &kAmxGru},
#endif
};

int64_t packed_weight_bytes(const GruCell& cell) {
  const auto rows = 3 * cell.hidden;
  const auto row = [](int64_t k, int bits) {
    return (k * (bits <= 4 && bits != 1 ? bits : bits <= 8 ? 8 : 16) + 7) / 8;
  };
  return rows * (row(cell.input, cell.w_format.bits) + row(cell.hidden, cell.r_format.bits));
}

int64_t cell_bytes(const GruCell& cell) {
  int64_t tables = 0;
  for (const GruTable& t : cell.tables) tables += t.bytes();
  // Per row and product: a folded bias of 8 bytes (4 where the product fits), a shift.
  return packed_weight_bytes(cell) + tables + 3 * cell.hidden * 2 * (4 + 1);
}

}  // namespace

const GruKernel& gru_kernel(Isa isa) {
  const GruKernel* best = kLevels[0].kernel;
  for (const Level& level : kLevels)
    if (level.isa <= isa) best = level.kernel;
  return *best;
}

std::vector<const GruKernel*> runnable_gru_kernels() {
  std::vector<const GruKernel*> out;
  for (const Level& level : kLevels)
    if (isa_available(level.isa)) out.push_back(level.kernel);
  return out;
}

int64_t GruModel::Impl::state_size() const {
  int64_t sum = 0;
  for (const auto& cell : cells) sum += cell->spec().h;
  return sum;
}

Result<std::shared_ptr<const GruPacked>> GruModel::Impl::packed_for(const GruKernel& kernel) const {
  const std::lock_guard<std::mutex> lock(mutex);
  auto& slot = packed[&kernel];
  if (slot) return slot;
  auto made = std::make_shared<GruPacked>();
  made->kernel = &kernel;
  for (const auto& cell : cells) {
    LOWBIT_TRY_ASSIGN(Buffer bytes, Buffer::allocate(kernel.packed_bytes(cell->spec()), "gru weights"));
    kernel.pack(cell->spec(), bytes.as<uint8_t>());
    made->cells.push_back(std::move(bytes));
  }
  slot = std::move(made);
  return slot;
}

Result<std::shared_ptr<const GruModel::Impl>> make_gru_impl(GruConfig config, bool bidirectional,
                                                            std::vector<GruCell> cells, bool batch_first) {
  auto impl = std::make_shared<GruModel::Impl>();
  impl->config = config;
  impl->bidirectional = bidirectional;
  impl->batch_first = batch_first;
  const auto directions = static_cast<size_t>(impl->directions());
  if (cells.empty() || cells.size() % directions != 0)
    return fail(ErrorCode::kShapeMismatch, "gru model", std::to_string(cells.size()) + " cells", "whole layers");
  for (size_t i = 0; i < cells.size(); ++i) {
    const size_t first = i / directions * directions;
    const GruCell& cell = cells[i];
    const auto same = [](const GruParam& a, const GruParam& b) { return a.format == b.format && a.scale == b.scale; };
    const bool fits = cell.hidden == cells[first].hidden && cell.input == cells[first].input &&
                      same(cell[GruTensor::kH], cells[first][GruTensor::kH]) &&
                      same(cell[GruTensor::kX], cells[first][GruTensor::kX]);
    const bool reads = first == 0 || (cell.input == static_cast<int64_t>(directions) * cells[first - 1].hidden &&
                                      same(cell[GruTensor::kX], cells[first - 1][GruTensor::kH]));
    if (!fits || !reads)
      return fail(ErrorCode::kShapeMismatch, "gru cell " + std::to_string(i), "shapes or formats that do not fit",
                  "those of its layer, and the outputs below as inputs");
  }
  for (GruCell& cell : cells) {
    LOWBIT_TRY_ASSIGN(auto plan, GruPlan::make(std::move(cell)));
    impl->cells.push_back(std::move(plan));
  }
  return std::shared_ptr<const GruModel::Impl>(impl);
}

Result<GruModel> GruModel::quantize(const GruNetwork& network, const GruRanges& ranges, const GruConfig& config,
                                    const GruQuantizeOptions& options) {
  LOWBIT_TRY(check_gru(network));
  LOWBIT_TRY(check_gru_config(config));
  LOWBIT_TRY_ASSIGN(const auto scales, choose_gru_scales(network, ranges, config));
  std::vector<GruHessian> hessians(network.cells.size());
  if (config.rounding == GruRounding::kFeedback) {
    if (options.inputs.empty())
      return fail(ErrorCode::kInvalidArgument, "gru quantize", "feedback rounding without inputs",
                  "the calibration inputs", "give --data, or use rounding \"nearest\"");
    LOWBIT_TRY_ASSIGN(hessians, measure_hessians(network, options.inputs));
  }
  std::vector<GruCell> cells;
  for (size_t i = 0; i < network.cells.size(); ++i) {
    LOWBIT_TRY_ASSIGN(GruCell cell, build_gru_cell(network.cells[i], scales[i], config, hessians[i]));
    cells.push_back(std::move(cell));
  }
  LOWBIT_TRY_ASSIGN(auto impl, make_gru_impl(config, network.bidirectional, std::move(cells), network.batch_first));
  return GruModel(std::move(impl));
}

int GruModel::layers() const { return impl_->layers(); }
int GruModel::directions() const { return impl_->directions(); }
bool GruModel::batch_first() const { return impl_->batch_first; }
int64_t GruModel::input() const { return impl_->input(); }
int64_t GruModel::output() const { return impl_->directions() * impl_->cells.back()->spec().h; }
int64_t GruModel::state_size() const { return impl_->state_size(); }
const GruConfig& GruModel::config() const { return impl_->config; }
GruScale GruModel::input_scale() const { return impl_->cells.front()->cell()[GruTensor::kX].scale; }
GruScale GruModel::output_scale() const { return impl_->cells.back()->cell()[GruTensor::kH].scale; }

int64_t GruModel::parameters() const {
  int64_t sum = 0;
  for (const auto& cell : impl_->cells) sum += 3 * cell->spec().h * (cell->spec().c + cell->spec().h + 2);
  return sum;
}

int64_t GruModel::bytes() const {
  int64_t sum = 0;
  for (const auto& cell : impl_->cells) sum += cell_bytes(cell->cell());
  return sum;
}

std::vector<GruCellReport> GruModel::report() const {
  std::vector<GruCellReport> out;
  for (const auto& plan : impl_->cells) {
    const GruCell& cell = plan->cell();
    GruCellReport r;
    for (size_t t = 0; t < kGruTensors; ++t) r.scales[t] = cell.tensors[t].scale;
    r.w_shift.assign(cell.w_shift.begin(), cell.w_shift.end());
    r.r_shift.assign(cell.r_shift.begin(), cell.r_shift.end());
    for (size_t i = 0; i < 3; ++i)
      r.tables[i] = table_error(i == 2 ? GruFunction::kTanh : GruFunction::kSigmoid, cell.tables[i],
                                cell[kGateInputs[i]], cell[kGateOutputs[i]]);
    r.widths = plan->widths();
    r.weight_bytes = packed_weight_bytes(cell);
    r.bytes = cell_bytes(cell);
    out.push_back(std::move(r));
  }
  return out;
}

Result<GruOutput> GruModel::run(const GruInput& input, const RunOptions& options) const {
  LOWBIT_TRY_ASSIGN(const int gpu, gru_gpu(options.device));
  if (gpu >= 0 && options.trace)
    return fail(ErrorCode::kUnsupported, "gru trace", "device " + options.device, "device cpu",
                "gates never leave the chip there; the CPU has the same bits");
  if (gpu >= 0) return forward_on_device(*impl_, input, gpu, options.codes);
  LOWBIT_TRY_ASSIGN(const Isa isa, choose_isa(options.isa));
  GruForwardOptions forward;
  forward.kernel = &gru_kernel(isa);
  forward.trace = options.trace;
  forward.codes = options.codes;
  return forward_codes(*impl_, input, forward);
}

GruNetwork GruModel::dequantized() const {
  GruNetwork network;
  network.bidirectional = impl_->bidirectional;
  network.batch_first = impl_->batch_first;
  const auto floats = [](const auto& q, const std::vector<int32_t>& shift, const std::vector<int32_t>& zp) {
    std::vector<float> out(q.size());
    const size_t k = q.size() / shift.size();
    for (size_t i = 0; i < q.size(); ++i)
      out[i] = static_cast<float>(dequantize_value(q[i], {shift[i / k], zp.empty() ? 0 : zp[i / k]}));
    return out;
  };
  const std::vector<int32_t> none;
  for (const auto& plan : impl_->cells) {
    const GruCell& c = plan->cell();
    network.cells.push_back({c.input, c.hidden, floats(c.w, c.w_shift, c.w_zp), floats(c.r, c.r_shift, c.r_zp),
                             floats(c.bw, c.bw_shift, none), floats(c.br, c.br_shift, none)});
  }
  return network;
}

}  // namespace lowbit
