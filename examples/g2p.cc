// Words to phonemes on integers only: two GRUs (encoder, decoder), embeddings and output layer of g2p_en.
//
// usage: g2p DIR [--preset P] WORD...        pronounces words
//        g2p DIR --evaluate [--json]         phoneme error rates of several formats on words held apart
//        g2p DIR --choose                    8 bits calibrated and rounded in several ways, on other words (minutes)
// DIR holds checkpoint20.npz and cmudict.dict.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "dictionary.h"
#include "example_error.h"
#include "lowbit/gru.h"

namespace {

using lowbit::GruModel;
using lowbit::GruNetwork;

constexpr int kHidden = 256, kLetters = 29, kMaxPhonemes = 20;
constexpr int kEnd = 2, kStart = 2, kStop = 3;  // letters' </s>, phonemes' <s> and </s>

const Phonemes& phoneme_names() {
  static const Phonemes names = [] {
    Phonemes out = {"<pad>", "<unk>", "<s>", "</s>"};
    std::istringstream rest(
        "AA0 AA1 AA2 AE0 AE1 AE2 AH0 AH1 AH2 AO0 AO1 AO2 AW0 AW1 AW2 AY0 AY1 AY2 B CH D DH EH0 EH1 EH2 ER0 ER1 ER2 EY0 "
        "EY1 EY2 F G HH IH0 IH1 IH2 IY0 IY1 IY2 JH K L M N NG OW0 OW1 OW2 OY0 OY1 OY2 P R S SH T TH UH0 UH1 UH2 UW UW0 "
        "UW1 UW2 V W Y Z ZH");
    for (std::string p; rest >> p;) out.push_back(p);
    return out;
  }();
  return names;
}

struct Network {
  GruNetwork encoder, decoder;
  std::map<std::string, lowbit::GruArray> arrays;
};

Network load(const std::string& dir) {
  const std::string path = dir + "/checkpoint20.npz";
  Network n;
  n.encoder = value_or_exit(lowbit::load_gru(path, {"enc_"}));
  n.decoder = value_or_exit(lowbit::load_gru(path, {"dec_"}));
  for (auto& a : value_or_exit(lowbit::read_float_arrays(path))) n.arrays[a.name] = std::move(a);
  const auto phonemes = static_cast<int64_t>(phoneme_names().size());
  for (const auto& [name, shape] : std::map<std::string, std::vector<int64_t>>{{"enc_emb", {kLetters, kHidden}},
                                                                               {"dec_emb", {phonemes, kHidden}},
                                                                               {"fc_w", {phonemes, kHidden}},
                                                                               {"fc_b", {phonemes}}})
    if (n.arrays[name].shape != shape)
      stop(path + ": got no '" + name + "' of the right shape, wanted g2p_en's weights");
  for (const auto& [name, array] : n.arrays)
    if (!std::all_of(array.data.begin(), array.data.end(), [](float v) { return std::isfinite(v); }))
      stop(path + ": got numbers in '" + name + "' that are not finite, wanted weights");
  if (n.encoder.input() != kHidden || n.encoder.output() != kHidden || n.decoder.input() != kHidden ||
      n.decoder.output() != kHidden || n.encoder.cells.size() != 1 || n.decoder.cells.size() != 1)
    stop(path + ": got networks of another shape, wanted g2p_en's weights");
  return n;
}

/// Of either case; 1 stands for what is no letter.
int letter(char c) {
  const char small = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return small >= 'a' && small <= 'z' ? 3 + (small - 'a') : 1;
}

/// What runs the two networks: a step of the encoder or decoder for a batch of tokens, and the likeliest phonemes.
struct Runner {
  std::function<void(size_t batch)> begin;                     // encoder at rest
  std::function<void(const std::vector<int>& tokens)> encode;  // one letter of each word
  std::function<void()> hand_over;                             // the encoder's state to the decoder
  std::function<std::vector<int>(const std::vector<int>& tokens)> decode;
};

/// Words of one length at a time, as a batch.
std::map<std::string, Phonemes> pronounce(const Words& words, const Runner& run) {
  std::map<size_t, Words> by_length;
  for (const std::string& w : words) by_length[w.size()].push_back(w);
  std::map<std::string, Phonemes> out;
  for (const auto& [length, group] : by_length) {
    run.begin(group.size());
    for (size_t at = 0; at <= length; ++at) {
      std::vector<int> tokens;
      for (const std::string& w : group) tokens.push_back(at < length ? letter(w[at]) : kEnd);
      run.encode(tokens);
    }
    run.hand_over();
    std::vector<int> tokens(group.size(), kStart);
    std::vector<bool> done(group.size(), false);
    for (int i = 0; i < kMaxPhonemes; ++i) {
      tokens = run.decode(tokens);
      for (size_t w = 0; w < group.size(); ++w) {
        done[w] = done[w] || tokens[w] == kStop;
        if (!done[w]) out[group[w]].push_back(phoneme_names()[static_cast<size_t>(tokens[w])]);
      }
      if (std::all_of(done.begin(), done.end(), [](bool d) { return d; })) break;
    }
  }
  return out;
}

// ---- In floats, also for calibration ------------------------------------------------------------------------------------

struct FloatState {
  const Network* net;
  std::vector<float> h;
  std::vector<std::vector<float>>*encoder_inputs = nullptr, *decoder_inputs = nullptr, *decoder_h0 = nullptr;
};

std::vector<float> embed(const lowbit::GruArray& table, const std::vector<int>& tokens) {
  std::vector<float> x;
  for (const int t : tokens)
    x.insert(x.end(), table.data.begin() + t * kHidden, table.data.begin() + (t + 1) * kHidden);
  return x;
}

void float_step(const GruNetwork& net, const std::vector<float>& x, std::vector<float>& h) {
  lowbit::GruInput in;
  in.steps = 1;
  in.batch = static_cast<int64_t>(h.size()) / kHidden;
  in.x = x;
  in.h0 = h;
  h = value_or_exit(lowbit::run_gru(net, in)).y;
}

/// Index of the largest of 74 scores of each row.
template <class Score>
std::vector<int> likeliest(size_t rows, const Score& score) {
  std::vector<int> out;
  for (size_t m = 0; m < rows; ++m) {
    int best = 0;
    auto highest = score(m, 0);
    for (int i = 1; i < static_cast<int>(phoneme_names().size()); ++i)
      if (const auto s = score(m, i); s > highest) {
        highest = s;
        best = i;
      }
    out.push_back(best);
  }
  return out;
}

Runner float_runner(FloatState& s) {
  const Network& net = *s.net;
  Runner r;
  r.begin = [&s](size_t batch) {
    s.h.assign(batch * kHidden, 0);
    if (s.encoder_inputs) s.encoder_inputs->emplace_back();
  };
  r.encode = [&s, &net](const std::vector<int>& tokens) {
    const auto x = embed(net.arrays.at("enc_emb"), tokens);
    if (s.encoder_inputs) s.encoder_inputs->back().insert(s.encoder_inputs->back().end(), x.begin(), x.end());
    float_step(net.encoder, x, s.h);
  };
  r.hand_over = [&s] {
    if (!s.decoder_inputs) return;
    s.decoder_inputs->emplace_back();
    s.decoder_h0->push_back(s.h);
  };
  r.decode = [&s, &net](const std::vector<int>& tokens) {
    const auto x = embed(net.arrays.at("dec_emb"), tokens);
    if (s.decoder_inputs) s.decoder_inputs->back().insert(s.decoder_inputs->back().end(), x.begin(), x.end());
    float_step(net.decoder, x, s.h);
    const auto &w = net.arrays.at("fc_w").data, &b = net.arrays.at("fc_b").data;
    return likeliest(tokens.size(), [&](size_t m, int i) {
      double sum = static_cast<double>(b[static_cast<size_t>(i)]);
      for (size_t j = 0; j < kHidden; ++j)
        sum += static_cast<double>(w[static_cast<size_t>(i) * kHidden + j]) * static_cast<double>(s.h[m * kHidden + j]);
      return sum;
    });
  };
  return r;
}

struct Calibration {
  std::vector<std::vector<float>> encoder_x, decoder_x, decoder_h0;
  std::vector<lowbit::GruInput> encoder, decoder;
};

Calibration calibrate_on(const Network& net, const Words& words) {
  Calibration c;
  FloatState s{&net, {}, &c.encoder_x, &c.decoder_x, &c.decoder_h0};
  pronounce(words, float_runner(s));
  for (size_t i = 0; i < c.encoder_x.size(); ++i) {
    const auto batch = static_cast<int64_t>(c.decoder_h0[i].size()) / kHidden;
    lowbit::GruInput in;
    in.batch = batch;
    in.x = c.encoder_x[i];
    in.steps = static_cast<int64_t>(in.x.size()) / kHidden / batch;
    c.encoder.push_back(in);
    in.x = c.decoder_x[i];
    in.steps = static_cast<int64_t>(in.x.size()) / kHidden / batch;
    in.h0 = c.decoder_h0[i];
    c.decoder.push_back(in);
  }
  return c;
}

// ---- On integers ----------------------------------------------------------------------------------------------------------

/// v as codes of a tensor with this format and scale.
std::vector<int32_t> codes_of(const std::vector<float>& v, const lowbit::GruFormat& f, const lowbit::GruScale& s) {
  std::vector<int32_t> out;
  for (const float x : v) {
    const double q = std::nearbyint(std::ldexp(static_cast<double>(x), s.shift)) + s.zp;
    out.push_back(static_cast<int32_t>(std::clamp(q, static_cast<double>(f.q_min()), static_cast<double>(f.q_max()))));
  }
  return out;
}

/// Everything as integers: embeddings on the networks' input scales, 12-bit weights of the output layer.
struct IntegerNetwork {
  GruModel encoder, decoder;
  std::vector<int32_t> encoder_embedding, decoder_embedding, fc_w;
  std::vector<int64_t> fc_b;
  int32_t state_zero = 0;
};

IntegerNetwork quantize(const Network& net, const Calibration& c, const lowbit::GruConfig& config,
                        const lowbit::GruCalibrateOptions& options = {}) {
  using lowbit::GruTensor;
  auto enc = value_or_exit(lowbit::GruRanges::measure(net.encoder, c.encoder, options));
  auto dec = value_or_exit(lowbit::GruRanges::measure(net.decoder, c.decoder, options));
  // The decoder starts with the encoder's state: both must have the same h.
  const auto a = enc.range(0, GruTensor::kH), b = dec.range(0, GruTensor::kH);
  for (auto* r : {&enc, &dec}) r->set_range(0, GruTensor::kH, std::min(a[0], b[0]), std::max(a[1], b[1]));
  IntegerNetwork n{value_or_exit(GruModel::quantize(net.encoder, enc, config, {c.encoder})),
                   value_or_exit(GruModel::quantize(net.decoder, dec, config, {c.decoder})),
                   {},
                   {},
                   {},
                   {},
                   0};
  const auto& x = config[GruTensor::kX];
  n.encoder_embedding = codes_of(net.arrays.at("enc_emb").data, x, n.encoder.input_scale());
  n.decoder_embedding = codes_of(net.arrays.at("dec_emb").data, x, n.decoder.input_scale());
  const lowbit::GruScale h = n.decoder.output_scale();
  constexpr int kShift = 9;  // of fc_w: 12 bits hold +-4
  n.fc_w = codes_of(net.arrays.at("fc_w").data, {12, false, true, 1}, {kShift, 0});
  for (const float v : net.arrays.at("fc_b").data)
    n.fc_b.push_back(std::llrint(std::ldexp(static_cast<double>(v), kShift + h.shift)));
  n.state_zero = h.zp;
  return n;
}

struct IntegerState {
  const IntegerNetwork* net;
  std::vector<lowbit::GruStream> encoder, decoder;  // one each
  std::vector<int32_t> h;
};

std::vector<int32_t> pick(const std::vector<int32_t>& table, const std::vector<int>& tokens) {
  std::vector<int32_t> x;
  for (const int t : tokens) x.insert(x.end(), table.begin() + t * kHidden, table.begin() + (t + 1) * kHidden);
  return x;
}

Runner integer_runner(IntegerState& s) {
  const IntegerNetwork& net = *s.net;
  Runner r;
  r.begin = [&s, &net](size_t batch) {
    s.encoder.clear();
    s.decoder.clear();
    s.encoder.push_back(value_or_exit(net.encoder.stream(static_cast<int64_t>(batch))));
    s.decoder.push_back(value_or_exit(net.decoder.stream(static_cast<int64_t>(batch))));
    s.h.resize(batch * kHidden);
  };
  r.encode = [&s, &net](const std::vector<int>& tokens) {
    value_or_exit(s.encoder[0].step_codes(pick(net.encoder_embedding, tokens), s.h));
  };
  r.hand_over = [&s] { value_or_exit(s.decoder[0].set_state_codes(s.encoder[0].state_codes())); };
  r.decode = [&s, &net](const std::vector<int>& tokens) {
    value_or_exit(s.decoder[0].step_codes(pick(net.decoder_embedding, tokens), s.h));
    return likeliest(tokens.size(), [&](size_t m, int i) {
      int64_t sum = net.fc_b[static_cast<size_t>(i)];
      for (size_t j = 0; j < kHidden; ++j)
        sum += int64_t{net.fc_w[static_cast<size_t>(i) * kHidden + j]} * (s.h[m * kHidden + j] - net.state_zero);
      return sum;
    });
  };
  return r;
}

// ---- Evaluation -------------------------------------------------------------------------------------------------------------

using lowbit::GruRounding, lowbit::GruTableMode;

struct Variant {
  std::string name, preset;
  int weight_bits = 8;
  GruRounding rounding = GruRounding::kNearest;
  GruTableMode table = GruTableMode::kFused;
  lowbit::GruCalibrateOptions calibration = {};
};

IntegerNetwork quantize(const Network& net, const Calibration& c, const Variant& v) {
  auto config = value_or_exit(lowbit::gru_preset(v.preset));
  config.w.bits = config.r.bits = v.weight_bits;
  config.rounding = v.rounding;
  config.table = v.table;
  return quantize(net, c, config, v.calibration);
}

/// 8 bits everywhere with the calibration, rounding and tables that lose least on words that are neither calibrated on nor tested.
int choose(const std::string& dir) {
  const Network net = load(dir);
  const Dictionary dictionary = read_dictionary(dir + "/cmudict.dict");
  const HeldApart words = hold_apart(dictionary);
  FloatState floats{&net, {}};
  auto wanted = pronounce(words.choice, float_runner(floats));
  const Score base = score(dictionary, words.choice, wanted, wanted);
  const Calibration c = calibrate_on(net, words.calibration);
  using enum lowbit::GruMethod;
  for (const auto& [method, percentile] :
       {std::pair{kMinMax, 1.0}, {kEma, 1.0}, {kPercentile, 0.999}, {kPercentile, 0.995}, {kSqnr, 1.0}})
    for (const GruTableMode table : {GruTableMode::kFused, GruTableMode::kDirect})
      for (const GruRounding rounding : {GruRounding::kNearest, GruRounding::kFeedback}) {
        const IntegerNetwork integers = quantize(net, c, {"", "seed8", 8, rounding, table, {method, percentile}});
        IntegerState s{&integers, {}, {}, {}};
        auto got = pronounce(words.choice, integer_runner(s));
        const Score loss = score(dictionary, words.choice, got, wanted);
        std::printf("%-10s %-6s %-8s PER %+.3f   same as float %5.2f %%\n", gru_method_name(method),
                    table == GruTableMode::kDirect ? "direct" : "fused",
                    rounding == GruRounding::kFeedback ? "feedback" : "nearest", loss.per - base.per, loss.same);
        std::fflush(stdout);
      }
  return 0;
}

int evaluate(const std::string& dir, bool json) {
  const Network net = load(dir);
  const Dictionary dictionary = read_dictionary(dir + "/cmudict.dict");
  const auto [calibration, test, unused] = hold_apart(dictionary);
  FloatState floats{&net, {}};
  auto wanted = pronounce(test, float_runner(floats));
  const Score base = score(dictionary, test, wanted, wanted);
  nlohmann::json rows = nlohmann::json::array();
  const auto report = [&](const std::string& name, const Score& s, double ratio) {
    rows.push_back({{"name", name}, {"per", s.per}, {"words", s.words}, {"same", s.same}, {"bytes_ratio", ratio}});
    if (!json)
      std::printf("%-22s PER %7.3f %%   words right %6.2f %%   same as float %6.2f %%   size %.3f\n", name.c_str(),
                  s.per, s.words, s.same, ratio);
  };
  report("float", base, 1);
  const Calibration c = calibrate_on(net, calibration);
  for (const Variant& v : std::vector<Variant>{
           {"seed8", "seed8"},
           {"seed8, chosen", "seed8", 8, GruRounding::kFeedback, GruTableMode::kDirect},  // by --choose
           {"gates12", "gates12"},
           {"w8a16", "w8a16"},
           {"accurate", "accurate"},
           {"w4 nearest", "w8a16", 4},
           {"w4 feedback", "w8a16", 4, GruRounding::kFeedback}}) {
    const IntegerNetwork integers = quantize(net, c, v);
    IntegerState s{&integers, {}, {}, {}};
    auto got = pronounce(test, integer_runner(s));
    report(v.name, score(dictionary, test, got, wanted),
           static_cast<double>(integers.encoder.bytes()) / (4.0 * static_cast<double>(integers.encoder.parameters())));
  }
  if (json)
    std::cout << nlohmann::json{{"calibration_words", calibration.size()}, {"test_words", test.size()}, {"rows", rows}}
                     .dump(1)
              << "\n";
  return 0;
}

int speak(const std::string& dir, const std::string& preset, const Words& words) {
  const Network net = load(dir);
  const HeldApart held = hold_apart(read_dictionary(dir + "/cmudict.dict"));
  const IntegerNetwork integers =
      quantize(net, calibrate_on(net, held.calibration), value_or_exit(lowbit::gru_preset(preset)));
  IntegerState s{&integers, {}, {}, {}};
  auto spoken = pronounce(words, integer_runner(s));
  for (const std::string& w : words) {
    std::printf("%s ", w.c_str());
    for (const std::string& p : spoken[w]) std::printf(" %s", p.c_str());
    std::printf("\n");
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Words words;
  std::string preset = "gates12";
  bool evaluating = false, choosing = false, json = false;
  for (int i = 2; i < argc; ++i) {
    if (std::strcmp(argv[i], "--evaluate") == 0) {
      evaluating = true;
    } else if (std::strcmp(argv[i], "--choose") == 0) {
      choosing = true;
    } else if (std::strcmp(argv[i], "--json") == 0) {
      json = true;
    } else if (std::strcmp(argv[i], "--preset") == 0 && i + 1 < argc) {
      preset = argv[++i];
    } else {
      words.emplace_back(argv[i]);
    }
  }
  if (argc < 2 || (!evaluating && !choosing && words.empty())) {
    std::fprintf(stderr, "usage: g2p DIR [--preset P] WORD... | g2p DIR --evaluate [--json] | g2p DIR --choose\n");
    return 2;
  }
  if (choosing) return choose(argv[1]);
  return evaluating ? evaluate(argv[1], json) : speak(argv[1], preset, words);
}
