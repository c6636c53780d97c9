// Sequences of calls of the C ABI, with arguments that callers get wrong. Beside the library runs a plain account of
// what every sequence of tokens must hold; at the end one is computed once more and gives the same logits.

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "fuzz_bytes.h"
#include "fuzz_file.h"
#include "fuzz_limits.h"
#include "lowbit/lowbit.h"
#include "small_model.h"

namespace {

using lowbit::fuzz::Bytes;
using lowbit::fuzz::require;
using lowbit::fuzz::SmallModel;

constexpr int kMostCalls = 60;

/// Calls that lb_model_* and lb_session_* share.
struct Calls {
  int64_t (*length)(const void*);
  lb_status (*prefill)(void*, const int32_t*, size_t);
  lb_status (*decode)(void*, int32_t);
  lb_status (*logits)(const void*, const float**, size_t*);
  lb_status (*truncate)(void*, int64_t);
  lb_status (*generate)(void*, const int32_t*, size_t, const lb_generate_options*, int32_t*, size_t, size_t*);
};

#define LOWBIT_CALLS(kind)                                                                                           \
  {                                                                                                                  \
    [](const void* h) { return lb_##kind##_length(static_cast<const lb_##kind*>(h)); },                              \
        [](void* h, const int32_t* t, size_t n) { return lb_##kind##_prefill(static_cast<lb_##kind*>(h), t, n); },   \
        [](void* h, int32_t t) { return lb_##kind##_decode(static_cast<lb_##kind*>(h), t); },                        \
        [](const void* h, const float** l, size_t* n) {                                                              \
          return lb_##kind##_logits(static_cast<const lb_##kind*>(h), l, n);                                         \
        },                                                                                                           \
        [](void* h, int64_t n) { return lb_##kind##_truncate(static_cast<lb_##kind*>(h), n); },                      \
        [](void* h, const int32_t* p, size_t n, const lb_generate_options* o, int32_t* t, size_t c, size_t* count) { \
          return lb_##kind##_generate(static_cast<lb_##kind*>(h), p, n, o, t, c, count);                             \
        }                                                                                                            \
  }
constexpr Calls kModelCalls = LOWBIT_CALLS(model), kSessionCalls = LOWBIT_CALLS(session);
#undef LOWBIT_CALLS

/// Passes a status on; what failed says why.
lb_status said(lb_status status) {
  require(status >= LB_OK && status < LB_INTERNAL, "a status that is a fault of lowbit");
  require(status == LB_OK || *lb_last_error() != '\0', "a failure without a message");
  return status;
}

struct Sequence {
  void* handle = nullptr;
  const Calls* calls = nullptr;
  int model = 0;  // number of the model it belongs to
  std::vector<int32_t> tokens;
};

class World {
 public:
  explicit World(Bytes& in) : in_(in) {}
  ~World() {
    compare_with_a_new_session();
    for (Sequence& s : sequences_) close(s);
    lb_gru_close(gru_);
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  void call() {
    switch (in_.below(18)) {
      case 0:
        return open_model();
      case 1:
        return close(any());
      case 2:
      case 3:
        return prefill(any());
      case 4:
      case 5:
        return decode(any());
      case 6:
        return logits(any());
      case 7:
        return truncate(any());
      case 8:
        return generate(any());
      case 9:
        return open_session();
      case 10:
        return fork();
      case 11:
        return wait_for_pages();
      case 12:
        return tokenize();
      case 13:
        return detokenize();
      case 14:
        return chat_text();
      case 15:
        return product();
      case 16:
        return network();
      default:
        return options();
    }
  }

 private:
  Sequence& any() { return sequences_[static_cast<size_t>(in_.below(5))]; }
  Sequence& any_model() { return sequences_[static_cast<size_t>(in_.below(2))]; }
  static lb_model* model_of(const Sequence& s) { return static_cast<lb_model*>(s.handle); }

  void close(Sequence& s) {
    if (s.calls == &kModelCalls) lb_model_close(model_of(s));
    if (s.calls == &kSessionCalls) lb_session_close(static_cast<lb_session*>(s.handle));
    s = {};
  }

  void open_model() {
    static const SmallModel small;
    Sequence& s = any_model();
    close(s);
    lb_model_options o{};
    o.struct_size = in_.pick<size_t>({sizeof o, sizeof o, sizeof o, offsetof(lb_model_options, kv_positions),
                                      offsetof(lb_model_options, kv), 8, 0, SIZE_MAX});
    o.activation = in_.pick<const char*>(
        {nullptr, "f32", "int8", "int8-row", "int8-clip", "int4", "fp8", "f16", "bf16", "auto", "x", ""});
    o.device = in_.pick<const char*>({nullptr, "cpu", "auto", "cpu", "cuda:", "gpu", ""});
    o.context = in_.pick<int64_t>({0, 64, 100, 256, 1, 257, -1, INT64_MAX});
    o.threads = in_.pick<int32_t>({1, 2, 0, -1});
    o.kv_positions = in_.pick<int64_t>({0, 64, 128, 1, -5, INT64_MAX});
    o.kv = in_.pick<const char*>({nullptr, nullptr, "f16", "int8", "k4v2", "int2", "int", ""});
    o.kv_residual = in_.pick<int64_t>({0, -1, 64, -2, INT64_MAX});
    const char* path = in_.pick<const char*>(
        {small.path().c_str(), small.path().c_str(), small.path().c_str(), "/nowhere", "/", "", nullptr});
    lb_model* model = reinterpret_cast<lb_model*>(8);
    const lb_status status = said(lb_model_open(path, in_.below(8) == 0 ? nullptr : &o, &model));
    require(path == nullptr || (status == LB_OK) == (model != nullptr), "a model after an error");
    if (status != LB_OK) return;
    require(lb_model_vocab_size(model) == SmallModel::kVocab, "another vocabulary");
    s = {model, &kModelCalls, ++models_, {}};
  }

  void open_session() {
    Sequence& s = sequences_[static_cast<size_t>(2 + in_.below(3))];
    const Sequence& of = any_model();
    close(s);
    lb_session* session = reinterpret_cast<lb_session*>(8);
    const lb_status status = said(lb_session_open(model_of(of), &session));
    require((status == LB_OK) == (session != nullptr) && (status == LB_OK) == (of.handle != nullptr), "a session");
    if (session != nullptr) s = {session, &kSessionCalls, of.model, {}};
  }

  void fork() {
    Sequence& s = sequences_[static_cast<size_t>(2 + in_.below(3))];
    const Sequence& of = sequences_[static_cast<size_t>(2 + in_.below(3))];
    if (&s == &of) return;
    close(s);
    lb_session* session = reinterpret_cast<lb_session*>(8);
    const lb_status status = said(lb_session_fork(static_cast<const lb_session*>(of.handle), &session));
    require((status == LB_OK) == (session != nullptr), "a fork after an error");
    if (session != nullptr) s = {session, &kSessionCalls, of.model, of.tokens};
    check(s);
  }

  void wait_for_pages() {
    const Sequence& s = sequences_[static_cast<size_t>(2 + in_.below(3))];
    said(lb_session_wait_for_pages(static_cast<lb_session*>(s.handle), in_.pick<int64_t>({0, 1, 2, -1, INT64_MIN})));
  }

  static void check(const Sequence& s) {
    if (s.handle == nullptr) return;
    require(s.calls->length(s.handle) == static_cast<int64_t>(s.tokens.size()), "a length that no call explains");
  }

  std::vector<int32_t> some_tokens() {
    std::vector<int32_t> tokens(static_cast<size_t>(in_.below(12)));
    for (int32_t& t : tokens) {
      t = static_cast<int32_t>(in_.below(SmallModel::kVocab + 1));
      if (t == SmallModel::kVocab) t = in_.pick<int32_t>({-1, SmallModel::kVocab, INT32_MAX, INT32_MIN});
    }
    return tokens;
  }

  void prefill(Sequence& s) {
    if (s.handle == nullptr) return;
    std::vector<int32_t> tokens = some_tokens();
    for (int times = in_.below(4) == 0 ? 4 : 0; times > 0; --times)
      tokens.insert(tokens.end(), tokens.begin(), tokens.end());
    const size_t count =
        in_.below(16) == 0 ? in_.pick<size_t>({SIZE_MAX, SIZE_MAX / 4 + 1, size_t{1} << 63}) : tokens.size();
    const int32_t* p = in_.below(32) == 0 ? nullptr : tokens.data();
    if (said(s.calls->prefill(s.handle, p, count)) == LB_OK) {
      require(count == tokens.size() && (p != nullptr || count == 0), "more tokens than there are");
      s.tokens.insert(s.tokens.end(), tokens.begin(), tokens.end());
    }
    check(s);
  }

  void decode(Sequence& s) {
    if (s.handle == nullptr) return;
    const auto token = static_cast<int32_t>(in_.below(SmallModel::kVocab + 2)) - 1;
    if (said(s.calls->decode(s.handle, token)) == LB_OK) {
      require(token >= 0 && token < SmallModel::kVocab, "a token outside the vocabulary");
      s.tokens.push_back(token);
    }
    check(s);
  }

  static void logits(const Sequence& s) {
    const float* found = nullptr;
    size_t count = 0;
    if (s.calls == nullptr) return;
    if (said(s.calls->logits(s.handle, &found, &count)) != LB_OK) return;
    require(!s.tokens.empty() && count == SmallModel::kVocab, "logits of nothing");
    for (size_t i = 0; i < count; ++i) require(found[i] == found[i], "a logit that is not a number");
  }

  void truncate(Sequence& s) {
    if (s.handle == nullptr) return;
    const int64_t length = in_.below(8) == 0 ? in_.number<int64_t>() : in_.below(70);
    const bool fits = length >= 0 && length <= static_cast<int64_t>(s.tokens.size());
    require((said(s.calls->truncate(s.handle, length)) == LB_OK) == fits, "a length that is taken or refused wrongly");
    if (fits) s.tokens.resize(static_cast<size_t>(length));
    check(s);
  }

  lb_generate_options some_options() {
    lb_generate_options o{};
    lb_generate_options_init(&o);
    o.max_tokens = in_.pick<int64_t>({1, 3, 8, 0, -1, 30});
    const auto number = [&](float usual) {
      return in_.below(2) == 0 ? usual : in_.pick({0.0f, 1.0f, -1.0f, in_.number<float>()});
    };
    o.temperature = number(0.8f);
    o.top_p = number(0.9f);
    o.min_p = number(0.05f);
    o.repeat_penalty = number(1.0f);
    o.top_k = in_.pick<int64_t>({40, 0, 1, -1, INT64_MAX});
    o.seed = in_.byte();
    o.ignore_eos = static_cast<int32_t>(in_.below(2));
    calls_left_ = in_.below(8);
    o.user = this;
    o.on_text = [](void* user, const char* text, size_t size) -> int32_t {
      lowbit::fuzz::touch(std::as_bytes(std::span(text, size)));
      return --static_cast<World*>(user)->calls_left_ < 0;
    };
    return o;
  }

  void generate(Sequence& s) {
    if (s.handle == nullptr) return;
    const std::vector<int32_t> prompt = some_tokens();
    const lb_generate_options o = some_options();
    int32_t made[16];
    size_t count = 0;
    const size_t wrong = in_.below(16) == 0 ? SIZE_MAX : prompt.size();
    const size_t before = s.tokens.size(), capacity = in_.pick<size_t>({16, 3, 0});
    const lb_status status = said(s.calls->generate(s.handle, prompt.data(), wrong, &o, made, capacity, &count));
    const int64_t length = s.calls->length(s.handle);
    require(length >= static_cast<int64_t>(before), "a sequence that generating made shorter");
    if (status == LB_OK && count <= capacity) {
      s.tokens.insert(s.tokens.end(), prompt.begin(), prompt.end());
      s.tokens.insert(s.tokens.end(), made, made + count);
      require(length <= static_cast<int64_t>(s.tokens.size()), "more tokens than were told");
      s.tokens.resize(static_cast<size_t>(length));
    } else {  // what was appended is not known
      require(said(s.calls->truncate(s.handle, static_cast<int64_t>(before))) == LB_OK, "going back is refused");
    }
    check(s);
  }

  void tokenize() {
    const std::string text = some_text();
    int32_t tokens[8];
    size_t count = 0;
    const auto capacity = static_cast<size_t>(in_.below(9));
    const lb_status status =
        said(lb_model_tokenize(model_of(any_model()), text.data(), text.size(), static_cast<int32_t>(in_.below(2)),
                               static_cast<int32_t>(in_.below(2)), tokens, capacity, &count));
    for (size_t i = 0; status == LB_OK && i < std::min(count, capacity); ++i)
      require(tokens[i] >= 0 && tokens[i] < SmallModel::kVocab, "a token outside the vocabulary");
  }

  void detokenize() {
    const std::vector<int32_t> tokens = some_tokens();
    char text[16];
    size_t size = 0;
    said(lb_model_detokenize(model_of(any_model()), tokens.data(), tokens.size(), text,
                             static_cast<size_t>(in_.below(17)), &size));
  }

  void chat_text() {
    std::string variables = some_text();
    if (in_.below(2) == 0) variables = R"({"messages": [{"role": "user", "content": ")" + variables + "\"}]}";
    char text[32];
    size_t size = 0;
    said(lb_model_chat_text(model_of(any_model()), variables.data(), variables.size(), text,
                            static_cast<size_t>(in_.below(33)), &size));
  }

  std::string some_text() {
    std::string text(static_cast<size_t>(in_.below(24)), ' ');
    for (char& c : text) c = static_cast<char>(in_.byte());
    return text;
  }

  void product() {
    lb_quantized_mm_args a{};
    const auto size = [&] {
      return in_.below(16) == 0 ? in_.pick<int64_t>({-1, INT64_MAX, int64_t{1} << 40}) : in_.below(9);
    };
    const bool wrong = in_.below(8) == 0;
    a.struct_size = in_.pick<size_t>({sizeof a, sizeof a, sizeof a, 8, 0, SIZE_MAX});
    a.m = wrong ? size() : in_.below(9), a.n = wrong ? size() : in_.below(9), a.k = wrong ? size() : in_.below(9);
    a.bits = static_cast<uint32_t>(in_.pick({1, 2, 4, 8, 3, 0, 64}));
    a.input_stride = in_.below(12), a.weight_stride = in_.below(12), a.output_stride = in_.below(12);
    a.input_type = in_.pick({LB_F32, LB_F16, LB_BF16});
    a.output_type = in_.pick({LB_F32, LB_F16, LB_BF16});
    a.scale = in_.number<float>();
    a.group = in_.pick<int64_t>({0, 1, 3, 100, -1});
    const int64_t rows = std::max<int64_t>(0, std::min<int64_t>(a.n, 9)),
                  columns = std::max<int64_t>(0, std::min<int64_t>(a.k, 9));
    // As large as what is accepted can be: sizes up to 8, strides up to 11.
    const std::vector<uint8_t> input(static_cast<size_t>(4 * (8 * 11 + 9)), 1),
        weight(static_cast<size_t>(8 * 11 + 9), in_.byte());
    std::vector<uint8_t> output(static_cast<size_t>(4 * (8 * 11 + 9)));
    const std::vector<float> bias(9, 1), scales(static_cast<size_t>(rows * columns + 9), 0.5f);
    const int32_t ends[3] = {static_cast<int32_t>(in_.below(9)), static_cast<int32_t>(in_.below(9)),
                             static_cast<int32_t>(rows)};
    a.input = input.data(), a.weight = weight.data(), a.output = in_.below(16) == 0 ? nullptr : output.data();
    if (in_.below(2) == 0) a.bias = bias.data();
    if (in_.below(2) == 0) a.scales = scales.data();
    if (in_.below(4) == 0) a.row_ends = ends, a.ranges = in_.below(4);
    said(lb_quantized_mm_args_run_host(in_.below(64) == 0 ? nullptr : &a));
  }

  void network() {
    if (gru_ == nullptr || in_.below(8) == 0) {
      lb_gru_close(gru_);
      lb_gru_options o{};
      o.struct_size = in_.pick<size_t>({sizeof o, sizeof o, 8, 0});
      o.isa = in_.pick<const char*>({nullptr, "scalar", "avx2", "x", ""});
      o.device = in_.pick<const char*>({nullptr, "cpu", "x"});
      static const std::string kNetwork = std::string(LOWBIT_FUZZ_CORPUS) + "/lbgru/seed8";
      require((said(lb_gru_open(kNetwork.c_str(), &o, &gru_)) == LB_OK) == (gru_ != nullptr),
              "a network after an error");
      return;
    }
    const int64_t batch = in_.below(4), steps = in_.below(5), c = lb_gru_input(gru_), y = lb_gru_output(gru_);
    std::vector<float> x(static_cast<size_t>(std::max<int64_t>(1, steps) * batch * c + 1), in_.number<float>());
    std::vector<float> out(static_cast<size_t>(std::max<int64_t>(1, steps) * batch * y + 1));
    std::vector<float> state(static_cast<size_t>(batch * lb_gru_state_size(gru_) + 1));
    const std::vector<int64_t> lengths(static_cast<size_t>(batch + 1), in_.below(7) - 1);
    if (in_.below(2) == 0) {
      said(lb_gru_step(gru_, x.data(), batch, out.data()));
      if (in_.below(4) == 0) lb_gru_reset(gru_);
      return;
    }
    lb_gru_run_args a{};
    a.struct_size = in_.pick<size_t>({sizeof a, sizeof a, sizeof a, 8});
    const bool wrong = in_.below(16) == 0;
    a.steps = wrong ? in_.pick<int64_t>({-1, INT64_MAX, INT64_MIN}) : steps;
    a.batch = wrong ? in_.pick<int64_t>({2, INT64_MAX, -1}) : batch;
    a.batch_first = static_cast<int32_t>(in_.below(2));
    a.x = x.data(), a.y = out.data();
    if (in_.below(2) == 0) a.h0 = state.data(), a.final_state = state.data();
    if (in_.below(2) == 0) a.lengths = lengths.data();
    said(lb_gru_run(gru_, &a));
  }

  void options() {
    alignas(lb_generate_options) unsigned char place[4096];
    const size_t size = in_.pick<size_t>({sizeof(lb_generate_options), 4096, 0, 8, SIZE_MAX, 4097, 100});
    if (said(lb_generate_options_init2(reinterpret_cast<lb_generate_options*>(place), size)) == LB_OK)
      require(reinterpret_cast<lb_generate_options*>(place)->struct_size == size, "another struct_size");
    require(lb_status_name(in_.pick({LB_OK, LB_CORRUPT, LB_INTERNAL})) != nullptr && lb_version() != nullptr,
            "no name");
  }

  /// The last sequence that has logits, and a model to begin anew with.
  void compare_with_a_new_session() const {
    for (const Sequence& s : sequences_)
      for (const Sequence& of : {sequences_[0], sequences_[1]}) {
        if (s.handle == nullptr || s.model != of.model || s.tokens.empty()) continue;
        const float *a = nullptr, *b = nullptr;
        size_t n = 0;
        if (s.calls->logits(s.handle, &a, &n) != LB_OK) continue;
        lb_session* again = nullptr;
        require(lb_session_open(model_of(of), &again) == LB_OK, "no session");
        const lb_status status = said(lb_session_prefill(again, s.tokens.data(), s.tokens.size()));
        require(status == LB_OK || status == LB_OUT_OF_MEMORY, "tokens that were taken before");
        if (status == LB_OK)
          require(lb_session_logits(again, &b, &n) == LB_OK && std::memcmp(a, b, n * sizeof *a) == 0, "other logits");
        lb_session_close(again);
      }
  }

  Bytes& in_;
  Sequence sequences_[5];  // two models' own, then sessions
  int models_ = 0;
  int64_t calls_left_ = 0;
  lb_gru* gru_ = nullptr;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const lowbit::fuzz::TimeLimit limit;
  Bytes in(data, size);
  World world(in);
  for (int i = 0; i < kMostCalls && !in.empty(); ++i) world.call();
  return 0;
}
