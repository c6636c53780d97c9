#include "lowbit/version.h"

namespace lowbit {

const char* version() { return LOWBIT_VERSION; }  // defined by CMake, from its project()

}  // namespace lowbit
