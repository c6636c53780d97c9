#pragma once
// One HTML page, without scripts, links or files beside it: of `lowbit report` and `lowbit eval --page`.

#include <string>
#include <vector>

#include "report_figures.h"
#include "report_findings.h"

namespace lowbit::cli {

std::string report_page(const Findings& found, const std::vector<Figure>& figures);

}  // namespace lowbit::cli
