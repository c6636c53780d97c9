#include <algorithm>
#include <cstring>
#include <vector>

#include "base/checked.h"
#include "base/rng.h"
#include "base/try.h"
#include "kernels/cuda_halves_api.h"
#include "ops/device_matmul.h"
#include "ops/time_device.h"
#include "ops/time_matmul.h"

namespace lowbit {
namespace {

using cuda::Element;

/// x on the device, as the plan takes it: int8 with scales, 16 bits, or f32.
struct DeviceX {
  Buffer floats, codes, scales;
  DeviceRows rows;
};
Result<DeviceX> place_x(const std::vector<float>& x, const TimedMatmul& o, const DeviceMatmulPlan& plan) {
  DeviceX d;
  LOWBIT_TRY_ASSIGN(d.floats, cuda::allocate(4 * o.m * o.k, "bench x"));
  LOWBIT_TRY(cuda::upload(d.floats, x.data(), 4 * o.m * o.k));
  d.rows = {d.floats.data(), Element::kF32, o.m, o.k, nullptr};
  if (plan.activation() == Activation::kF32 && o.halves != Halves::kNone) {
    const bool bf16 = o.halves == Halves::kBf16;
    const int64_t ldx = round_up(o.k, 64);
    LOWBIT_TRY_ASSIGN(d.codes, cuda::allocate(2 * o.m * ldx, "bench x"));
    LOWBIT_TRY(cuda::halve_rows({d.floats.as<float>(), o.m, o.k, bf16, d.codes.as<uint16_t>(), ldx, nullptr}));
    LOWBIT_TRY(cuda::synchronize(nullptr));
    d.rows = {d.codes.data(), bf16 ? Element::kBf16 : Element::kF16, o.m, ldx, nullptr};
  }
  if (plan.activation() != Activation::kInt8) return d;
  const int64_t scales = plan.x_groups() ? plan.groups() : 1;
  LOWBIT_TRY_ASSIGN(d.codes, cuda::allocate(o.m * o.k, "bench x"));
  LOWBIT_TRY_ASSIGN(d.scales, cuda::allocate(4 * o.m * scales, "bench x"));
  LOWBIT_TRY(cuda::quantize_activations(d.floats.data(), Element::kF32, o.m, o.k, o.k,
                                        plan.x_groups() ? plan.group() : 0, false, d.codes.as<int8_t>(), o.k,
                                        d.scales.as<float>(), nullptr));
  LOWBIT_TRY(cuda::synchronize(nullptr));
  d.rows = {d.codes.data(), Element::kInt8, o.m, o.k, d.scales.as<float>()};
  return d;
}

/// First and last row against the CPU's reference: bit for bit where products are integers, else within 1e-5 of the
/// largest.
Result<bool> device_answer_is_right(const QTensor& w, const TimedMatmul& o, const std::vector<float>& x,
                                    const std::vector<float>& y, const DeviceMatmulPlan& plan, ThreadPool& pool) {
  LOWBIT_TRY_ASSIGN(const MatmulPlan reference,
                    MatmulPlan::make(w, {plan.activation(), Isa::kScalar, true, o.activation_group}, pool));
  const bool exact = plan.activation() == Activation::kInt8 && format_info(o.format).kind == ValueKind::kInteger;
  std::vector<float> want(static_cast<size_t>(o.n));
  for (const int64_t row : {int64_t{0}, o.m - 1}) {
    ActivationRows rows;
    rows.set_rounding({.halves = o.halves});
    LOWBIT_TRY(rows.prepare(plan.activation(), x.data() + row * o.k, 1, o.k, o.k, Isa::kScalar, pool));
    LOWBIT_TRY(reference.run(rows, nullptr, want.data(), o.n, pool));
    const float* const got = y.data() + row * o.n;
    if (exact) {
      if (std::memcmp(want.data(), got, want.size() * 4) != 0) return false;
      continue;
    }
    float largest = 0, error = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      largest = std::max(largest, std::abs(want[i]));
      error = std::max(error, std::abs(want[i] - got[i]));
    }
    if (!(error <= 1e-5f * largest)) return false;
  }
  return true;
}

}  // namespace

Result<MatmulTiming> time_device_matmul(const TimedMatmul& o, ThreadPool& pool) {
  LOWBIT_TRY(check_options(o));
  LOWBIT_TRY_ASSIGN(const QTensor w, random_weight(o, pool));
  std::vector<DeviceMatmulPlan> plans;
  int64_t bytes = 0;
  do {
    LOWBIT_TRY_ASSIGN(DeviceMatmulPlan plan,
                      DeviceMatmulPlan::make(w, {o.activation, o.activation_group, o.reference, o.m}));
    bytes += plan.code_bytes(o.m);
    plans.push_back(std::move(plan));
  } while (o.cold && bytes < o.cold_bytes && plans.back().code_bytes(o.m) > 0);
  const DeviceMatmulPlan& first = plans.front();
  std::vector<float> x(static_cast<size_t>(o.m * o.k)), y(static_cast<size_t>(o.m * o.n));
  Rng rng(2);
  for (float& v : x) v = float(rng.uniform()) - 0.5f;
  LOWBIT_TRY_ASSIGN(const DeviceX device_x, place_x(x, o, first));
  LOWBIT_TRY_ASSIGN(Buffer device_y, cuda::allocate(4 * o.m * o.n, "bench y"));
  LOWBIT_TRY_ASSIGN(const cuda::Stream stream, cuda::Stream::create());
  Buffer workspace;
  if (const int64_t needed = first.workspace_bytes(o.m, device_x.rows.element); needed > 0) {
    LOWBIT_TRY_ASSIGN(workspace, cuda::allocate(needed, "bench workspace"));
  }
  const auto call = [&](const DeviceMatmulPlan& plan) {
    return plan.run(device_x.rows, nullptr, device_y.data(), Element::kF32, o.n,
                    workspace.empty() ? nullptr : workspace.as<uint8_t>(), stream.handle());
  };
  LOWBIT_TRY(call(first));
  LOWBIT_TRY(cuda::synchronize(stream.handle()));
  LOWBIT_TRY(cuda::download(y.data(), device_y, 4 * o.m * o.n));
  MatmulTiming result;
  result.weight_bytes = first.code_bytes(o.m) + first.factor_bytes();
  result.kernel = first.kernel_name(o.m, device_x.rows.element);
  result.reason = first.reason();
  result.threads = pool.size();
  result.cold = o.cold;
  LOWBIT_TRY_ASSIGN(result.checked, device_answer_is_right(w, o, x, y, first, pool));
  if (!result.checked) return result;

  const int calls = static_cast<int>(std::clamp<int64_t>(int64_t(plans.size()), 20, 2000));
  LOWBIT_TRY_ASSIGN(const std::vector<double> times, time_device_calls(o.seconds, stream, calls, [&](int i) {
                      return call(plans[static_cast<size_t>(i) % plans.size()]);
                    }));
  result.runs = static_cast<int64_t>(times.size()) * calls;
  result.seconds = times[times.size() / 2];
  result.seconds_p10 = times[times.size() / 10];
  result.seconds_p90 = times[times.size() * 9 / 10];
  result.gops = 2e-9 * double(o.m) * double(o.n) * double(o.k) / result.seconds;
  result.gb_s = 1e-9 * double(result.weight_bytes) / result.seconds;
  return result;
}

}  // namespace lowbit
