// Files of saved sessions. The first byte says which cache the model has, the second how many tokens were saved; where
// the third is odd the rest is the file, else three bytes each of the rest change one byte of what was saved.

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "fuzz_bytes.h"
#include "fuzz_file.h"
#include "fuzz_limits.h"
#include "small_caches.h"

namespace {

using lowbit::Session;
using lowbit::TokenId;
using lowbit::fuzz::Bytes;
using lowbit::fuzz::require;

std::vector<TokenId> some_tokens(size_t n) {
  std::vector<TokenId> tokens(n);
  for (size_t i = 0; i < n; ++i) tokens[i] = static_cast<TokenId>(i * i % lowbit::fuzz::SmallModel::kVocab);
  return tokens;
}

std::string saved(const Session& session) {
  static const lowbit::fuzz::FuzzFolder folder;
  const std::string path = folder.path() + "/session";
  require(session.save(path, "a note").has_value(), "a session that cannot be saved");
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::string file_of(Bytes& in, Session session) {
  const auto tokens = some_tokens(static_cast<size_t>(in.byte()));
  const bool whole = in.byte() % 2 == 1;
  if (whole) return {reinterpret_cast<const char*>(in.left().data()), in.left().size()};
  require(tokens.empty() || session.prefill(tokens).has_value(), "tokens that are refused");
  std::string file = saved(session);
  while (!in.empty()) {
    const size_t place = in.number<uint16_t>();
    file[place % file.size()] = static_cast<char>(in.byte());
  }
  return file;
}

lowbit::Result<std::string> load(Session& session, const std::string& file) {
  return session.load(lowbit::fuzz::FuzzFile(reinterpret_cast<const uint8_t*>(file.data()), file.size()).path());
}

/// Whatever keys and values a file holds, calls end with a result or an error.
void go_on(Session session) {
  const int64_t length = session.length();
  Session other = session.fork();
  (void)session.decode(3);
  (void)session.prefill(some_tokens(70));
  (void)session.truncate(length / 2);
  (void)session.generate(some_tokens(2), {.max_tokens = 3});
  (void)other.truncate(length - length / 8);
  (void)other.prefill(some_tokens(5));
}

template <class T>
bool same(std::span<const T> a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const lowbit::fuzz::TimeLimit limit;
  Bytes in(data, size);
  const lowbit::Model& model =
      lowbit::fuzz::model_with(static_cast<size_t>(in.below(std::size(lowbit::fuzz::kCaches))));
  const std::string file = file_of(in, model.session());
  Session session = model.session();
  require(session.prefill(some_tokens(3)).has_value(), "three tokens");
  const std::vector<float> logits(session.logits().begin(), session.logits().end());
  if (!load(session, file)) {
    require(same(session.tokens(), some_tokens(3)) && same(session.logits(), logits),
            "an error that changed a session");
    return 0;
  }
  const std::vector<TokenId> tokens(session.tokens().begin(), session.tokens().end());
  require(session.length() == static_cast<int64_t>(tokens.size()), "another length");
  Session again = model.session();
  require(load(again, saved(session)) && same(again.tokens(), tokens), "what was loaded cannot be saved and loaded");
  go_on(std::move(again));
  return 0;
}
