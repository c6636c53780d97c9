#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "base/try.h"
#include "calibrate/recipe.h"
#include "io/checkpoint.h"
#include "lowbit/quantize.h"
#include "model/fetch_tensor.h"
#include "model/source.h"
#include "ops/matmul.h"
#include "runtime/engine.h"

namespace lowbit {
namespace {

std::string architecture_of(const WeightSource& source) {
  const auto config = nlohmann::json::parse(source.config_json(), nullptr, false);
  if (!config.is_object()) return "unknown";
  const auto type = config.find("model_type");
  return type != config.end() && type->is_string() ? type->get<std::string>() : "unknown";
}

/// Numbers in names count as numbers: layer 2 stands before layer 10.
bool comes_before(const std::string& a, const std::string& b) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (!is_digit(a[i]) || !is_digit(b[j])) {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i, ++j;
      continue;
    }
    const size_t i_end = std::min(a.find_first_not_of("0123456789", i), a.size());
    const size_t j_end = std::min(b.find_first_not_of("0123456789", j), b.size());
    const std::string_view left = std::string_view(a).substr(i, i_end - i);
    const std::string_view right = std::string_view(b).substr(j, j_end - j);
    const auto digits = [](std::string_view v) { return v.substr(std::min(v.find_first_not_of('0'), v.size())); };
    const std::string_view x = digits(left), y = digits(right);
    if (x.size() != y.size()) return x.size() < y.size();
    if (x != y) return x < y;
    i = i_end, j = j_end;
  }
  if (a.size() - i != b.size() - j) return a.size() - i < b.size() - j;
  return a < b;  // 01 and 1
}

/// The source's tensors, in the order in which people count.
std::vector<const SourceTensor*> in_order(const WeightSource& source) {
  std::vector<const SourceTensor*> tensors;
  for (const SourceTensor& t : source.tensors()) tensors.push_back(&t);
  std::ranges::sort(tensors,
                    [](const SourceTensor* a, const SourceTensor* b) { return comes_before(a->name, b->name); });
  return tensors;
}

double bits(int64_t bytes, int64_t elements) {
  return elements == 0 ? 0 : 8.0 * static_cast<double>(bytes) / static_cast<double>(elements);
}

}  // namespace

Result<InspectReport> inspect_model(const std::string& name) {
  LOWBIT_TRY_ASSIGN(const std::string path, resolve_model(name));
  LOWBIT_TRY_ASSIGN(const auto source, open_source(path));
  InspectReport r;
  r.kind = source->kind();
  r.architecture = architecture_of(*source);
  int64_t linear_bytes = 0, linear_elements = 0;
  for (const SourceTensor* const tensor : in_order(*source)) {
    const SourceTensor& t = *tensor;
    LOWBIT_TRY_ASSIGN(const int64_t elements, element_count(t.shape));
    r.tensors.push_back({t.name, t.shape, t.stored_as, t.stored_bytes, bits(t.stored_bytes, elements)});
    r.bytes += t.stored_bytes;
    r.parameters += elements;
    if (layer_role(t.name, t.shape.size()) != LayerRole::kLinear) continue;
    linear_bytes += t.stored_bytes;
    linear_elements += elements;
  }
  r.bits_per_weight = bits(linear_bytes, linear_elements);
  r.bits_per_weight_total = bits(r.bytes, r.parameters);
  return r;
}

Result<std::vector<KernelChoice>> inspect_kernels(const std::string& name, const std::string& activation,
                                                  const Compute& compute) {
  LOWBIT_TRY_ASSIGN(const int gpu, wanted_gpu(compute));
  LOWBIT_TRY_ASSIGN(Engine engine, Engine::on_cpu(compute));
  LOWBIT_TRY_ASSIGN(const ActivationChoice act, parse_activation(activation));
  LOWBIT_TRY_ASSIGN(const std::string path, resolve_model(name));
  LOWBIT_TRY_ASSIGN(const auto source, open_source(path));
  std::vector<KernelChoice> out;
  for (const SourceTensor* const tensor : in_order(*source)) {
    const SourceTensor& t = *tensor;
    if (layer_role(t.name, t.shape.size()) == LayerRole::kOther) continue;
    LOWBIT_TRY_ASSIGN(const QTensor w, source->load(t.name));
    const XSpec x = choose_x(w, act.x);
    std::string about_x = x.reason.empty() ? "" : "; " + x.reason;
    if (gpu >= 0) {
      LOWBIT_TRY_ASSIGN(const CudaKernelChoice choice, choose_cuda_kernel(w, x));
      out.push_back({t.name, choice.name, choice.reason + about_x});
      source->release(t.name);
      continue;
    }
    if (x.rounding.halves != Halves::kNone) about_x += fmt::format("; x rounded to {}", halves_name(x.rounding.halves));
    MatmulOptions options = host_options(x);
    options.isa = engine.isa;
    LOWBIT_TRY_ASSIGN(const MatmulPlan plan, MatmulPlan::make(w, options, *engine.pool));
    out.push_back({t.name, plan.kernel_name(), plan.reason() + about_x});
    source->release(t.name);
  }
  return out;
}

Result<VerifyReport> verify_model(const std::string& name) {
  LOWBIT_TRY_ASSIGN(const std::string path, resolve_model(name));
  LOWBIT_TRY_ASSIGN(const auto source, open_source(path));
  VerifyReport r;
  r.tensors = static_cast<int64_t>(source->tensors().size());
  const bool checkpoint = std::string(source->kind()) == "lowbit";
  if (checkpoint) {
    LOWBIT_TRY_ASSIGN(CheckpointReport report, verify_checkpoint(path));
    r.problems = std::move(report.problems);
  }
  ThreadPool pool(1);
  const bool damaged = !r.problems.empty();  // then its numbers are of no interest
  for (const SourceTensor& t : source->tensors()) {
    if (damaged) break;
    const auto w = source->load(t.name);
    if (!w) {
      r.problems.push_back(w.error().message());
    } else if (const Status finite = check_finite(*w, t.name, pool); !finite) {
      r.problems.push_back(finite.error().message());
    }
    source->release(t.name);
  }
  r.ok = r.problems.empty();
  return r;
}

}  // namespace lowbit
