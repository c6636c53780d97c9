#pragma once
// The contract between ops/ and the CUDA kernels. No CUDA types: kernels/cuda/ implements it, kernels/cuda_stub/ stands
// in for it where there is no toolkit, and nothing above has an #ifdef.
//
// A stream is a cudaStream_t as void*; null is the default stream. Calls that take one only enqueue work: they allocate
// nothing, wait for nothing and may be captured into a graph, unless they say otherwise.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/isa.h"
#include "kernels/api.h"
#include "kernels/cuda_operands.h"
#include "lowbit/error.h"
#include "tensor/buffer.h"

namespace lowbit::cuda {

// ---- Device, memory, streams

struct DeviceInfo {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  int64_t memory_bytes = 0;
};

/// False in a build without the toolkit.
bool built();
/// Devices of compute capability 8.0 and higher. Empty when there is none, no driver, or no CUDA in this build.
std::vector<DeviceInfo> devices();
/// Makes device `index` of devices() the current one of the calling thread. Errors: kUnsupported, with the reason.
Status use_device(int index);

/// Device memory, not initialised; aligned to 256. kOutOfMemory when the device refuses: nothing is lost by it.
Result<Buffer> allocate(int64_t bytes, const char* what);
/// Memory of the host's that devices copy from and to while the host goes on.
Result<Buffer> allocate_pinned(int64_t bytes, const char* what);
/// These wait until the copy is done.
Status upload(Buffer& to, const void* from, int64_t bytes);
Status download(void* to, const Buffer& from, int64_t bytes);
Status fill(Buffer& to, int value);
/// Waits for the stream and reports what went wrong in any of its kernels.
Status synchronize(void* stream);

class Stream {
 public:
  static Result<Stream> create();
  Stream(Stream&& other) noexcept : handle_(other.handle_) { other.handle_ = nullptr; }
  Stream& operator=(Stream&&) = delete;
  ~Stream();
  void* handle() const { return handle_; }

 private:
  explicit Stream(void* handle) : handle_(handle) {}
  void* handle_;
};

/// Work of one stream, recorded once and replayed with one launch.
class Graph {
 public:
  /// Starts recording what is enqueued on `stream`; end() stops it.
  static Status begin(void* stream);
  static Result<Graph> end(void* stream);
  Graph(Graph&& other) noexcept : handle_(other.handle_) { other.handle_ = nullptr; }
  Graph& operator=(Graph&&) = delete;
  ~Graph();
  Status launch(void* stream) const;
  /// Seconds of `count` replays back to back, by device events. Waits.
  Result<double> time(void* stream, int count) const;

 private:
  explicit Graph(void* handle) : handle_(handle) {}
  void* handle_;
};

// ---- Matmul

/// y[m, n] = sum_k x[m, k] real(w)[n, k] + bias[n]. Numerics: docs/numerics.md. All pointers are device memory.
struct Matmul {
  Weight w;
  const float* bias = nullptr;  // [n] or null
  const void* x = nullptr;      // [m, ldx]; kInt8: codes with x_scales beside them
  Element x_element = Element::kF32;
  int64_t m = 0, ldx = 0;
  /// kInt8 x: its scales, [m] or, with x_groups, [m, groups]. Float x is quantized by the kernel the same way.
  const float* x_scales = nullptr;
  bool x_groups = false;
  bool exact_scales = false;           // see MatmulShape
  int64_t spread = 0, x_k = 0;         // see MatmulShape
  std::array<uint32_t, 4> table = {};  // codebooks whose entries are integers of 8 bits: these
  void* y = nullptr;                   // [m, ldy]
  Element y_element = Element::kF32;
  int64_t ldy = 0;
  uint8_t* workspace = nullptr;  // workspace_bytes(), aligned to 256
  void* stream = nullptr;
  /// Lets the kernel start while its predecessor in the stream finishes (compute capability 9 and higher); it then
  /// loads weights early and waits before it touches x or y. Weights must have been written before the predecessor
  /// started.
  bool overlap = true;
  int32_t instance = 0;  // MatmulKernel::instance() for this number of rows, or one that takes as many
};

/// The properties of a product that decide which kernel is chosen.
struct MatmulShape {
  int64_t m = 1, n = 0, k = 0, group = 0, groups = 1;
  bool offsets = false;
  bool x_groups = false;         // scales of x per group
  int64_t groups_per_scale = 1;  // see Weight
  /// Not 0: so many columns share a scale of x and one of the weights, which have them in groups_per_scale groups, with
  /// zeros behind them that k counts. x has x_k columns, and scales as without.
  int64_t spread = 0, x_k = 0;
  /// Groups of 32 columns, four to a scale of the weights, that have one exact scale of x (RowCodes::exact_scales): the
  /// sum over them has the same bits as one integer and group by group.
  bool exact_scales = false;
};

struct MatmulKernel {
  const char* name;  // the grammar of kernels/api.h, e.g. "matmul_ternary_a8__cuda_gemv16"
  const char* doc;
  FormatId format;
  Activation activation;
  int64_t most_rows;  // of x that it is made for; 0: any number
  int tile_rows;      // rows that lie together; the last ones of a weight are filled up
  /// "" when the kernel takes the shape, else why not, for people.
  const char* (*refuses)(const MatmulShape& shape);
  /// Bytes of a row in the kernel's order; a multiple of 16.
  int64_t (*row_bytes)(int64_t k);
  /// Re-orders `rows` rows in device memory, filling up the last tile: `from` are canonical (or, for derived formats,
  /// their own packing), `stride` bytes apart.
  Status (*relayout)(const uint8_t* from, int64_t stride, int64_t rows, int64_t k, uint8_t* to, void* stream);
  int64_t (*workspace_bytes)(const MatmulShape& shape, Element x);
  Status (*run)(const Matmul& call);
  /// Kernels with several instances: which one for a shape, and its name. Null where there is one.
  int32_t (*instance)(const MatmulShape& shape) = nullptr;
  std::string (*instance_name)(const MatmulShape& shape, int32_t instance) = nullptr;
};

/// All kernels, better ones first; the last ones (fallbacks) take every shape.
const std::vector<MatmulKernel>& matmul_kernels();

/// int8 codes of x [m, k] and their scales, as docs/numerics.md#activations says: per row (group 0) or per `group`
/// columns. codes [m, ldq], zero from k to ldq; scales [m, ceil(k / group)] or [m].
Status quantize_activations(const void* x, Element element, int64_t m, int64_t k, int64_t ldx, int64_t group,
                            bool exact_scales, int8_t* codes, int64_t ldq, float* scales, void* stream);

// ---- Bits times bits, source: seed 003

/// y[m, n] = (sum_k sign(x[m, k]) * value(w)[n, k]) * scale[n] * x_scale[m] + bias[n], binary weights (+1, -1) and
/// activations of which the sign is kept. There is no zero: +0 and -0 count as +1. Numerics:
/// docs/numerics.md#bits-times-bits. Device memory.
struct BinaryMatmul {
  const uint8_t* tiles = nullptr;   // binary_tile_bytes(n, k), from binary_relayout()
  const int32_t* ones = nullptr;    // [factor_rows(n)], from binary_relayout()
  const float* scales = nullptr;    // [factor_rows(n)]
  const float* bias = nullptr;      // [n] or null
  const uint8_t* x = nullptr;       // [m, binary_row_bytes(k)], from binarize_activations(); so are:
  const float* x_scales = nullptr;  // [m]
  const int32_t* x_ones = nullptr;  // [m]
  int64_t m = 0, n = 0, k = 0;
  void* y = nullptr;  // [m, ldy]
  Element y_element = Element::kF32;
  int64_t ldy = 0;
  void* stream = nullptr;
  bool overlap = true;  // see Matmul
};
constexpr int64_t binary_row_bytes(int64_t k) { return (k + 127) / 128 * 16; }
int64_t binary_tile_bytes(int64_t n, int64_t k);
/// From canonical binary rows in device memory, `stride` bytes apart.
Status binary_relayout(const uint8_t* from, int64_t stride, int64_t n, int64_t k, uint8_t* tiles, int32_t* ones,
                       void* stream);
/// Bit k of a row: x >= 0 or NaN. scale: the mean of |x|, which is the best one for these signs.
Status binarize_activations(const void* x, Element element, int64_t m, int64_t k, int64_t ldx, uint8_t* bits,
                            float* scales, int32_t* ones, void* stream);
Status binary_matmul(const BinaryMatmul& call);

// ---- quantized_mm, source: seed 000

/// The seed's argument list, with more kinds of scale. Codes are packed least significant bits first: 8 and 4 bits in
/// two's complement, 2 bits code - 2, 1 bit {-1, +1}. Any alignment of weight rows.
struct QuantizedMm {
  const void* input = nullptr;      // [m, input_stride]
  const uint8_t* weight = nullptr;  // [n] rows, weight_stride bytes apart
  void* output = nullptr;           // [m, output_stride]
  int64_t m = 0, n = 0, k = 0;
  int64_t input_stride = 0, weight_stride = 0, output_stride = 0;  // elements, bytes, elements
  float scale = 1;                    // of the tensor; multiplies the scales below, when there are some
  const float* scales = nullptr;      // [n] (group 0 or >= k), [n, ceil(k / group)], or [ranges] with row_ends
  int64_t group = 0;                  // columns that share a scale; 0: the row
  const int32_t* row_ends = nullptr;  // [ranges] ascending, last == n: rows that share a scale
  int64_t ranges = 0;
  const float* bias = nullptr;  // [n] or null
  Element input_element = Element::kF32, output_element = Element::kF32;
  void* stream = nullptr;
  bool overlap = true;  // see Matmul
};

/// y = x W^T scale + bias on f32 (or f16, bf16) activations, exact in every product; sums in f32. bits: 1, 2, 4 or 8.
Status quantized_mm(int bits, const QuantizedMm& call);

}  // namespace lowbit::cuda
