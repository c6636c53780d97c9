#pragma once
// The text of `--help`.

#include <CLI/CLI.hpp>
#include <string>

namespace lowbit::cli {

/// CLI11's help, wrapped to 80 columns, without what the usage line says already.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter();
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override;
  std::string make_option(const CLI::Option* option, bool is_positional) const override;
  std::string make_option_opts(const CLI::Option* option) const override;
  std::string make_subcommand(const CLI::App* verb) const override;
};

/// The end of a verb's help: command lines to start from. `command`: "lowbit bench matmul".
std::string examples_of(const std::string& command);

}  // namespace lowbit::cli
