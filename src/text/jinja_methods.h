#pragma once
// Methods that templates call: `value.name(...)`. jinja_text_methods.cc has those of texts, jinja_methods.cc the
// others.

#include <string>
#include <string_view>

#include "text/jinja_eval.h"

namespace lowbit::jinja {

bool has_text_method(std::string_view name);
/// has_text_method(name) only.
Result<Value> call_text_method(Interpreter& in, const std::string& self, std::string_view name, const Arguments& args);

}  // namespace lowbit::jinja
