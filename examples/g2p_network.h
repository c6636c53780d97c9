#pragma once
// g2p_en's network in floats: letters to phonemes, words of one length at a time; and what calibration sees of it.

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <sstream>

#include "dictionary.h"
#include "example_error.h"
#include "lowbit/gru.h"

namespace g2p {

using lowbit::GruModel;
using lowbit::GruNetwork;

constexpr int kHidden = 256, kLetters = 29, kMaxPhonemes = 20;
constexpr int kEnd = 2, kStart = 2, kStop = 3;  // letters' </s>, phonemes' <s> and </s>

inline const Phonemes& phoneme_names() {
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

inline Network load(const std::string& dir) {
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
inline int letter(char c) {
  const char small = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return small >= 'a' && small <= 'z' ? 3 + (small - 'a') : 1;
}

/// Functions that run the two networks: a step of the encoder or decoder for a batch of tokens, and the likeliest
/// phonemes.
struct Runner {
  std::function<void(size_t batch)> begin;                     // encoder at rest
  std::function<void(const std::vector<int>& tokens)> encode;  // one letter of each word
  std::function<void()> hand_over;                             // the encoder's state to the decoder
  std::function<std::vector<int>(const std::vector<int>& tokens)> decode;
};

/// Words of one length at a time, as a batch.
inline std::map<std::string, Phonemes> pronounce(const Words& words, const Runner& run) {
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

// ---- In floats, also for calibration --------------------------------------------------------------------------------

struct FloatState {
  const Network* net;
  std::vector<float> h;
  std::vector<std::vector<float>>*encoder_inputs = nullptr, *decoder_inputs = nullptr, *decoder_h0 = nullptr;
};

inline std::vector<float> embed(const lowbit::GruArray& table, const std::vector<int>& tokens) {
  std::vector<float> x;
  for (const int t : tokens)
    x.insert(x.end(), table.data.begin() + t * kHidden, table.data.begin() + (t + 1) * kHidden);
  return x;
}

inline void float_step(const GruNetwork& net, const std::vector<float>& x, std::vector<float>& h) {
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

inline Runner float_runner(FloatState& s) {
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

inline Calibration calibrate_on(const Network& net, const Words& words) {
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

}  // namespace g2p
