#include <memory>
#include <span>
#include <string>

#include "base/checked.h"
#include "base/cpu.h"
#include "base/try.h"
#include "capi/errors.h"
#include "capi/versioned.h"
#include "gru/model.h"
#include "kernels/cuda_api.h"
#include "lowbit/gru.h"

struct lb_gru {
  lowbit::GruModel model;
  std::string device, isa;
  std::unique_ptr<lowbit::GruStream> stream;  // of lb_gru_step
  int64_t batch = 0;                          // of the stream
};

namespace lowbit::capi {
namespace {

constexpr int64_t kMostRows = int64_t{1} << 31;

tl::unexpected<Error> bad(const char* call, const std::string& got, std::string wanted) {
  return fail(ErrorCode::kInvalidArgument, call, got, std::move(wanted));
}

Status open_gru(const char* path, const lb_gru_options* options, lb_gru** gru) {
  if (gru == nullptr || path == nullptr) return bad("lb_gru_open", "NULL", "a path and a place");
  *gru = nullptr;
  std::string device, isa;
  if (options != nullptr) {
    lb_gru_options given{};
    LOWBIT_TRY(read_versioned("lb_gru_options", options, {}, given));
    if (given.device != nullptr) device = given.device;
    if (given.isa != nullptr) isa = given.isa;
  }
  LOWBIT_TRY_ASSIGN(const int gpu, gru_gpu(device));
  if (gpu >= 0) LOWBIT_TRY(cuda::use_device(gpu));
  LOWBIT_TRY(choose_isa(isa));
  LOWBIT_TRY_ASSIGN(GruModel model, GruModel::open(path));
  *gru = std::make_unique<lb_gru>(lb_gru{std::move(model), device, isa, nullptr, 0}).release();
  return {};
}

Status run_gru_model(const lb_gru* gru, const lb_gru_run_args* args) {
  if (gru == nullptr || args == nullptr) return bad("lb_gru_run", "NULL", "a network and arguments");
  lb_gru_run_args given{};
  LOWBIT_TRY(read_versioned("lb_gru_run_args", args, {}, given));
  const lb_gru_run_args* const a = &given;
  const auto product = [](int64_t x, int64_t y) {
    return checked_mul(static_cast<uint64_t>(x), static_cast<uint64_t>(y));
  };
  const auto all = product(a->steps, a->batch);
  if (a->steps < 0 || a->batch < 0 || a->batch > kMostRows || !all || *all > kMostRows)
    return bad("lb_gru_run", std::to_string(a->steps) + " steps of " + std::to_string(a->batch) + " sequences",
               "0 or more, at most 2^31 together");
  const auto rows = static_cast<int64_t>(*all);
  if (rows > 0 && (a->x == nullptr || a->y == nullptr)) return bad("lb_gru_run", "NULL", "x and y");
  const auto size = [](int64_t n) { return static_cast<size_t>(n); };
  GruInput in;
  in.steps = a->steps;
  in.batch = a->batch;
  in.batch_first = a->batch_first != 0;
  in.x = {a->x, size(rows * gru->model.input())};
  if (a->h0 != nullptr) in.h0 = {a->h0, size(a->batch * gru->model.state_size())};
  if (a->lengths != nullptr) in.lengths = {a->lengths, size(a->batch)};
  GruModel::RunOptions options;
  options.device = gru->device;
  options.isa = gru->isa;
  LOWBIT_TRY_ASSIGN(const GruOutput out, gru->model.run(in, options));
  std::copy(out.y.begin(), out.y.end(), a->y);
  if (a->final_state != nullptr) std::copy(out.final_state.begin(), out.final_state.end(), a->final_state);
  return {};
}

Status step_gru(lb_gru* gru, const float* x, int64_t batch, float* y) {
  if (gru == nullptr || x == nullptr || y == nullptr) return bad("lb_gru_step", "NULL", "a network, x and y");
  if (gru->stream == nullptr || batch != gru->batch) {
    LOWBIT_TRY_ASSIGN(GruStream stream, gru->model.stream(batch, gru->isa));
    gru->stream = std::make_unique<GruStream>(std::move(stream));
    gru->batch = batch;
  }
  return gru->stream->step({x, static_cast<size_t>(batch * gru->model.input())},
                           {y, static_cast<size_t>(batch * gru->model.output())});
}

}  // namespace
}  // namespace lowbit::capi

using lowbit::capi::guarded;

extern "C" {

lb_status lb_gru_open(const char* path, const lb_gru_options* options, lb_gru** gru) {
  return guarded([&] { return lowbit::capi::open_gru(path, options, gru); });
}
void lb_gru_close(lb_gru* gru) { delete gru; }

int64_t lb_gru_input(const lb_gru* gru) { return gru == nullptr ? 0 : gru->model.input(); }
int64_t lb_gru_output(const lb_gru* gru) { return gru == nullptr ? 0 : gru->model.output(); }
int64_t lb_gru_state_size(const lb_gru* gru) { return gru == nullptr ? 0 : gru->model.state_size(); }

lb_status lb_gru_run(const lb_gru* gru, const lb_gru_run_args* args) {
  return guarded([&] { return lowbit::capi::run_gru_model(gru, args); });
}
lb_status lb_gru_step(lb_gru* gru, const float* x, int64_t batch, float* y) {
  return guarded([&] { return lowbit::capi::step_gru(gru, x, batch, y); });
}
void lb_gru_reset(lb_gru* gru) {
  if (gru != nullptr && gru->stream != nullptr) gru->stream->reset();
}

}  // extern "C"
