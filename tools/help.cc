#include "help.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

#include "command_line.h"

namespace lowbit::cli {
namespace {

constexpr size_t kColumns = 80, kDescriptionColumn = 26;

/// `description` beside `name`, or below it where the name is too long.
std::string entry(const std::string& name, std::string_view description) {
  std::string out = fmt::format("  {:<{}}", name, kDescriptionColumn - 3);
  const bool is_too_long = out.size() >= kDescriptionColumn;
  size_t column = is_too_long ? kColumns : kDescriptionColumn - 1;
  while (!description.empty()) {
    const size_t space = std::min(description.find(' '), description.size());
    if (column + 1 + space > kColumns) {
      out += fmt::format("\n{:{}}", "", kDescriptionColumn - 1);
      column = kDescriptionColumn - 1;
    }
    out += fmt::format(" {}", description.substr(0, space));
    column += 1 + space;
    description.remove_prefix(std::min(space + 1, description.size()));
  }
  return out + "\n";
}

struct Examples {
  std::string_view command, lines;
};

// In this order they run one after the other in a folder with text.txt, net.npz (GRU weights) and x.npy (inputs of it).
constexpr std::array kExamples = {
    Examples{"lowbit import", "lowbit import default smol\n"},
    Examples{"lowbit quantize",
             "lowbit quantize default smol-best --preset best\n"
             "lowbit quantize default smol-int4 --format int4\n"
             "lowbit quantize default smol-int3 --format int3 --calib text.txt\n"
             "lowbit quantize default smol-mixed --target-bpw 3 --calib text.txt\n"
             "lowbit quantize default smol-ternary --format ternary --group tensor\n"},
    Examples{"lowbit export", "lowbit export smol-ternary smol-packed\n"},
    Examples{"lowbit inspect",
             "lowbit inspect smol-int4\n"
             "lowbit inspect smol-int4 --kernels\n"
             "lowbit inspect --format int3\n"},
    Examples{"lowbit verify", "lowbit verify smol-int4\n"},
    Examples{"lowbit run",
             "lowbit run smol-int4 -p \"The three largest cities are\" -n 60 --temp 0\n"
             "lowbit run smol-int4 -p \"Once upon a time\" --temp 1 --seed 7\n"
             "lowbit run smol-int4 -p \"Once upon a time\" -n 8 --trace a.trace\n"
             "lowbit run smol-int4 -p \"Once upon a time\" -n 8 --isa ref --trace b.trace\n"},
    Examples{"lowbit trace",
             "lowbit trace a.trace b.trace\n"
             "lowbit trace a.trace\n"},
    Examples{"lowbit chat",
             "lowbit chat smol-int4\n"
             "lowbit chat smol-int4 --system \"Answer in one sentence.\"\n"},
    Examples{"lowbit tokenize",
             "lowbit tokenize smol-int4 -p \"a few words\"\n"
             "lowbit tokenize smol-int4 --decode 1,2,3\n"},
    Examples{"lowbit logits",
             "lowbit logits smol-int4 -p \"The three largest\" --top 5\n"
             "lowbit logits smol-int4 -p \"a few words\" --all --top 0 -o logits.npy\n"},
    Examples{"lowbit ppl",
             "lowbit ppl smol-int4 -f text.txt --chunks 20\n"
             "lowbit ppl default -f text.txt --act f32 --save-logits base.logits\n"
             "lowbit ppl smol-int4 -f text.txt --against base.logits\n"},
    Examples{"lowbit eval",
             "lowbit eval smol-int4 --against default --text text.txt --page smol-int4.html\n"
             "lowbit eval smol-int4 --tasks ppl,kld --against default --text text.txt\n"
             "lowbit eval smol-int4 --tasks arc_easy --questions 100\n"},
    Examples{"lowbit report", "lowbit report smol-int4 smol-int3 -o page.html\n"},
    Examples{"lowbit bench matmul",
             "lowbit bench matmul --format int4 -M 1 -N 4096 -K 4096\n"
             "lowbit bench matmul --format int2 --warm --vs int8\n"},
    Examples{"lowbit bench model", "lowbit bench model smol-int4 -p 128 -n 64\n"},
    Examples{"lowbit bench attention", "lowbit bench attention -c 8192 --kv f16,int4\n"},
    Examples{"lowbit bench memory", "lowbit bench memory --bytes 1G\n"},
    Examples{"lowbit bench gru", "lowbit bench gru -C 256 -H 256 --preset accurate\n"},
    Examples{"lowbit bench fp8", "lowbit bench fp8 -M 16 -N 1024 -K 1024 --warm\n"},
    Examples{"lowbit gru calibrate", "lowbit gru calibrate net.npz --data x.npy -o ranges.json\n"},
    Examples{"lowbit gru quantize",
             "lowbit gru quantize net.npz --ranges ranges.json -o net.lbgru\n"
             "lowbit gru quantize net.npz --ranges ranges.json --preset seed8 -o net8.lbgru\n"},
    Examples{"lowbit gru tune", "lowbit gru tune net.npz --ranges ranges.json --data x.npy -o tuned.json\n"},
    Examples{"lowbit gru search",
             "lowbit gru search net.npz --ranges ranges.json --input x.npy --floor 30 \\\n"
             "    -o bits.json\n"},
    Examples{"lowbit gru encodings", "lowbit gru encodings net.lbgru -o encodings.json\n"},
    Examples{"lowbit gru run", "lowbit gru run net.lbgru --input x.npy -o h.npy\n"},
    Examples{"lowbit gru verify", "lowbit gru verify net.lbgru --input x.npy --net net.npz\n"},
    Examples{"lowbit doctor", "lowbit doctor --json\n"},
};

}  // namespace

HelpFormatter::HelpFormatter() {
  label("SUBCOMMAND", "VERB");
  label("Positionals", "Arguments");
}

/// CLI11 parts some sections by two empty lines.
std::string HelpFormatter::make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const {
  std::string text = CLI::Formatter::make_help(app, std::move(name), mode);
  for (size_t at = 0; (at = text.find("\n\n\n", at)) != text.npos;) text.erase(at, 1);
  if (mode == CLI::AppFormatMode::All) return text;
  const std::string heading = std::string("\n") + kMoreOptions + ":\n";
  const size_t begin = text.find(heading);
  if (begin == text.npos) return text;
  const size_t end = text.find("\n\n", begin + heading.size());
  return text.erase(begin, end == text.npos ? text.npos : end + 1 - begin);
}

std::string HelpFormatter::make_option(const CLI::Option* option, bool is_positional) const {
  return entry(make_option_name(option, is_positional) + make_option_opts(option), make_option_desc(option));
}

std::string HelpFormatter::make_option_opts(const CLI::Option* option) const {
  std::string out;
  if (option->get_type_size() != 0 && !option->get_type_name().empty()) out += " " + option->get_type_name();
  if (option->get_required() && option->nonpositional()) out += " (required)";
  return out;
}

std::string HelpFormatter::make_subcommand(const CLI::App* verb) const {
  return entry(verb->get_name(), verb->get_description());
}

std::string examples_of(const std::string& command) {
  for (const Examples& e : kExamples) {
    if (e.command != command) continue;
    std::string out = e.lines.find('\n') + 1 == e.lines.size() ? "Example:" : "Examples:";
    for (std::string_view rest = e.lines; !rest.empty();) {
      const size_t end = rest.find('\n') + 1;
      out += "\n  ";
      out += rest.substr(0, end - 1);
      rest.remove_prefix(end);
    }
    return out;
  }
  return "";
}

}  // namespace lowbit::cli
