// onednn_gru KIND T N C H [seconds]: time of a GRU layer by oneDNN on one core, its answer checked against plain loops.
// JSON. KIND: f32 or bf16 (reset after the product, as lowbit's), u8s8 (reset before it: oneDNN has no other in
// integers). DNNL_MAX_CPU_ISA=AVX2 keeps it to AVX2. Builds alone: c++ -std=c++20 -O2 -fopenmp onednn_gru.cc -ldnnl
// (Debian: libdnnl-dev).

#include <omp.h>
#include <dnnl.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

using dnnl::memory;
using Floats = std::vector<float>;
using Tag = memory::format_tag;
using Type = memory::data_type;

struct Problem {
  int64_t t, n, c, h;
  bool reset_after;
  Floats x, w, r, bias;  // [T, N, C], [C, 3, H], [H, 3, H], [4 or 3, H]; gates u, r, n
};

float sigmoid(float v) { return 1 / (1 + std::exp(-v)); }

/// y [T, N, H] from a state of 0.
Floats plain(const Problem& p) {
  const int64_t h = p.h;
  Floats y(static_cast<size_t>(p.t * p.n * h));
  for (int64_t i = 0; i < p.n; ++i) {
    Floats state(static_cast<size_t>(h), 0), a(static_cast<size_t>(3 * h)), b(a.size());
    for (int64_t t = 0; t < p.t; ++t) {
      std::copy_n(p.bias.begin(), 3 * h, a.begin());
      std::fill(b.begin(), b.end(), 0.0f);
      for (int64_t k = 0; k < p.c; ++k)
        for (int64_t j = 0; j < 3 * h; ++j) a[j] += p.x[(t * p.n + i) * p.c + k] * p.w[k * 3 * h + j];
      for (int64_t k = 0; k < h; ++k)
        for (int64_t j = 0; j < 3 * h; ++j) b[j] += state[k] * p.r[k * 3 * h + j];
      Floats u(static_cast<size_t>(h)), r(u.size()), next(u.size());
      for (int64_t j = 0; j < h; ++j) u[j] = sigmoid(a[j] + b[j]), r[j] = sigmoid(a[h + j] + b[h + j]);
      Floats product(u.size(), 0);
      for (int64_t k = 0; k < h && !p.reset_after; ++k)
        for (int64_t j = 0; j < h; ++j) product[j] += r[k] * state[k] * p.r[k * 3 * h + 2 * h + j];
      for (int64_t j = 0; j < h; ++j) {
        const float inner = p.reset_after ? r[j] * (b[2 * h + j] + p.bias[3 * h + j]) : product[j];
        next[j] = u[j] * state[j] + (1 - u[j]) * std::tanh(a[2 * h + j] + inner);
      }
      state = next;
      std::copy(state.begin(), state.end(), y.begin() + (t * p.n + i) * h);
    }
  }
  return y;
}

class Layer {
 public:
  Layer(const Problem& p, const std::string& kind) : p_(p), integers_(kind == "u8s8") {
    const bool integers = integers_;
    const Type code = integers ? Type::u8 : kind == "bf16" ? Type::bf16 : Type::f32;
    const Type weight = integers ? Type::s8 : code;
    dnnl::primitive_attr attributes;
    Floats scales;
    if (integers) {
      float largest = 0;
      for (const Floats* m : {&p.w, &p.r})
        for (const float v : *m) largest = std::max(largest, std::fabs(v));
      attributes.set_rnn_data_qparams(kScale, kShift);
      attributes.set_rnn_weights_qparams(0, {127 / largest});
    }
    const memory::dims x{p.t, p.n, p.c}, s{1, 1, p.n, p.h}, w{1, 1, p.c, 3, p.h}, r{1, 1, p.h, 3, p.h},
        b{1, 1, p.reset_after ? 4 : 3, p.h}, y{p.t, p.n, p.h};
    const memory::desc xd(x, code, Tag::tnc), sd(s, code, Tag::ldnc), wd(w, weight, Tag::any), rd(r, weight, Tag::any),
        bd(b, Type::f32, Tag::ldgo), yd(y, code, Tag::tnc);
    const auto kind_of = dnnl::prop_kind::forward_inference;
    const auto way = dnnl::rnn_direction::unidirectional_left2right;
    if (p.reset_after) {
      const dnnl::lbr_gru_forward::primitive_desc made({kind_of, way, xd, sd, wd, rd, bd, yd, sd}, attributes, engine_);
      take(made, x, s, w, r, b, attributes);
      layer_ = dnnl::lbr_gru_forward(made);
    } else {
      const dnnl::gru_forward::primitive_desc made({kind_of, way, xd, sd, wd, rd, bd, yd, sd}, attributes, engine_);
      take(made, x, s, w, r, b, attributes);
      layer_ = dnnl::gru_forward(made);
    }
  }
  void run() {
    layer_.execute(stream_, arguments_);
    stream_.wait();
  }
  Floats answer() {
    const auto count = static_cast<size_t>(p_.t * p_.n * p_.h);
    if (integers_) {
      const auto* from = static_cast<const uint8_t*>(y_.get_data_handle());
      Floats out(count);
      std::transform(from, from + count, out.begin(),
                     [](uint8_t v) { return (static_cast<float>(v) - kShift) / kScale; });
      return out;
    }
    memory out({{p_.t, p_.n, p_.h}, Type::f32, Tag::tnc}, engine_);
    dnnl::reorder(y_, out).execute(stream_, y_, out);
    stream_.wait();
    const float* from = static_cast<const float*>(out.get_data_handle());
    return {from, from + count};
  }
  const std::string& implementation() const { return name_; }

 private:
  static constexpr float kScale = 127, kShift = 128;

  memory filled(const Floats& from, const memory::dims& dims, Tag tag, const memory::desc& wanted,
                const dnnl::primitive_attr& attributes) {
    memory plain_memory({dims, Type::f32, tag}, engine_), out(wanted, engine_);
    std::copy(from.begin(), from.end(), static_cast<float*>(plain_memory.get_data_handle()));
    dnnl::reorder(plain_memory, out, attributes).execute(stream_, plain_memory, out);
    stream_.wait();
    return out;
  }
  template <class Made>
  void take(const Made& made, const memory::dims& x, const memory::dims& s, const memory::dims& w,
            const memory::dims& r, const memory::dims& b, const dnnl::primitive_attr& attributes) {
    name_ = made.impl_info_str();
    const Floats zeros(static_cast<size_t>(p_.n * p_.h), 0);
    y_ = memory(made.dst_layer_desc(), engine_);
    arguments_ = {{DNNL_ARG_SRC_LAYER, filled(p_.x, x, Tag::tnc, made.src_layer_desc(), attributes)},
                  {DNNL_ARG_SRC_ITER, filled(zeros, s, Tag::ldnc, made.src_iter_desc(), attributes)},
                  {DNNL_ARG_WEIGHTS_LAYER, filled(p_.w, w, Tag::ldigo, made.weights_layer_desc(), attributes)},
                  {DNNL_ARG_WEIGHTS_ITER, filled(p_.r, r, Tag::ldigo, made.weights_iter_desc(), attributes)},
                  {DNNL_ARG_BIAS, filled(p_.bias, b, Tag::ldgo, made.bias_desc(), {})},
                  {DNNL_ARG_DST_LAYER, y_},
                  {DNNL_ARG_DST_ITER, memory(made.dst_iter_desc(), engine_)}};
  }

  const Problem& p_;
  bool integers_;
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  dnnl::primitive layer_;
  memory y_;
  std::unordered_map<int, memory> arguments_;
  std::string name_;
};

Floats normals(std::mt19937& rng, int64_t count, float scale) {
  std::normal_distribution<float> normal(0, scale);
  Floats v(static_cast<size_t>(count));
  for (float& x : v) x = normal(rng);
  return v;
}

int run(const std::string& kind, Problem p, double limit) {
  std::mt19937 rng(1);
  p.reset_after = kind != "u8s8";
  p.x = normals(rng, p.t * p.n * p.c, 0.3f);  // inside u8's range
  const float spread = 0.5f / std::sqrt(static_cast<float>(p.h));
  p.w = normals(rng, p.c * 3 * p.h, spread);
  p.r = normals(rng, p.h * 3 * p.h, spread);
  p.bias = normals(rng, (p.reset_after ? 4 : 3) * p.h, 0.1f);
  for (float& v : p.x) v = std::clamp(v, -1.0f, 0.99f);
  Layer layer(p, kind);
  layer.run();
  const Floats wanted = plain(p), got = layer.answer();
  float worst = 0;
  for (size_t i = 0; i < wanted.size(); ++i) worst = std::max(worst, std::fabs(wanted[i] - got[i]));
  const bool checked = worst < (kind == "f32" ? 1e-4f : 0.06f);
  double best = 1e9;
  const auto start = std::chrono::steady_clock::now();
  for (auto now = start; std::chrono::duration<double>(now - start).count() < limit;) {
    const auto before = std::chrono::steady_clock::now();
    layer.run();
    now = std::chrono::steady_clock::now();
    best = std::min(best, std::chrono::duration<double>(now - before).count());
  }
  std::printf(
      "{\"kind\": \"%s\", \"implementation\": \"%s\", \"us_per_step\": %.3f, \"worst_error\": %.2g, \"checked\": %s}\n",
      kind.c_str(), layer.implementation().c_str(), 1e6 * best / static_cast<double>(p.t), static_cast<double>(worst),
      checked ? "true" : "false");
  return checked ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string kind = argc > 1 ? argv[1] : "";
  if (argc < 6 || (kind != "f32" && kind != "bf16" && kind != "u8s8")) {
    std::fprintf(stderr, "usage: onednn_gru f32|bf16|u8s8 T N C H [seconds]\n");
    return 2;
  }
  omp_set_num_threads(1);
  try {
    return run(
        kind,
        {std::atoll(argv[2]), std::atoll(argv[3]), std::atoll(argv[4]), std::atoll(argv[5]), true, {}, {}, {}, {}},
        argc > 6 ? std::atof(argv[6]) : 0.5);
  } catch (const dnnl::error& e) {
    std::fprintf(stderr, "error: oneDNN has no such layer here: %s\n", e.what());
    return 2;
  }
}
