// ggml_matmul TYPE M K N THREADS [BUFFER=plain] [MIB=512] [SECONDS=0.5]
//
// Times y[N,M] = x[N,K] * w[M,K]^T in ggml's CPU backend, with ggml's letters: M outputs, K inputs,
// N columns. The graph is C products of one x with C copies of w, C copies being at least MIB of
// packed weights (cold: memory must deliver them, as in decoding); MIB = 0 is one warm copy.
// BUFFER: plain, repack or amx. The time includes quantizing x. Prints one JSON line.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"

// The rows of w are picked from these few: some types quantize slowly, and values do not change
// speed.
constexpr int kRows = 128;
int Pick(int64_t row) { return static_cast<int>((row * 2654435761u >> 9) % kRows); }

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "ggml_matmul: %s\n", what.c_str());
  std::exit(2);
}

ggml_type FindType(std::string_view name) {
  for (int t = 0; t < GGML_TYPE_COUNT; ++t) {
    const char* known = ggml_type_name(static_cast<ggml_type>(t));
    if (known && name == known && ggml_get_type_traits(static_cast<ggml_type>(t))->to_float) {
      return static_cast<ggml_type>(t);
    }
  }
  Fail("no such type");
}

ggml_backend_buffer_type_t FindBuffer(ggml_backend_dev_t device, const std::string& name) {
  if (name == "plain") return ggml_backend_cpu_buffer_type();
  auto extra = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(
      ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), "ggml_backend_dev_get_extra_bufts"));
  for (auto* b = extra ? extra(device) : nullptr; b && *b; ++b) {
    if (ggml_backend_buft_name(*b) == std::string(name == "repack" ? "CPU_REPACK" : "AMX")) return *b;
  }
  Fail("this build or CPU has no buffer type " + name);
}

int main(int argc, char** argv) {
  if (argc < 6) Fail("usage: TYPE M K N THREADS [plain|repack|amx] [MIB=512, 0 = warm] [SECONDS=0.5]");
  const ggml_type type = FindType(argv[1]);
  const int64_t m = std::atoll(argv[2]), k = std::atoll(argv[3]), n = std::atoll(argv[4]);
  const int threads = std::atoi(argv[5]);
  const std::string buffer = argc > 6 ? argv[6] : "plain";
  const int64_t mib = argc > 7 ? std::atoll(argv[7]) : 512;
  const double limit = argc > 8 ? std::atof(argv[8]) : 0.5;
  if (m < 1 || n < 1 || k < 1 || threads < 1 || k % ggml_blck_size(type))
    Fail("sizes must be positive, and K a multiple of the type's block");
  const int64_t row_bytes = ggml_row_size(type, k), bytes = m * row_bytes;
  const int copies = static_cast<int>(std::max<int64_t>(1, ((mib << 20) + bytes - 1) / bytes));

  ggml_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  ggml_backend_t backend = ggml_backend_cpu_init();
  ggml_threadpool_params pool = ggml_threadpool_params_default(threads);
  ggml_backend_cpu_set_n_threads(backend, threads);
  ggml_backend_cpu_set_threadpool(backend, ggml_threadpool_new(&pool));
  ggml_backend_dev_t device = ggml_backend_get_device(backend);

  // Weights in the asked buffer; x and one y, which all products write in turn, in plain memory.
  const size_t nodes = copies + 1;
  const ggml_init_params arena{(nodes + 1) * ggml_tensor_overhead() + ggml_graph_overhead_custom(2 * nodes, false),
                               nullptr, true};
  ggml_context* weights = ggml_init(arena);
  ggml_context* values = ggml_init(arena);
  std::vector<ggml_tensor*> w(copies);
  for (auto& t : w) t = ggml_new_tensor_2d(weights, type, k, m);
  if (!ggml_backend_alloc_ctx_tensors_from_buft(weights, FindBuffer(device, buffer))) Fail("no memory");
  ggml_tensor* x = ggml_new_tensor_2d(values, GGML_TYPE_F32, k, n);
  const size_t x_bytes = GGML_PAD(ggml_nbytes(x), 64);
  ggml_backend_buffer_t plain = ggml_backend_alloc_buffer(backend, x_bytes + m * n * sizeof(float));
  char* base = static_cast<char*>(ggml_backend_buffer_get_base(plain));
  ggml_backend_tensor_alloc(plain, x, base);
  ggml_cgraph* graph = ggml_new_graph_custom(values, 2 * nodes, false);
  ggml_tensor* y = nullptr;
  for (auto* t : w) {
    y = ggml_mul_mat(values, t, x);
    ggml_backend_tensor_alloc(plain, y, base + x_bytes);
    if (!ggml_backend_dev_supports_op(device, y)) Fail(std::string(argv[1]) + " has no kernel for buffer " + buffer);
    ggml_build_forward_expand(graph, y);
  }

  std::mt19937 rng(1);
  std::normal_distribution<float> normal;
  std::vector<float> xs(k * n), rows(kRows * k), ones(k, 1.f), ys(m * n, NAN);
  for (float& v : xs) v = normal(rng);
  for (float& v : rows) v = normal(rng);
  std::vector<char> packed_rows(kRows * row_bytes), packed(bytes);
  ggml_quantize_chunk(type, rows.data(), packed_rows.data(), 0, kRows, k, ones.data());
  for (int64_t r = 0; r < m; ++r) std::memcpy(&packed[r * row_bytes], &packed_rows[Pick(r) * row_bytes], row_bytes);
  for (auto* t : w) ggml_backend_tensor_set(t, packed.data(), 0, bytes);
  ggml_backend_tensor_set(x, xs.data(), 0, ggml_nbytes(x));
  ggml_backend_tensor_set(y, ys.data(), 0, ggml_nbytes(y));

  // The answer first: the relative RMS distance to x times the dequantized rows is x's rounding.
  if (ggml_backend_graph_compute(backend, graph) != GGML_STATUS_SUCCESS) Fail("compute");
  ggml_backend_tensor_get(y, ys.data(), 0, ggml_nbytes(y));
  ggml_get_type_traits(type)->to_float(packed_rows.data(), rows.data(), kRows * k);
  double error = 0, norm = 0;
  for (int64_t column = 0; column < n; ++column) {
    double want[kRows] = {};
    for (int r = 0; r < kRows; ++r) {
      for (int64_t i = 0; i < k; ++i) want[r] += rows[r * k + i] * xs[column * k + i];
    }
    for (int64_t r = 0; r < m; ++r) {
      error += std::pow(ys[column * m + r] - want[Pick(r)], 2);
      norm += std::pow(want[Pick(r)], 2);
    }
  }
  error = std::sqrt(error / norm);
  const bool checked = error < 0.02;  // false for a NaN, too

  std::vector<double> times;
  for (double total = 0; total < limit || times.size() < 3; total += times.back()) {
    const auto start = std::chrono::steady_clock::now();
    ggml_backend_graph_compute(backend, graph);
    times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::sort(times.begin(), times.end());
  const double seconds = times[times.size() / 2] / copies;
  const nlohmann::ordered_json line = {{"type", argv[1]},
                                       {"buffer", buffer},
                                       {"m", m},
                                       {"k", k},
                                       {"n", n},
                                       {"threads", threads},
                                       {"set_mib", copies * bytes >> 20},
                                       {"seconds", seconds},
                                       {"best_seconds", times[0] / copies},
                                       {"gops", 2e-9 * m * k * n / seconds},
                                       {"gb_s", 1e-9 * bytes / seconds},
                                       {"error", error},
                                       {"checked", checked}};
  std::puts(line.dump().c_str());
  return checked ? 0 : 1;
}
