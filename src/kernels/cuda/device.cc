#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <string>

#include "kernels/cuda/status.h"
#include "kernels/cuda_api.h"
#include "kernels/cuda_memory_api.h"
#include "kernels/cuda_step_api.h"

namespace lowbit::cuda {
namespace {

cudaStream_t as_stream(void* handle) { return static_cast<cudaStream_t>(handle); }

constexpr int kOldestMajor = 8;

/// CUDA's numbers of the devices that lowbit has code for.
std::vector<int> find_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    (void)cudaGetLastError();
    return {};
  }
  std::vector<int> usable;
  for (int i = 0; i < count; ++i) {
    int major = 0;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, i) == cudaSuccess && major >= kOldestMajor)
      usable.push_back(i);
  }
  return usable;
}

/// Looked up once: devices do not change while a process runs, and every pass of a model asks.
const std::vector<int>& usable_devices() {
  static const std::vector<int> usable = find_devices();
  return usable;
}

}  // namespace

Status check_cuda(cudaError_t error, const char* where) {
  if (error == cudaSuccess) return {};
  (void)cudaGetLastError();  // a refused call must not be reported by the next one
  const std::string text = std::string(cudaGetErrorName(error)) + " (" + cudaGetErrorString(error) + ")";
  if (error == cudaErrorMemoryAllocation) return fail(ErrorCode::kOutOfMemory, where, text);
  if (error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver || error == cudaErrorNoKernelImageForDevice)
    return fail(ErrorCode::kUnsupported, where, text,
                "an NVIDIA GPU of compute capability 8.0 or higher and its driver");
  return fail(ErrorCode::kIo, where, text, "", "after an illegal access the process must be started again");
}

bool built() { return true; }

std::vector<DeviceInfo> devices() {
  std::vector<DeviceInfo> all;
  for (const int i : usable_devices()) {
    cudaDeviceProp p{};
    if (cudaGetDeviceProperties(&p, i) != cudaSuccess) continue;
    all.push_back({p.name, p.major, p.minor, p.multiProcessorCount, static_cast<int64_t>(p.totalGlobalMem)});
  }
  return all;
}

Status use_device(int index) {
  const std::vector<int>& usable = usable_devices();
  if (index < 0 || index >= static_cast<int>(usable.size()))
    return fail(ErrorCode::kUnsupported, "CUDA device " + std::to_string(index),
                std::to_string(usable.size()) + " usable", "an NVIDIA GPU of compute capability 8.0 or higher",
                "lowbit doctor tells what it finds");
  return check_cuda(cudaSetDevice(usable[static_cast<size_t>(index)]), "CUDA device");
}

Result<int64_t> free_memory() {
  size_t available = 0, total = 0;
  if (auto s = check_cuda(cudaMemGetInfo(&available, &total), "CUDA device"); !s)
    return tl::unexpected(std::move(s.error()));
  return static_cast<int64_t>(available);
}

Result<Buffer> allocate(int64_t bytes, const char* what) {
  void* pointer = nullptr;
  const size_t size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  if (const auto error = cudaMalloc(&pointer, size); error != cudaSuccess) {
    (void)cudaGetLastError();
    if (error == cudaErrorMemoryAllocation) {
      size_t available = 0, total = 0;
      (void)cudaMemGetInfo(&available, &total);
      return fail(ErrorCode::kOutOfMemory, what, std::to_string(bytes) + " bytes of device memory",
                  "at most " + std::to_string(available) + " free",
                  "use fewer bits, a smaller context, or another GPU");
    }
    if (auto status = check_cuda(error, what); !status) return tl::unexpected(std::move(status.error()));
  }
  std::shared_ptr<void> owner(pointer, [](void* p) { (void)cudaFree(p); });
  return Buffer::borrow({static_cast<std::byte*>(pointer), static_cast<size_t>(std::max<int64_t>(bytes, 0))},
                        std::move(owner), Device::kCuda);
}

Result<Buffer> allocate_pinned(int64_t bytes, const char* what) {
  void* pointer = nullptr;
  if (auto status = check_cuda(cudaMallocHost(&pointer, static_cast<size_t>(std::max<int64_t>(bytes, 1))), what);
      !status)
    return tl::unexpected(std::move(status.error()));
  std::shared_ptr<void> owner(pointer, [](void* p) { (void)cudaFreeHost(p); });
  return Buffer::borrow({static_cast<std::byte*>(pointer), static_cast<size_t>(std::max<int64_t>(bytes, 0))},
                        std::move(owner));
}

Status upload(Buffer& to, const void* from, int64_t bytes) {
  if (bytes <= 0) return {};
  auto e = cudaMemcpy(to.data(), from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice);
  if (e == cudaSuccess) e = cudaStreamSynchronize(nullptr);  // it may return before the last bytes are there
  return check_cuda(e, "upload");
}
Status download(void* to, const Buffer& from, int64_t bytes) {
  if (bytes <= 0) return {};
  return check_cuda(cudaMemcpy(to, from.data(), static_cast<size_t>(bytes), cudaMemcpyDeviceToHost), "download");
}
Status fill(Buffer& to, int value) {
  if (to.empty()) return {};
  if (auto status = check_cuda(cudaMemset(to.data(), value, static_cast<size_t>(to.size())), "fill"); !status)
    return status;
  // Not the device: that would spoil what other threads record into graphs.
  return check_cuda(cudaStreamSynchronize(nullptr), "fill");
}
Status synchronize(void* stream) { return check_cuda(cudaStreamSynchronize(as_stream(stream)), "CUDA stream"); }

Status upload_on(void* stream, void* to, const void* from, int64_t bytes) {
  if (bytes <= 0) return {};
  return check_cuda(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, as_stream(stream)),
                    "upload");
}
Status download_on(void* stream, void* to, const void* from, int64_t bytes) {
  if (bytes <= 0) return {};
  return check_cuda(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, as_stream(stream)),
                    "download");
}
Status copy_on(void* stream, void* to, const void* from, int64_t bytes) {
  if (bytes <= 0) return {};
  return check_cuda(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, as_stream(stream)),
                    "copy");
}

Result<Stream> Stream::create() {
  cudaStream_t stream = nullptr;
  if (auto s = check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "CUDA stream"); !s)
    return tl::unexpected(std::move(s.error()));
  return Stream(stream);
}
Stream::~Stream() {
  if (handle_ != nullptr) (void)cudaStreamDestroy(as_stream(handle_));
}

Status Graph::begin(void* stream) {
  return check_cuda(cudaStreamBeginCapture(as_stream(stream), cudaStreamCaptureModeThreadLocal), "CUDA graph");
}
Result<Graph> Graph::end(void* stream) {
  cudaGraph_t graph = nullptr;
  if (auto s = check_cuda(cudaStreamEndCapture(as_stream(stream), &graph), "CUDA graph"); !s)
    return tl::unexpected(std::move(s.error()));
  cudaGraphExec_t ready = nullptr;
  auto s = check_cuda(cudaGraphInstantiate(&ready, graph, 0), "CUDA graph");
  (void)cudaGraphDestroy(graph);
  if (!s) return tl::unexpected(std::move(s.error()));
  return Graph(ready);
}
Graph::~Graph() {
  if (handle_ != nullptr) (void)cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(handle_));
}
Status Graph::launch(void* stream) const {
  return check_cuda(cudaGraphLaunch(static_cast<cudaGraphExec_t>(handle_), as_stream(stream)), "CUDA graph");
}

Result<double> Graph::time(void* stream, int count) const {
  cudaEvent_t begin = nullptr, end = nullptr;
  const auto run = [&]() -> Status {
    if (auto s = check_cuda(cudaEventCreate(&begin), "CUDA event"); !s) return s;
    if (auto s = check_cuda(cudaEventCreate(&end), "CUDA event"); !s) return s;
    if (auto s = check_cuda(cudaEventRecord(begin, as_stream(stream)), "CUDA event"); !s) return s;
    for (int i = 0; i < count; ++i)
      if (auto s = launch(stream); !s) return s;
    if (auto s = check_cuda(cudaEventRecord(end, as_stream(stream)), "CUDA event"); !s) return s;
    return check_cuda(cudaEventSynchronize(end), "CUDA event");
  };
  auto status = run();
  float ms = 0;
  if (status) status = check_cuda(cudaEventElapsedTime(&ms, begin, end), "CUDA event");
  if (begin != nullptr) (void)cudaEventDestroy(begin);
  if (end != nullptr) (void)cudaEventDestroy(end);
  if (!status) return tl::unexpected(std::move(status.error()));
  return 1e-3 * static_cast<double>(ms);
}

}  // namespace lowbit::cuda
