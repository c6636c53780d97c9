#include "runtime/tensor_loader.h"

#include <fmt/format.h>

#include <utility>

#include "base/try.h"
#include "model/fetch_tensor.h"

namespace lowbit {

Result<std::unique_ptr<Weight>> prepare_weight(Backend& backend, const std::string& name, const QTensor& w,
                                               std::vector<float> bias, const XPolicy& x, WeightUse use) {
  auto weight = backend.prepare(name, w, std::move(bias), choose_x(w, x), use);
  if (!weight) weight.error().where = fmt::format("{} ({})", name, weight.error().where);
  return weight;
}

Status TensorLoader::load_vector(const std::string& name, int64_t n, std::vector<float>& out) {
  LOWBIT_TRY_ASSIGN(QTensor w, fetch_tensor(source_, name, 1, n, pool_));
  out.resize(size_t(n));
  dequantize_rows(w, 0, 1, out.data());
  return done_(name, std::move(w));
}

Status TensorLoader::load_norm(const std::string& name, const NormSpec& spec, Norm& out) {
  out.eps = spec.eps;
  return load_vector(name, spec.size, out.weight);
}

Status TensorLoader::load_weight(const std::string& name, int64_t n, int64_t k, std::vector<float> bias,
                                 const XPolicy& x, WeightUse use, std::unique_ptr<Weight>& out) {
  LOWBIT_TRY_ASSIGN(QTensor w, fetch_tensor(source_, name, n, k, pool_));
  LOWBIT_TRY_ASSIGN(out, prepare_weight(backend_, name, w, std::move(bias), x, use));
  return done_(name, std::move(w));
}

Status TensorLoader::load_block(int64_t index, const BlockSpec& spec, const XPolicy& x, BlockWeights& out) {
  const auto norm = [&](const std::optional<NormSpec>& of, Norm& to) -> Status {
    return of ? load_norm(weight_name(index, of->name), *of, to) : Status{};
  };
  for (const InputSpec* input : inputs_of(spec)) {
    LOWBIT_TRY(norm(input->norm, out.norms[static_cast<size_t>(input->role)]));
    for (const LinearSpec& linear : input->readers) LOWBIT_TRY(load_linear(index, linear, x, out));
  }
  LOWBIT_TRY(norm(spec.attention.q_norm, out.q_norm));
  return norm(spec.attention.k_norm, out.k_norm);
}

Status TensorLoader::load_linear(int64_t index, const LinearSpec& linear, const XPolicy& x, BlockWeights& block) {
  if (linear.norm)
    LOWBIT_TRY(load_norm(weight_name(index, linear.norm->name), *linear.norm,
                         block.linear_norms[static_cast<size_t>(linear.role)]));
  std::vector<float> bias;
  if (linear.bias) LOWBIT_TRY(load_vector(bias_name(index, linear.name), linear.n, bias));
  return load_weight(weight_name(index, linear.name), linear.n, linear.k, std::move(bias), x, WeightUse::kProducts,
                     block.linears[static_cast<size_t>(linear.role)]);
}

}  // namespace lowbit
