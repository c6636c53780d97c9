#pragma once
// The spec of a source's model, and whether lowbit executes it.

#include "arch/spec.h"
#include "lowbit/error.h"
#include "model/source.h"

namespace lowbit {

/// parse_model_spec() of a source's config.json; errors name the source, too.
Result<ModelSpec> model_spec_of(const WeightSource& source);

/// model_spec_of() for a model that will run. Errors: kUnsupported, naming all features that are not computed yet, of
/// the first block that has any.
Result<ModelSpec> executable_spec_of(const WeightSource& source);
Status check_executable(const ModelSpec& spec);

}  // namespace lowbit
