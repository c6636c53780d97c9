// Noisy speech to clean speech with NSNet2: two GRUs and four dense layers, on integers only.
//
// usage: denoise DIR IN.wav OUT.wav [--preset P] [--calibrate SOUND.wav] [--float] [--json]    16 kHz mono
//        denoise DIR - OUT             a stream: raw 16-bit samples from stdin, each 16 ms written when they are done;
//                                      OUT a WAV file, or `-` for raw samples on stdout, e.g. arecord -t raw -f S16_LE
//                                      -r 16000 | denoise DIR - - | aplay -t raw -f S16_LE -r 16000
//        denoise DIR --evaluate [--json]                                SI-SDR of several formats on DIR's own pair
// DIR holds the network's .npy files; --evaluate needs clean.wav and noisy.wav. Calibration: the first 400 frames of
// SOUND.wav; without it of the input for files, and of DIR's noisy.wav for streams and --evaluate.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "example_error.h"
#include "lowbit/dense.h"
#include "lowbit/gru.h"
#include "sound.h"

namespace {

constexpr int kCalibrationFrames = 400;

// ---- The network ----------------------------------------------------------------------------------------------------

using lowbit::DenseFunction, lowbit::DenseLayer, lowbit::DenseTensor;

struct Dense {
  lowbit::GruArray w;  // [inputs, outputs]
  std::vector<float> bias;
  DenseFunction function = DenseFunction::kLinear;

  std::vector<float> run(const std::vector<float>& x) const {
    const auto k = static_cast<size_t>(w.shape[0]), n = static_cast<size_t>(w.shape[1]);
    std::vector<float> y(x.size() / k * n);
    for (size_t t = 0; t * k < x.size(); ++t) {
      float* to = y.data() + t * n;
      std::copy(bias.begin(), bias.end(), to);
      for (size_t i = 0; i < k; ++i) {
        const float v = x[t * k + i];
        const float* row = w.data.data() + i * n;
        if (v != 0)
          for (size_t j = 0; j < n; ++j) to[j] += v * row[j];
      }
      for (size_t j = 0; j < n && function != DenseFunction::kLinear; ++j)
        to[j] = function == DenseFunction::kRelu ? std::max(to[j], 0.0f) : 1 / (1 + std::exp(-to[j]));
    }
    return y;
  }
  DenseLayer quantized(const DenseTensor& in_tensor, const DenseTensor& out_tensor) const {
    lowbit::DenseWeights rows{w.shape[0], w.shape[1], {}, bias, function};
    for (int64_t j = 0; j < rows.outputs; ++j)
      for (int64_t i = 0; i < rows.inputs; ++i) rows.w.push_back(w.data[static_cast<size_t>(i * rows.outputs + j)]);
    return value_or_exit(DenseLayer::quantize(rows, in_tensor, out_tensor));
  }
};

struct Network {
  Dense in, hidden[2], out;
  lowbit::GruNetwork gru;
};

Network load(const std::string& dir) {
  std::map<std::string, lowbit::GruArray> arrays;
  for (auto& a : value_or_exit(lowbit::read_float_arrays(dir))) arrays[a.name] = std::move(a);
  const auto dense = [&](const std::string& w, const std::string& b, DenseFunction function) {
    if (arrays.count(w) == 0 || arrays.count(b) == 0 || arrays[w].shape.size() != 2 ||
        arrays[b].data.size() != static_cast<size_t>(arrays[w].shape[1]))
      stop(dir + ": got no " + w + ".npy and " + b + ".npy that fit, wanted NSNet2's weights");
    return Dense{arrays[w], arrays[b].data, function};
  };
  Network net{dense("onnx__MatMul_166", "fc1_bias", DenseFunction::kLinear),
              {dense("onnx__MatMul_207", "fc2_bias", DenseFunction::kRelu),
               dense("onnx__MatMul_208", "fc3_bias", DenseFunction::kRelu)},
              dense("onnx__MatMul_209", "fc4_bias", DenseFunction::kSigmoid),
              value_or_exit(lowbit::load_gru(dir))};
  const auto joins = [](const Dense& a, const Dense& b) { return a.w.shape[1] == b.w.shape[0]; };
  if (net.in.w.shape[0] != kBins || net.in.w.shape[1] != net.gru.input() ||
      net.gru.output() != net.hidden[0].w.shape[0] || !joins(net.hidden[0], net.hidden[1]) ||
      !joins(net.hidden[1], net.out) || net.out.w.shape[1] != kBins)
    stop(dir + ": got layers that do not fit each other, wanted NSNet2's weights");
  return net;
}

std::vector<float> features(const std::vector<kiss_fft_cpx>& spectra) {
  std::vector<float> out;
  for (const auto& c : spectra) out.push_back(std::log(c.r * c.r + c.i * c.i + 1e-8f));
  return out;
}

lowbit::GruInput sequence(const std::vector<float>& x, int64_t columns) {
  lowbit::GruInput in;
  in.batch = 1;
  in.x = x;
  in.steps = static_cast<int64_t>(x.size()) / columns;
  return in;
}

std::vector<float> mask_of(const Network& net, const std::vector<float>& gru_output) {
  return net.out.run(net.hidden[1].run(net.hidden[0].run(gru_output)));
}

lowbit::GruModel quantize(const Network& net, const std::vector<float>& gru_input, const lowbit::GruConfig& config) {
  const auto columns = net.gru.input();
  const std::vector<float> first(
      gru_input.begin(),
      gru_input.begin() + std::min<int64_t>(static_cast<int64_t>(gru_input.size()), kCalibrationFrames * columns));
  const lowbit::GruInput in = sequence(first, columns);
  const auto ranges = value_or_exit(lowbit::GruRanges::measure(net.gru, std::span(&in, 1)));
  return value_or_exit(lowbit::GruModel::quantize(net.gru, ranges, config, {std::span(&in, 1)}));
}

/// The whole network in integers.
struct IntegerNetwork {
  DenseLayer in;
  lowbit::GruModel gru;
  DenseLayer hidden[2], out;

  /// Masks from features; the GRUs take and give the codes as floats, which is exact.
  std::vector<float> mask(const std::vector<float>& features) const {
    const auto x = in.decode(value_or_exit(in.run(in.encode(features))));
    lowbit::GruModel::RunOptions options;
    options.codes = true;
    const auto y = value_or_exit(gru.run(sequence(x, gru.input()), options));
    const auto least = static_cast<int32_t>(hidden[0].in().format.q_min());
    std::vector<uint16_t> codes(y.codes.size());
    std::transform(y.codes.begin(), y.codes.end(), codes.begin(),
                   [&](int32_t q) { return static_cast<uint16_t>(q - least); });
    for (const DenseLayer& layer : hidden) codes = value_or_exit(layer.run(codes));
    return out.decode(value_or_exit(out.run(codes)));
  }
  /// The mask of the next frame, with the bits of mask() over all frames.
  std::vector<float> next_mask(lowbit::GruStream& stream, const std::vector<float>& features) const {
    const auto x = value_or_exit(in.run(in.encode(features)));
    const auto x_least = static_cast<int32_t>(in.out().format.q_min()),
               y_least = static_cast<int32_t>(hidden[0].in().format.q_min());
    std::vector<int32_t> x_codes(x.begin(), x.end()), y_codes(static_cast<size_t>(gru.output()));
    for (int32_t& q : x_codes) q += x_least;
    if (const auto done = stream.step_codes(x_codes, y_codes); !done) stop(done.error().message());
    std::vector<uint16_t> codes(y_codes.size());
    std::transform(y_codes.begin(), y_codes.end(), codes.begin(),
                   [&](int32_t q) { return static_cast<uint16_t>(q - y_least); });
    for (const DenseLayer& layer : hidden) codes = value_or_exit(layer.run(codes));
    return out.decode(value_or_exit(out.run(codes)));
  }
  int64_t bytes() const { return in.bytes() + gru.bytes() + hidden[0].bytes() + hidden[1].bytes() + out.bytes(); }
  int64_t parameters() const {
    int64_t all = gru.parameters();
    for (const DenseLayer* layer : {&in, &hidden[0], &hidden[1], &out}) all += (layer->inputs() + 1) * layer->outputs();
    return all;
  }
};

/// Ranges from the floats of the first frames.
IntegerNetwork quantize_all(const Network& net, std::vector<float> features, const lowbit::GruConfig& config) {
  features.resize(std::min(features.size(), static_cast<size_t>(kCalibrationFrames * kBins)));
  const auto x = net.in.run(features);
  const auto y = value_or_exit(lowbit::run_gru(net.gru, sequence(x, net.gru.input()))).y;
  const auto a = net.hidden[0].run(y), b = net.hidden[1].run(a);
  const auto model = quantize(net, x, config);
  const auto covering = [](const std::vector<float>& v, bool positive) {
    const auto [low, high] = std::minmax_element(v.begin(), v.end());
    return DenseTensor::covering({16, positive, false, 1}, *low, *high);
  };
  const DenseTensor gru_x{config[lowbit::GruTensor::kX], model.input_scale()};
  const DenseTensor gru_h{config[lowbit::GruTensor::kH], model.output_scale()};
  const DenseTensor first = covering(a, true), second = covering(b, true);
  return {net.in.quantized(covering(features, false), gru_x),
          model,
          {net.hidden[0].quantized(gru_h, first), net.hidden[1].quantized(first, second)},
          net.out.quantized(second, DenseTensor::covering({16, true, false, 1}, 0, 1))};
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// A network to compare: what runs, and the mask that its last run gives.
struct Candidate {
  std::string name;
  double bytes_ratio;  // of the float network's bytes
  std::function<void()> run;
  std::function<std::vector<float>()> mask;
};

/// Seconds of a core's time of each one's quickest of twenty runs. They run in turn: whatever slows the machine down
/// slows down all of them, so that ratios hold where the seconds do not.
std::vector<double> quickest(const std::vector<Candidate>& candidates) {
  std::vector<double> best(candidates.size(), 1e9);
  for (int round = 0; round < 20; ++round)
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      const std::clock_t start = std::clock();
      candidates[i].run();
      best[i] = std::min(best[i], static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
    }
  return best;
}

// ---- Modes ----------------------------------------------------------------------------------------------------------

int evaluate(const std::string& dir, bool json) {
  const Network net = load(dir);
  const Samples clean = read_sound(dir + "/clean.wav"), noisy = read_sound(dir + "/noisy.wav");
  if (clean.size() != noisy.size()) stop(dir + ": got clean.wav and noisy.wav of different lengths");
  if (clean.size() < 4 * kWindow) stop(dir + ": got clean.wav of fewer than 2048 samples");
  const Stft stft;
  const auto spectra = stft.spectra(noisy);
  const auto x = net.in.run(features(spectra));
  const lowbit::GruInput in = sequence(x, net.gru.input());
  std::vector<Candidate> candidates;
  const auto add_gru = [&](const std::string& name, double ratio,
                           auto run) {  // the dense layers stay in floats, and are not timed
    const auto out = std::make_shared<lowbit::GruOutput>();
    candidates.push_back(
        {name, ratio, [=] { *out = value_or_exit(run()); }, [&net, out] { return mask_of(net, out->y); }});
  };
  const auto bytes_ratio = [](const auto& model) {
    return static_cast<double>(model->bytes()) / (4.0 * static_cast<double>(model->parameters()));
  };
  add_gru("float", 1, [&] { return lowbit::run_gru(net.gru, in); });
  for (const auto& [name, preset, bits, rounding] : {std::tuple{"seed8", "seed8", 8, lowbit::GruRounding::kNearest},
                                                     {"gates12", "gates12", 8, lowbit::GruRounding::kNearest},
                                                     {"w8a16", "w8a16", 8, lowbit::GruRounding::kNearest},
                                                     {"accurate", "accurate", 8, lowbit::GruRounding::kNearest},
                                                     {"w4 nearest", "accurate", 4, lowbit::GruRounding::kNearest},
                                                     {"w4 feedback", "accurate", 4, lowbit::GruRounding::kFeedback}}) {
    auto config = value_or_exit(lowbit::gru_preset(preset));
    config.w.bits = config.r.bits = bits;
    config.rounding = rounding;
    const auto model = std::make_shared<const lowbit::GruModel>(quantize(net, x, config));
    add_gru(name, bytes_ratio(model), [model, &in] { return model->run(in); });
  }
  const auto f = features(spectra);
  for (const char* preset : {"seed8", "accurate"}) {
    const auto all =
        std::make_shared<const IntegerNetwork>(quantize_all(net, f, value_or_exit(lowbit::gru_preset(preset))));
    const auto mask = std::make_shared<std::vector<float>>();
    candidates.push_back({std::string(preset) + ", all layers", bytes_ratio(all), [=, &f] { *mask = all->mask(f); },
                          [mask] { return *mask; }});
  }
  const std::vector<double> seconds = quickest(candidates);
  const double sound_seconds = static_cast<double>(noisy.size()) / kRate;
  if (!json) std::printf("%-20s SI-SDR %6.2f dB\n", "noisy", si_sdr(clean, noisy));
  nlohmann::json rows = nlohmann::json::array();
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const auto& [name, ratio, run, mask] = candidates[i];
    const double db = si_sdr(clean, stft.sound(spectra, mask(), noisy.size()));
    const double factor = sound_seconds / seconds[i], speedup = seconds[0] / seconds[i];
    rows.push_back({{"name", name},
                    {"si_sdr_db", db},
                    {"bytes_ratio", ratio},
                    {"times_real_time", factor},
                    {"times_float", speedup}});
    if (!json)
      std::printf("%-20s SI-SDR %6.2f dB   size %.3f   %.0f x real time, %.1f x float\n", name.c_str(), db, ratio,
                  factor, speedup);
  }
  if (json) std::cout << nlohmann::json{{"noisy_db", si_sdr(clean, noisy)}, {"rows", rows}}.dump(1) << "\n";
  return 0;
}

struct Options {
  std::string dir, in, out, calibration, preset = "accurate";
  bool in_float = false, json = false, evaluating = false;
};

IntegerNetwork quantize_on(const Network& net, const std::vector<float>& features, const Options& o) {
  if (features.empty()) stop((o.calibration.empty() ? o.in : o.calibration) + ": got fewer than 512 samples");
  return quantize_all(net, features, value_or_exit(lowbit::gru_preset(o.preset)));
}

void say(const Options& o, double seconds, double network_seconds) {
  std::FILE* to = o.out == "-" ? stderr : stdout;
  const nlohmann::json report = {
      {"seconds", seconds}, {"network_seconds", network_seconds}, {"times_real_time", seconds / network_seconds}};
  if (o.json)
    std::fprintf(to, "%s\n", report.dump(1).c_str());
  else
    std::fprintf(to, "%s: %.1f s of sound, the network ran at %.0f x real time\n", o.out.c_str(), seconds,
                 seconds / network_seconds);
}

/// From stdin, as it comes.
int denoise_stream(Options o) {
  if (o.calibration.empty()) o.calibration = o.dir + "/noisy.wav";
  const Network net = load(o.dir);
  const IntegerNetwork integers = quantize_on(net, features(Stft().spectra(read_sound(o.calibration))), o);
  lowbit::GruStream gru = value_or_exit(integers.gru.stream());
  StftStream stft;
  SoundWriter file(o.out);
  double network_seconds = 0;
  size_t samples = 0;
  for (bool more = true; more;) {
    Samples hop;
    more = read_raw(hop, kHop);
    samples += hop.size();
    file.put(stft.push(hop, [&](const std::vector<kiss_fft_cpx>& spectrum) {
      const auto start = std::chrono::steady_clock::now();
      auto mask = integers.next_mask(gru, features(spectrum));
      network_seconds += seconds_since(start);
      return mask;
    }));
  }
  if (samples < kWindow) {
    file.discard();
    stop("-: got fewer than 512 samples");
  }
  file.finish();
  say(o, static_cast<double>(samples) / kRate, network_seconds);
  return 0;
}

int denoise(const Options& o) {
  const Network net = load(o.dir);
  const Samples noisy = read_sound(o.in);
  const Stft stft;
  const auto spectra = stft.spectra(noisy);
  const auto f = features(spectra);
  if (f.empty()) stop(o.in + ": got fewer than 512 samples");
  std::unique_ptr<IntegerNetwork> integers;
  if (!o.in_float)
    integers = std::make_unique<IntegerNetwork>(
        quantize_on(net, o.calibration.empty() ? f : features(stft.spectra(read_sound(o.calibration))), o));
  const auto start = std::chrono::steady_clock::now();
  std::vector<float> mask;
  if (o.in_float) {
    const auto x = net.in.run(f);
    mask = mask_of(net, value_or_exit(lowbit::run_gru(net.gru, sequence(x, net.gru.input()))).y);
  } else {
    mask = integers->mask(f);
  }
  const double network_seconds = seconds_since(start);
  write_sound(o.out, stft.sound(spectra, mask, noisy.size()));
  say(o, static_cast<double>(noisy.size()) / kRate, network_seconds);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  std::vector<std::string> names;
  for (int i = 1; i < argc; ++i) {
    const std::string a = argv[i];
    if (a == "--evaluate") {
      o.evaluating = true;
    } else if (a == "--json") {
      o.json = true;
    } else if (a == "--float") {
      o.in_float = true;
    } else if (a == "--preset" && i + 1 < argc) {
      o.preset = argv[++i];
    } else if (a == "--calibrate" && i + 1 < argc) {
      o.calibration = argv[++i];
    } else {
      names.push_back(a);
    }
  }
  if (names.size() != (o.evaluating ? 1u : 3u)) {
    std::fprintf(stderr,
                 "usage: denoise DIR IN.wav|- OUT.wav|- [--preset P] [--calibrate SOUND.wav] [--float] [--json] | "
                 "denoise DIR --evaluate [--json]\n");
    return 2;
  }
  o.dir = names[0];
  if (o.evaluating) return evaluate(o.dir, o.json);
  o.in = names[1];
  o.out = names[2];
  return o.in == "-" && !o.in_float ? denoise_stream(o) : denoise(o);
}
