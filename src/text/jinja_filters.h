#pragma once
// Filters by name. jinja_filters.cc has those of single values, jinja_list_filters.cc those of lists.

#include <span>
#include <string_view>

#include "text/jinja_eval.h"

namespace lowbit::jinja {

using Filter = Result<Value> (*)(Interpreter&, const Value& input, const Arguments&);

struct NamedFilter {
  std::string_view name;
  Filter filter;
};

std::span<const NamedFilter> list_filters();

}  // namespace lowbit::jinja
