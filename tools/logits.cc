// lowbit logits: what a model says of the token that follows a text, or of every token of it.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "generation_options.h"
#include "lowbit/gru.h"
#include "lowbit/model.h"
#include "option_values.h"
#include "text_file.h"
#include "text_table.h"
#include "verbs.h"

namespace lowbit::cli {
namespace {

struct LogitsArguments {
  std::string model, text, file, out;
  int64_t top = 10;
  bool all = false;
  EncodeOptions encode;
  ModelOptions model_options;
};

struct Candidate {
  TokenId id;
  float logit;
  double probability;
};

/// The `top` likeliest tokens, the likeliest first.
std::vector<Candidate> likeliest(std::span<const float> logits, int64_t top) {
  std::vector<TokenId> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto logit = [&](TokenId id) {
    const float l = logits[static_cast<size_t>(id)];
    return std::isnan(l) ? -INFINITY : l;  // sorting needs an order
  };
  const auto count = std::min(ids.size(), static_cast<size_t>(top));
  std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count), ids.end(),
                    [&](TokenId a, TokenId b) { return logit(a) != logit(b) ? logit(a) > logit(b) : a < b; });
  const double largest = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  double sum = 0;
  for (const float l : logits) sum += std::exp(static_cast<double>(l) - largest);
  std::vector<Candidate> out;
  for (size_t i = 0; i < count; ++i)
    out.push_back({ids[i], logit(ids[i]), std::exp(static_cast<double>(logit(ids[i])) - largest) / sum});
  return out;
}

/// Rows [positions, vocabulary] after the tokens from `first` on.
Result<std::vector<float>> rows_of(Model& model, const std::vector<TokenId>& tokens, int64_t first) {
  std::vector<float> rows;
  if (first + 1 == static_cast<int64_t>(tokens.size())) {
    const auto last = model.prefill(tokens);
    if (!last) return tl::unexpected(last.error());
    rows.assign(last->begin(), last->end());
  } else if (auto done = model.logits_of_all(tokens, first, rows); !done) {
    return tl::unexpected(done.error());
  }
  return rows;
}

Status logits_action(Console& console, LogitsArguments& a, const Compute& compute) {
  std::string text = a.text;
  if (!a.file.empty()) {
    auto from_file = read_text(a.file);
    if (!from_file) return tl::unexpected(from_file.error());
    text = std::move(*from_file);
  }
  auto model = open_model(console, a.model, compute, a.model_options);
  if (!model) return tl::unexpected(model.error());
  auto tokens = model->tokenizer().encode(text, a.encode);
  if (!tokens) return tl::unexpected(tokens.error());
  if (const auto& start = model->tokenizer().spec().bos_id; tokens->empty() && start) tokens->push_back(*start);
  if (tokens->empty()) return fail(ErrorCode::kInvalidArgument, "-p", "an empty text", "some text");
  const auto count = static_cast<int64_t>(tokens->size());
  if (count > model->info().context)
    return fail(ErrorCode::kInvalidArgument, "-p", fmt::format("{} tokens", count),
                fmt::format("at most {}", model->info().context), "shorten it, or ask for a larger context (-c)");
  const int64_t first = a.all ? 0 : count - 1;
  const auto rows = rows_of(*model, *tokens, first);
  if (!rows) return tl::unexpected(rows.error());
  const int64_t vocab = model->info().vocab_size;
  if (!a.out.empty())
    if (auto saved = write_float_array(a.out, *rows, std::vector<int64_t>{count - first, vocab}); !saved) return saved;
  nlohmann::json positions = nlohmann::json::array();
  for (int64_t i = first; i < count; ++i) {
    const TokenId after = (*tokens)[static_cast<size_t>(i)];
    const auto row = std::span(*rows).subspan(static_cast<size_t>((i - first) * vocab), static_cast<size_t>(vocab));
    nlohmann::json top = nlohmann::json::array();
    console.print("{:>6}  after {} {}\n", i, after, in_quotes(model->tokenizer().piece(after)));
    for (const Candidate& c : likeliest(row, a.top)) {
      const std::string_view piece = model->tokenizer().piece(c.id);
      top.push_back({{"id", c.id}, {"piece", piece}, {"logit", c.logit}, {"probability", c.probability}});
      console.print("{:>16}  {:>10.4f}  {:>7.3f} %  {}\n", c.id, c.logit, 100 * c.probability, in_quotes(piece));
    }
    positions.push_back({{"position", i}, {"after", after}, {"top", top}});
  }
  if (console.json())
    console.put_json({{"model", model->info().path},
                      {"activation", model->info().activation},
                      {"tokens", *tokens},
                      {"vocab_size", vocab},
                      {"positions", positions}});
  return {};
}

}  // namespace

void add_logits_verb(Verb& app, Invocation& invocation) {
  auto a = std::make_shared<LogitsArguments>();
  Verb* verb = app.add_subcommand("logits", "What follows a text: the likeliest tokens, or all logits");
  add_model_argument(*verb, a->model);
  Option* prompt = verb->add_option("-p,--prompt", a->text, "text; \"\" is its start")->type_name("TEXT");
  Option* file = verb->add_option("--file", a->file, "text from a file; - is stdin")->type_name("FILE");
  prompt->excludes(file);
  add_count_option(*verb, "--top", a->top, {0, int64_t{1} << 30}, "tokens to show of each position [10]");
  verb->add_flag("--all", a->all, "after every token, not only the last");
  verb->add_option("-o,--output", a->out, "all logits, f32 [positions, vocabulary]")->type_name("LOGITS.npy");
  verb->add_flag_callback(
      "--no-special", [a] { a->encode.add_special = false; }, "do not put BOS or EOS around the text");
  verb->add_flag("--parse-special", a->encode.parse_special, "text such as <|im_end|> is that token");
  add_model_options(*verb, a->model_options);
  verb->callback([=, &invocation] {
    if (prompt->count() + file->count() == 0)
      throw UsageError{{ErrorCode::kInvalidArgument, "lowbit logits", "no text", "-p TEXT or --file FILE", ""}};
    invocation.action = [a, &invocation](Console& console) { return logits_action(console, *a, invocation.compute); };
  });
}

}  // namespace lowbit::cli
