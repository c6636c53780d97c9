#include "command_line.h"

#include <CLI/CLI.hpp>
#include <utility>

namespace lowbit::cli {

Option* Option::required() {
  option_->required();
  return this;
}
Option* Option::type_name(const std::string& name) {
  option_->type_name(name);
  return this;
}
Option* Option::group(const std::string& name) {
  option_->group(name);
  return this;
}
Option* Option::excludes(const Option* other) {
  option_->excludes(other->option_);
  return this;
}
Option* Option::excludes(const std::string& other) {
  option_->excludes(other);
  return this;
}
Option* Option::needs(const Option* other) {
  option_->needs(other->option_);
  return this;
}
Option* Option::delimiter(char separator) {
  option_->delimiter(separator);
  return this;
}
Option* Option::expected(int low, int high) {
  option_->expected(low, high);
  return this;
}
Option* Option::repeatable() {
  option_->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)->allow_extra_args(false);
  return this;
}
size_t Option::count() const { return option_->count(); }

Verb* Verb::add_subcommand(const std::string& name, const std::string& description) {
  return &verbs_.emplace_back(app_->add_subcommand(name, description));
}
Option* Verb::add_option(const std::string& name, std::string& value, const std::string& help) {
  return keep(app_->add_option(name, value, help));
}
Option* Verb::add_option(const std::string& name, std::vector<std::string>& values, const std::string& help) {
  return keep(app_->add_option(name, values, help));
}
Option* Verb::add_option(const std::string& name, std::vector<int64_t>& values, const std::string& help) {
  return keep(app_->add_option(name, values, help));
}
Option* Verb::add_option_function(const std::string& name, const std::function<void(const std::string&)>& take,
                                  const std::string& help) {
  return keep(app_->add_option_function<std::string>(name, take, help));
}
Option* Verb::add_option_function(const std::string& name,
                                  const std::function<void(const std::vector<std::string>&)>& take,
                                  const std::string& help) {
  return keep(app_->add_option_function<std::vector<std::string>>(name, take, help));
}
Option* Verb::add_flag(const std::string& name, bool& value, const std::string& help) {
  return keep(app_->add_flag(name, value, help));
}
Option* Verb::add_flag_callback(const std::string& name, std::function<void()> take, const std::string& help) {
  return keep(app_->add_flag_callback(name, std::move(take), help));
}

Option* Verb::set_help_flag(const std::string& name, const std::string& help) {
  return keep(app_->set_help_flag(name, help));
}
Option* Verb::set_help_all_flag(const std::string& name, const std::string& help) {
  return keep(app_->set_help_all_flag(name, help));
}
Option* Verb::set_version_flag(const std::string& name, const std::string& version, const std::string& help) {
  return keep(app_->set_version_flag(name, version, help));
}
void Verb::callback(std::function<void()> run) { app_->callback(std::move(run)); }
void Verb::require_subcommand(int count) { app_->require_subcommand(count); }
void Verb::group(const std::string& name) { app_->group(name); }
void Verb::footer(const std::string& text) { app_->footer(text); }

std::string Verb::name() const { return app_->get_name(); }
size_t Verb::count(const std::string& option) const { return app_->count(option); }

}  // namespace lowbit::cli
