#pragma once

namespace lowbit {

/// python/lowbit/recover/openings.txt, as it is: CMake makes the source that holds it.
extern const char* const kOpenings;

}  // namespace lowbit
