#pragma once

#include "kernels/api.h"
#include "kernels/gru_api.h"

namespace lowbit {
extern const KernelTable kAmxEmulatedTable;
extern const GruKernel kAmxEmulatedGru;
}  // namespace lowbit
