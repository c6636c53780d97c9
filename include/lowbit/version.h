#pragma once
// The version of this library, which files that it writes also carry.

namespace lowbit {

const char* version();  // "0.1.0"

}  // namespace lowbit
