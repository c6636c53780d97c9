// Whole sequences on a GPU: codes go up, codes and states come down, everything between stays there.

#include <algorithm>
#include <charconv>

#include "base/try.h"
#include "gru/model.h"

namespace lowbit {
namespace {

using cuda::GruCodes;

constexpr int64_t kMostRows = (int64_t{1} << 31) - 1;

/// Codes of a tensor in device memory.
struct DeviceCodes {
  Buffer memory;
  GruCodes layout;
  GruGrid grid;
};

Result<DeviceCodes> make_codes(const GruGrid& grid, int64_t rows, int64_t columns, const char* what) {
  DeviceCodes codes;
  codes.grid = grid;
  LOWBIT_TRY_ASSIGN(codes.memory, cuda::allocate(cuda::gru_codes_bytes(grid, rows, columns, codes.layout), what));
  codes.layout.data = codes.memory.as<uint8_t>();
  return codes;
}

/// Every element 0.0.
Status fill_zero_point(DeviceCodes& codes) {
  const int32_t zero = codes.grid.zp - codes.grid.lo;
  for (int plane = 0; plane < cuda::gru_planes(codes.grid); ++plane) {
    const auto bytes = codes.memory.span().subspan(static_cast<size_t>(plane * codes.layout.plane_bytes),
                                                   static_cast<size_t>(codes.layout.plane_bytes));
    Buffer part = Buffer::borrow(bytes, nullptr, Device::kCuda);
    LOWBIT_TRY(cuda::fill(part, zero >> (8 * plane) & 0xff));
  }
  return {};
}

template <class T>
Result<Buffer> on_device(const std::vector<T>& values, const char* what) {
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
  LOWBIT_TRY_ASSIGN(Buffer b, cuda::allocate(bytes, what));
  LOWBIT_TRY(cuda::upload(b, values.data(), bytes));
  return b;
}

struct Batch {
  const GruSchedule& schedule;
  Buffer order, length;
  bool batch_first, ragged;
};

Result<Batch> upload_batch(const GruSchedule& schedule, bool batch_first) {
  std::vector<int32_t> order, length;
  for (int64_t i = 0; i < schedule.batch(); ++i) {
    order.push_back(static_cast<int32_t>(schedule.sequence(i)));
    length.push_back(static_cast<int32_t>(schedule.length(i)));
  }
  Batch b{schedule, {}, {}, batch_first, schedule.batch() > 0 && length.back() < schedule.steps()};
  LOWBIT_TRY_ASSIGN(b.order, on_device(order, "gru order"));
  LOWBIT_TRY_ASSIGN(b.length, on_device(length, "gru lengths"));
  return b;
}

/// One cell; `state` [N, H] by length, there and back.
Status run_cell(const cuda::GruDeviceCell& cell, const Batch& batch, const DeviceCodes& x, const DeviceCodes& y,
                int64_t y_column, bool reverse, std::vector<uint16_t>& state) {
  cuda::GruSequences call;
  call.steps = batch.schedule.steps();
  call.batch = batch.schedule.batch();
  call.batch_first = batch.batch_first;
  call.reverse = reverse;
  call.order = batch.order.as<int32_t>();
  call.length = batch.length.as<int32_t>();
  call.x = x.layout;
  call.y = y.layout;
  call.y_column = y_column;
  LOWBIT_TRY_ASSIGN(Buffer states, on_device(state, "gru states"));
  LOWBIT_TRY_ASSIGN(Buffer workspace, cuda::allocate(cell.workspace_bytes(call.steps, call.batch), "gru workspace"));
  call.state = states.as<uint16_t>();
  call.workspace = workspace.as<uint8_t>();
  LOWBIT_TRY(cell.run(call));
  LOWBIT_TRY(cuda::synchronize(nullptr));
  return cuda::download(state.data(), states, static_cast<int64_t>(2 * state.size()));
}

Status read_output(const DeviceCodes& y, int64_t rows, int64_t columns, bool codes, GruOutput& out) {
  const auto count = static_cast<size_t>(rows * columns);
  out.y.resize(count);
  LOWBIT_TRY_ASSIGN(Buffer floats, cuda::allocate(4 * rows * columns, "gru output"));
  LOWBIT_TRY(cuda::gru_decode(y.layout, rows, columns, y.grid, floats.as<float>(), nullptr));
  LOWBIT_TRY(cuda::synchronize(nullptr));
  LOWBIT_TRY(cuda::download(out.y.data(), floats, 4 * rows * columns));
  if (!codes) return {};
  std::vector<uint8_t> bytes(static_cast<size_t>(y.memory.size()));
  LOWBIT_TRY(cuda::download(bytes.data(), y.memory, y.memory.size()));
  out.codes.resize(count);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) {
      int32_t code = y.grid.lo;
      for (int plane = 0; plane < cuda::gru_planes(y.grid); ++plane)
        code += bytes[static_cast<size_t>(plane * y.layout.plane_bytes + r * y.layout.stride + c)] << (8 * plane);
      out.codes[static_cast<size_t>(r * columns + c)] = code;
    }
  return {};
}

}  // namespace

Result<int> gru_gpu(const std::string& device) {
  if (device.empty() || device == "auto" || device == "cpu") return -1;
  if (device == "cuda") return 0;
  int index = -1;
  const char *first = device.data() + std::min<size_t>(5, device.size()), *last = device.data() + device.size();
  const auto [end, error] = std::from_chars(first, last, index);
  if (device.starts_with("cuda:") && error == std::errc{} && end == last && index >= 0) return index;
  return fail(ErrorCode::kInvalidArgument, "device", device, "auto, cpu, cuda or cuda:<i>");
}

Result<std::shared_ptr<const GruDeviceCells>> GruModel::Impl::cells_on(int device) const {
  const std::lock_guard<std::mutex> lock(mutex);
  auto& slot = on_device[device];
  if (slot) return slot;
  auto made = std::make_shared<GruDeviceCells>();
  for (const auto& cell : cells) {
    LOWBIT_TRY_ASSIGN(auto uploaded, cuda::GruDeviceCell::make(cell->spec()));
    made->push_back(std::move(uploaded));
  }
  slot = std::move(made);
  return slot;
}

Result<GruOutput> forward_on_device(const GruModel::Impl& model, const GruInput& input, int device, bool codes) {
  LOWBIT_TRY_ASSIGN(const GruSchedule schedule, GruSchedule::make(input, model.input(), model.state_size(), false));
  if (schedule.rows() > kMostRows)
    return fail(ErrorCode::kUnsupported, "gru on the GPU", std::to_string(schedule.rows()) + " steps of sequences",
                "less than 2^31", "run fewer sequences at a time");
  LOWBIT_TRY(cuda::use_device(device));
  LOWBIT_TRY_ASSIGN(const auto cells, model.cells_on(device));
  LOWBIT_TRY_ASSIGN(const Batch batch, upload_batch(schedule, input.batch_first));
  const int64_t n = schedule.batch(), rows = schedule.rows();
  LOWBIT_TRY_ASSIGN(DeviceCodes x,
                    make_codes(model.cells.front()->spec().grid[kSlotX], rows, model.input(), "gru input"));
  {
    const auto bytes = static_cast<int64_t>(4 * input.x.size());
    LOWBIT_TRY_ASSIGN(Buffer floats, cuda::allocate(bytes, "gru input"));
    LOWBIT_TRY(cuda::upload(floats, input.x.data(), bytes));
    LOWBIT_TRY(cuda::gru_encode(floats.as<float>(), rows, model.input(), x.grid, x.layout, nullptr));
    LOWBIT_TRY(cuda::synchronize(nullptr));
  }
  GruOutput out;
  out.final_state.resize(static_cast<size_t>(n * model.state_size()));
  int64_t state_at = 0;
  for (int layer = 0; layer < model.layers(); ++layer) {
    const auto first = static_cast<size_t>(layer * model.directions());
    const GruCell& any = model.cells[first]->cell();
    const GruParam& h = any[GruTensor::kH];
    const int64_t hidden = any.hidden;
    LOWBIT_TRY_ASSIGN(DeviceCodes y, make_codes(model.cells[first]->spec().grid[kSlotH], rows,
                                                model.directions() * hidden, "gru output"));
    if (batch.ragged) LOWBIT_TRY(fill_zero_point(y));
    for (int d = 0; d < model.directions(); ++d) {
      std::vector<uint16_t> state(static_cast<size_t>(n * hidden), static_cast<uint16_t>(h.scale.zp - h.lo()));
      const auto place = [&](int64_t i, int64_t j) {
        return static_cast<size_t>(state_at + schedule.sequence(i) * hidden + j);
      };
      for (int64_t i = 0; i < n && !input.h0.empty(); ++i)
        for (int64_t j = 0; j < hidden; ++j)
          state[static_cast<size_t>(i * hidden + j)] =
              static_cast<uint16_t>(quantize_value(input.h0[place(i, j)], h) - h.lo());
      LOWBIT_TRY(run_cell((*cells)[first + static_cast<size_t>(d)], batch, x, y, d * hidden, d == 1, state));
      for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < hidden; ++j)
          out.final_state[place(i, j)] = static_cast<float>(
              dequantize_value(int64_t{state[static_cast<size_t>(i * hidden + j)]} + h.lo(), h.scale));
      state_at += n * hidden;
    }
    x = std::move(y);
  }
  const int64_t columns = model.directions() * model.cells.back()->spec().h;
  LOWBIT_TRY(read_output(x, rows, columns, codes, out));
  return out;
}

}  // namespace lowbit
