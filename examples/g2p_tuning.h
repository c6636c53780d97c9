#pragma once
// Scales of both networks chosen by what they do to the phonemes: how far the integer decoder's probabilities are from
// the float decoder's, which reads the same phonemes.

#include <array>
#include <vector>

#include "g2p_network.h"

namespace g2p {

/// The float network's answers to some words, step by step.
class Teacher {
 public:
  Teacher(const Network& net, const Calibration& c) : net_(net), c_(c) {
    for (size_t j = 0; j < kHidden; ++j)
      for (size_t v = 0; v < kPhonemes; ++v) by_unit_[j * kPhonemes + v] = net.arrays.at("fc_w").data[v * kHidden + j];
    for (const lowbit::GruInput& in : c.decoder) {
      const auto y = value_or_exit(lowbit::run_gru(net.decoder, in)).y;
      Words_ w;
      w.lengths.assign(static_cast<size_t>(in.batch), in.steps);
      for (int64_t t = 0; t < in.steps; ++t)
        for (int64_t n = 0; n < in.batch; ++n) {
          w.scores.push_back(scores(y.data() + (t * in.batch + n) * kHidden));
          const auto& s = w.scores.back();
          int64_t& length = w.lengths[static_cast<size_t>(n)];
          if (std::max_element(s.begin(), s.end()) - s.begin() == kStop) length = std::min(length, t + 1);
        }
      words_.push_back(std::move(w));
    }
  }

  /// The encoder's last states.
  std::vector<std::vector<float>> encode(const GruModel& encoder) const {
    std::vector<std::vector<float>> states;
    for (const lowbit::GruInput& in : c_.encoder) states.push_back(value_or_exit(encoder.run(in)).final_state);
    return states;
  }
  /// Mean divergence of the phonemes' probabilities, as -10 log10: larger is better.
  double value(const GruModel& decoder, const std::vector<std::vector<float>>& states) const {
    double sum = 0, steps = 0;
    for (size_t i = 0; i < words_.size(); ++i) {
      lowbit::GruInput in = c_.decoder[i];
      in.h0 = states[i];
      in.lengths = words_[i].lengths;
      const auto y = value_or_exit(decoder.run(in)).y;
      for (int64_t t = 0; t < in.steps; ++t)
        for (int64_t n = 0; n < in.batch; ++n) {
          if (t >= words_[i].lengths[static_cast<size_t>(n)]) continue;
          const auto row = static_cast<size_t>(t * in.batch + n);
          const Scores got = scores(y.data() + row * kHidden), &wanted = words_[i].scores[row];
          for (size_t v = 0; v < kPhonemes; ++v)
            sum += std::exp(static_cast<double>(wanted[v])) * static_cast<double>(wanted[v] - got[v]);
          ++steps;
        }
    }
    return -10 * std::log10(sum / steps);
  }

 private:
  static constexpr size_t kPhonemes = 74;
  using Scores = std::array<float, kPhonemes>;  // logarithms of probabilities
  struct Words_ {
    std::vector<int64_t> lengths;  // with the end
    std::vector<Scores> scores;    // [steps, batch]
  };

  Scores scores(const float* h) const {
    Scores s;
    std::copy_n(net_.arrays.at("fc_b").data.begin(), kPhonemes, s.begin());
    for (size_t j = 0; j < kHidden; ++j)
      for (size_t v = 0; v < kPhonemes; ++v) s[v] += h[j] * by_unit_[j * kPhonemes + v];
    double sum = 0;
    const float highest = *std::max_element(s.begin(), s.end());
    for (const float v : s) sum += std::exp(static_cast<double>(v - highest));
    for (float& v : s) v -= highest + static_cast<float>(std::log(sum));
    return s;
  }

  const Network& net_;
  const Calibration& c_;
  std::vector<Words_> words_;
  std::vector<float> by_unit_ = std::vector<float>(kHidden * kPhonemes);
};

struct Ranges {
  lowbit::GruRanges encoder, decoder;
};

/// Encoder and decoder in turn, each with the other's integers; h, which they share, stays as it is.
inline Ranges tune(const Network& net, const Calibration& c, const lowbit::GruConfig& config, Ranges ranges) {
  using enum lowbit::GruTensor;
  const Teacher teacher(net, c);
  lowbit::GruTuneOptions options;
  options.config = config;
  options.tensors = {kHh, kIh, kUi, kRi, kNi, kX};
  options.passes = 1;
  for (int turn = 0; turn < 2; ++turn) {
    const auto decoder = value_or_exit(GruModel::quantize(net.decoder, ranges.decoder, config, {c.decoder}));
    options.inputs = c.encoder;
    options.metric = [&](const GruModel& m) -> lowbit::Result<double> {
      return teacher.value(decoder, teacher.encode(m));
    };
    ranges.encoder = value_or_exit(lowbit::tune_gru_ranges(net.encoder, ranges.encoder, options)).ranges;
    const auto states =
        teacher.encode(value_or_exit(GruModel::quantize(net.encoder, ranges.encoder, config, {c.encoder})));
    options.inputs = c.decoder;
    options.metric = [&](const GruModel& m) -> lowbit::Result<double> { return teacher.value(m, states); };
    ranges.decoder = value_or_exit(lowbit::tune_gru_ranges(net.decoder, ranges.decoder, options)).ranges;
  }
  return ranges;
}

}  // namespace g2p
