#pragma once

namespace lowbit {

/// python/lowbit/recover/openings.txt and passages.txt, as they are: CMake makes the source that holds them.
extern const char* const kOpenings;
extern const char* const kPassages;

}  // namespace lowbit
