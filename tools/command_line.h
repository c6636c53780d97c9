#pragma once
// Verbs and their options. CLI11 reads the command line; its headers take five seconds to compile, so verbs see only
// what they use of it, under its names.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace lowbit::cli {

/// Options of this group are in `--help-all` alone.
inline constexpr const char* kMoreOptions = "More options";

/// An option of a verb, or one of its arguments.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  Option* required();
  Option* type_name(const std::string& name);
  /// Under which heading it is in the help; "": hidden.
  Option* group(const std::string& name);
  Option* excludes(const Option* other);
  Option* excludes(const std::string& other);
  Option* needs(const Option* other);
  /// Values between `separator`.
  Option* delimiter(char separator);
  Option* expected(int low, int high);
  /// It may be given several times, with one value each time.
  Option* repeatable();
  /// How often it was given.
  size_t count() const;

 private:
  CLI::Option* option_;
};

/// A verb, or the program itself. Its options and verbs live as long as it does.
class Verb {
 public:
  explicit Verb(CLI::App* app) : app_(app) {}

  Verb* add_subcommand(const std::string& name, const std::string& description);
  // A name without dashes is that of an argument.
  Option* add_option(const std::string& name, std::string& value, const std::string& help);
  Option* add_option(const std::string& name, std::vector<std::string>& values, const std::string& help);
  Option* add_option(const std::string& name, std::vector<int64_t>& values, const std::string& help);
  Option* add_option_function(const std::string& name, const std::function<void(const std::string&)>& take,
                              const std::string& help);
  Option* add_option_function(const std::string& name, const std::function<void(const std::vector<std::string>&)>& take,
                              const std::string& help);
  Option* add_flag(const std::string& name, bool& value, const std::string& help);
  Option* add_flag_callback(const std::string& name, std::function<void()> take, const std::string& help);

  Option* set_help_flag(const std::string& name, const std::string& help);
  Option* set_help_all_flag(const std::string& name, const std::string& help);
  Option* set_version_flag(const std::string& name, const std::string& version, const std::string& help);
  /// Runs once the verb and its options are read.
  void callback(std::function<void()> run);
  void require_subcommand(int count);
  void group(const std::string& name);
  /// The end of its help.
  void footer(const std::string& text);

  std::string name() const;
  std::list<Verb>& verbs() { return verbs_; }
  /// How often the option of that name was given.
  size_t count(const std::string& option) const;

 private:
  Option* keep(CLI::Option* option) { return &options_.emplace_back(option); }

  CLI::App* app_;
  std::list<Option> options_;
  std::list<Verb> verbs_;
};

}  // namespace lowbit::cli
