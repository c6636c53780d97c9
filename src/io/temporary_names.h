#pragma once
// Names of files and folders that are being written beside their targets: `.tmp-NAME-PID-N`. Whoever writes one holds a
// lock on it, so that what a killed writer leaves behind is known, and removed by the next one with the same target.

#include <string>

namespace lowbit {

/// ".tmp-NAME-", NAME cut to 200 bytes.
std::string temporary_prefix(const std::string& name);

/// The `attempt`-th name in `folder` for this process.
std::string temporary_path(const std::string& folder, const std::string& prefix, int attempt);

/// Opens a file or folder and locks it; -1 when it is gone or another process holds it.
int lock_path(const std::string& path);

/// Removes what dead writers left in `folder` under this prefix. Best effort: what cannot be removed does no harm.
void remove_stale(const std::string& folder, const std::string& prefix);

constexpr int kMaxTemporaryNames = 100;  // attempts

}  // namespace lowbit
