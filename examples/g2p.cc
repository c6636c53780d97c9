// Words to phonemes on integers only: two GRUs (encoder, decoder), embeddings and output layer of g2p_en.
//
// usage: g2p DIR [--preset P [--tune]] WORD...        pronounces words
//        g2p DIR --evaluate [--json]         phoneme error rates of several formats on words held apart
//        g2p DIR --choose                    8 bits calibrated and rounded in several ways, on other words (minutes)
// --tune: scales sought by what they do to the phonemes of 2,000 other words (a minute).
// DIR holds checkpoint20.npz and cmudict.dict.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "g2p_tuning.h"

namespace {

using namespace g2p;  // NOLINT

// ---- On integers ----------------------------------------------------------------------------------------------------

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

Ranges measure(const Network& net, const Calibration& c, const lowbit::GruCalibrateOptions& options) {
  using enum lowbit::GruTensor;
  Ranges r{value_or_exit(lowbit::GruRanges::measure(net.encoder, c.encoder, options)),
           value_or_exit(lowbit::GruRanges::measure(net.decoder, c.decoder, options))};
  // The decoder starts with the encoder's state: both must have the same h.
  const auto a = r.encoder.range(0, kH), b = r.decoder.range(0, kH);
  for (auto* of : {&r.encoder, &r.decoder}) of->set_range(0, kH, std::min(a[0], b[0]), std::max(a[1], b[1]));
  return r;
}

IntegerNetwork quantize(const Network& net, const Calibration& c, const lowbit::GruConfig& config,
                        const Ranges& ranges) {
  using lowbit::GruTensor;
  IntegerNetwork n{value_or_exit(GruModel::quantize(net.encoder, ranges.encoder, config, {c.encoder})),
                   value_or_exit(GruModel::quantize(net.decoder, ranges.decoder, config, {c.decoder})),
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

// ---- Evaluation -----------------------------------------------------------------------------------------------------

using lowbit::GruRounding, lowbit::GruTableMode;

struct Variant {
  std::string name, preset;
  int weight_bits = 8;
  GruRounding rounding = GruRounding::kNearest;
  GruTableMode table = GruTableMode::kFused;
  lowbit::GruCalibrateOptions calibration = {};
  bool tuned = false;
};

/// `tuning`: of other words than `c`, for variants that want them.
IntegerNetwork quantize(const Network& net, const Calibration& c, const Calibration& tuning, const Variant& v) {
  auto config = value_or_exit(lowbit::gru_preset(v.preset));
  config.w.bits = config.r.bits = v.weight_bits;
  config.table = v.table;
  Ranges ranges = measure(net, v.tuned ? tuning : c, v.calibration);
  if (v.tuned) ranges = tune(net, tuning, config, std::move(ranges));
  config.rounding = v.rounding;
  return quantize(net, v.tuned ? tuning : c, config, ranges);
}

/// 8 bits everywhere in several ways, on words that are neither calibrated on nor tested.
int choose(const std::string& dir) {
  const Network net = load(dir);
  const Dictionary dictionary = read_dictionary(dir + "/cmudict.dict");
  const HeldApart words = hold_apart(dictionary);
  FloatState floats{&net, {}};
  auto wanted = pronounce(words.choice, float_runner(floats));
  const Score base = score(dictionary, words.choice, wanted, wanted);
  const Calibration c = calibrate_on(net, words.calibration), tuning = calibrate_on(net, words.tuning);
  const auto attempt = [&](const Variant& v) {
    const IntegerNetwork integers = quantize(net, c, tuning, v);
    IntegerState s{&integers, {}, {}, {}};
    auto got = pronounce(words.choice, integer_runner(s));
    const Score loss = score(dictionary, words.choice, got, wanted);
    std::printf("%-9s %-5s %-10s %-6s %-8s PER %+.3f   same as float %5.2f %%\n", v.preset.c_str(),
                v.tuned ? "tuned" : "", gru_method_name(v.calibration.method),
                v.table == GruTableMode::kDirect ? "direct" : "fused",
                v.rounding == GruRounding::kFeedback ? "feedback" : "nearest", loss.per - base.per, loss.same);
    std::fflush(stdout);
  };
  using enum lowbit::GruMethod;
  for (const auto& [method, percentile] :
       {std::pair{kMinMax, 1.0}, {kEma, 1.0}, {kPercentile, 0.999}, {kPercentile, 0.995}, {kSqnr, 1.0}})
    attempt({"", "seed8", 8, GruRounding::kNearest, GruTableMode::kFused, {method, percentile}});
  attempt({"", "accurate8"});
  for (const char* preset : {"seed8", "accurate8"})
    for (const GruRounding rounding : {GruRounding::kNearest, GruRounding::kFeedback})
      for (const GruTableMode table : {GruTableMode::kFused, GruTableMode::kDirect})
        attempt({"", preset, 8, rounding, table, {}, true});
  return 0;
}

int evaluate(const std::string& dir, bool json) {
  const Network net = load(dir);
  const Dictionary dictionary = read_dictionary(dir + "/cmudict.dict");
  const auto [calibration, test, unused, tuning_words] = hold_apart(dictionary);
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
  const Calibration c = calibrate_on(net, calibration), tuning = calibrate_on(net, tuning_words);
  for (const Variant& v : std::vector<Variant>{
           {"seed8", "seed8"},
           {"seed8, tuned", "seed8", 8, GruRounding::kNearest, GruTableMode::kFused, {}, true},  // by --choose
           {"gates12", "gates12"},
           {"w8a16", "w8a16"},
           {"accurate", "accurate"},
           {"w4 nearest", "w8a16", 4},
           {"w4 feedback", "w8a16", 4, GruRounding::kFeedback}}) {
    const IntegerNetwork integers = quantize(net, c, tuning, v);
    IntegerState s{&integers, {}, {}, {}};
    auto got = pronounce(test, integer_runner(s));
    report(v.name, score(dictionary, test, got, wanted),
           static_cast<double>(integers.encoder.bytes()) / (4.0 * static_cast<double>(integers.encoder.parameters())));
  }
  if (json)
    std::cout << nlohmann::json{{"calibration_words", calibration.size()},
                                {"tuning_words", tuning_words.size()},
                                {"test_words", test.size()},
                                {"rows", rows}}
                     .dump(1)
              << "\n";
  return 0;
}

int speak(const std::string& dir, const Variant& variant, const Words& words) {
  const Network net = load(dir);
  const HeldApart held = hold_apart(read_dictionary(dir + "/cmudict.dict"));
  const IntegerNetwork integers = quantize(net, calibrate_on(net, held.calibration),
                                           calibrate_on(net, variant.tuned ? held.tuning : Words{}), variant);
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
  Variant variant{"", "gates12"};
  bool evaluating = false, choosing = false, json = false;
  for (int i = 2; i < argc; ++i) {
    if (std::strcmp(argv[i], "--evaluate") == 0) {
      evaluating = true;
    } else if (std::strcmp(argv[i], "--choose") == 0) {
      choosing = true;
    } else if (std::strcmp(argv[i], "--json") == 0) {
      json = true;
    } else if (std::strcmp(argv[i], "--preset") == 0 && i + 1 < argc) {
      variant.preset = argv[++i];
    } else if (std::strcmp(argv[i], "--tune") == 0) {
      variant.tuned = true;
    } else {
      words.emplace_back(argv[i]);
    }
  }
  if (argc < 2 || (!evaluating && !choosing && words.empty())) {
    std::fprintf(stderr,
                 "usage: g2p DIR [--preset P [--tune]] WORD... | g2p DIR --evaluate [--json] | g2p DIR --choose\n");
    return 2;
  }
  if (choosing) return choose(argv[1]);
  return evaluating ? evaluate(argv[1], json) : speak(argv[1], variant, words);
}
