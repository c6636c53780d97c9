#pragma once
// Programmer errors only; what a user gives is answered with an Error (lowbit/error.h).
#include <cassert>
#define LOWBIT_DCHECK(cond) assert(cond)
