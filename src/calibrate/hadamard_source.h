#pragma once

#include <memory>

#include "lowbit/error.h"
#include "model/source.h"

namespace lowbit {

/// A model of the same function with a Hadamard transform in front of every down_proj at run time and its inverse in
/// that weight: `source`, seen like that. It must outlive what is returned. Errors: kInvalidArgument (it has such a
/// transform already; an odd intermediate_size), what parse_model_spec says.
Result<std::unique_ptr<WeightSource>> hadamard_source(const WeightSource& source);

}  // namespace lowbit
