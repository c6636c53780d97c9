#pragma once
// Clusters on fibers: the emulated device has none, so that nobody calls these.

namespace lowbit::cuda {

inline void meet_in_cluster() {}
inline float load_from_cluster(const float* from, int) { return *from; }

}  // namespace lowbit::cuda
