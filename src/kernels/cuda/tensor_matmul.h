#pragma once
// The tensor-core matmuls of gemm/ behind the contract of kernels/cuda_api.h: what they take, where x is prepared, and
// which instance a shape gets. One function per question, the format an argument.

#include "kernels/cuda_api.h"

namespace lowbit::cuda {

const char* tensor_refuses(FormatId format, Activation activation, const MatmulShape& shape);
/// Whether there is a kernel for the format at all.
bool tensor_has(FormatId format, Activation activation);
int64_t tensor_row_bytes(FormatId format, Activation activation, int64_t k);
Status tensor_relayout(FormatId format, Activation activation, const uint8_t* from, int64_t stride, int64_t rows,
                       int64_t k, uint8_t* to, void* stream);
int64_t tensor_workspace(Activation activation, const MatmulShape& shape, Element x);
Status tensor_run(FormatId format, Activation activation, const Matmul& call);
int32_t tensor_instance(FormatId format, Activation activation, const MatmulShape& shape);
std::string tensor_instance_name(FormatId format, Activation activation, const MatmulShape& shape, int32_t instance);

}  // namespace lowbit::cuda
