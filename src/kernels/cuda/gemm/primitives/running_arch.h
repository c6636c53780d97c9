#pragma once

namespace lowbit::cuda {

/// The compute capability, 90 for 9.0, whose code runs on the current device: its own, or an older one where nothing
/// newer was compiled (PTX for 8.0 on 9.0), which then has no clusters and bulk copies. 0 without a device.
int running_arch();

}  // namespace lowbit::cuda
