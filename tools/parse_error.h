#pragma once
// Errors of a command line, in the words of docs/cli.md.

#include <CLI/CLI.hpp>

#include "lowbit/error.h"

namespace lowbit::cli {

/// The innermost verb that was named; the program when there is none.
const CLI::App& named_verb(const CLI::App& app);
/// A verb as it is typed: "lowbit bench matmul".
std::string command_name(const CLI::App& app);

/// CLI11's error as what it got and what it wanted, with the name that was probably meant.
Error parse_error(const CLI::App& app, const CLI::ParseError& error);

}  // namespace lowbit::cli
