#include "parse_error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>

namespace lowbit::cli {
namespace {

std::vector<std::string> verbs_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* verb : app.get_subcommands({})) names.push_back(verb->get_name());
  return names;
}

/// "MODEL", "OUT".
std::vector<std::string> arguments_of(const CLI::App& verb) {
  std::vector<std::string> names;
  for (const CLI::Option* o : verb.get_options([](const CLI::Option* o) { return o->get_positional(); }))
    names.push_back(o->get_name());
  return names;
}

/// "--group", "-M": as a user types them; arguments, too.
std::vector<std::string> options_of(const CLI::App& verb) {
  std::vector<std::string> names = arguments_of(verb);
  for (const CLI::Option* option : verb.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

/// Letters to insert, remove or change to make one of the other (Levenshtein).
size_t distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0]++;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t changed = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({changed, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

/// Option names of llama.cpp, vLLM and others, and lowbit's names for them.
constexpr std::pair<std::string_view, std::string_view> kNamesElsewhere[] = {
    {"-t", "--threads"},
    {"-m", "MODEL"},
    {"-m", "SRC"},
    {"--model", "MODEL"},
    {"--model", "SRC"},
    {"-o", "OUT"},
    {"--output", "OUT"},
    {"--n-predict", "--tokens"},
    {"--max-new-tokens", "--tokens"},
    {"--ctx-size", "--context"},
    {"--max-model-len", "--context"},
    {"--temperature", "--temp"},
    {"--repetition-penalty", "--repeat-penalty"},
    {"--bits", "--format"},
    {"--quantization", "--format"},
    {"--group-size", "--group"},
    {"--imatrix", "--calib"},
    {"--dataset", "--calib"},
};

/// "did you mean `quantize`? ", or "" where nothing is near.
std::string suggestion(const std::string& got, const std::vector<std::string>& names) {
  for (const auto& [elsewhere, here] : kNamesElsewhere)
    if (got == elsewhere && std::find(names.begin(), names.end(), here) != names.end())
      return fmt::format("here it is `{}`; ", here);
  const auto nearest = std::min_element(names.begin(), names.end(), [&](const std::string& a, const std::string& b) {
    return distance(got, a) < distance(got, b);
  });
  const bool is_near = nearest != names.end() && distance(got, *nearest) <= got.size() / 3;
  return is_near ? fmt::format("did you mean `{}`? ", *nearest) : "";
}

/// Words that belong to nothing. An option that does not exist explains the others: its value comes after it.
void name_extras(const CLI::App& verb, std::vector<std::string> words, Error& out) {
  const auto option = std::find_if(words.begin(), words.end(), [](const std::string& w) { return w.starts_with("-"); });
  if (option == words.end()) {
    const auto arguments = arguments_of(verb);
    out.got = fmt::format("also '{}'", fmt::join(words, " "));
    out.wanted = arguments.empty() ? "options only" : fmt::format("{} and options", fmt::join(arguments, " "));
    return;
  }
  const std::string name = option->substr(0, option->find('='));
  out.got = fmt::format("'{}'", name);
  out.wanted = "one of its options";
  out.hint = suggestion(name, options_of(verb)) + out.hint;
}

}  // namespace

const CLI::App& named_verb(const CLI::App& app) {
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().front();
  return *at;
}

std::string command_name(const CLI::App& app) {
  std::string name = "lowbit";
  for (const CLI::App* at = &app; !at->get_subcommands().empty();) {
    at = at->get_subcommands().front();
    name += " " + at->get_name();
  }
  return name;
}

Error parse_error(const CLI::App& app, const CLI::ParseError& error) {
  const std::string name = command_name(app), what = error.what();
  const CLI::App& verb = named_verb(app);
  Error out{ErrorCode::kInvalidArgument, name, what, "", "see `" + name + " --help`"};
  // The words before `text`, if CLI11 says that.
  const auto before = [&](const char* text) { return what.substr(0, std::min(what.find(text), what.size())); };
  if (what == "A subcommand is required") {
    const auto rest = verb.remaining();
    out.got = rest.empty() ? "no verb" : "'" + rest.front() + "'";
    out.wanted = fmt::format("one of {}", fmt::join(verbs_of(verb), ", "));
    if (!rest.empty()) out.hint = suggestion(rest.front(), verbs_of(verb)) + out.hint;
  } else if (dynamic_cast<const CLI::RequiredError*>(&error)) {
    out.got = "no " + before(" is required");
    out.wanted = "one";
  } else if (dynamic_cast<const CLI::ExtrasError*>(&error)) {
    auto rest = app.remaining(true);
    if (&verb == &app || !app.remaining().empty()) {
      out.got = fmt::format("'{}' before the verb", app.remaining().front());
      out.wanted = "options behind it";
    } else {
      name_extras(verb, std::move(rest), out);
    }
  } else if (dynamic_cast<const CLI::ArgumentMismatch*>(&error)) {
    const std::string option = before(": ");
    const bool is_twice = what.find("At Most") != what.npos;
    out.got = option + (is_twice ? " twice" : " without a value");
    out.wanted = is_twice ? "it once" : "one";
  } else if (dynamic_cast<const CLI::ExcludesError*>(&error)) {
    out.got = fmt::format("{} and {}", before(" excludes "), what.substr(what.rfind(' ') + 1));
    out.wanted = "one of them";
  }
  return out;
}

}  // namespace lowbit::cli
