#pragma once

#include "kernels/api.h"

namespace lowbit {
extern const KernelTable kAmxEmulatedTable;
}
