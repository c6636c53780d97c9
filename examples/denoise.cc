// Noisy speech to clean speech with NSNet2, its two GRUs on integers only.
//
// usage: denoise DIR IN.wav OUT.wav [--preset P] [--float] [--json]     16 kHz mono; `-` as IN reads raw 16-bit samples
//        denoise DIR --evaluate [--json]                                SI-SDR of several formats on DIR's own pair
// DIR holds the network's .npy files; --evaluate needs clean.wav and noisy.wav. Calibration: the first 400 frames of the
// input for one's own files, of noisy.wav for --evaluate.

#include <kiss_fftr.h>
#include <sndfile.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "example_error.h"
#include "lowbit/gru.h"

namespace {

using Samples = std::vector<float>;
constexpr int kWindow = 512, kHop = 256, kBins = kWindow / 2 + 1, kRate = 16000, kCalibrationFrames = 400;

[[noreturn]] void stop(const std::string& message) {
  std::fprintf(stderr, "error: %s\n", message.c_str());
  std::exit(1);
}

// ---- Sound ------------------------------------------------------------------------------------------------------------------

Samples read_sound(const std::string& path) {
  if (path == "-") {
    Samples out;
    for (int16_t v = 0; std::fread(&v, 2, 1, stdin) == 1;) out.push_back(static_cast<float>(v) / 32768);
    return out;
  }
  SF_INFO info{};
  SNDFILE* file = sf_open(path.c_str(), SFM_READ, &info);
  if (file == nullptr) stop(path + ": got " + sf_strerror(nullptr) + ", wanted a sound file");
  if (info.samplerate != kRate || info.channels != 1)
    stop(path + ": got " + std::to_string(info.samplerate) + " Hz and " + std::to_string(info.channels) +
         " channels, wanted 16000 Hz mono");
  Samples out;
  for (Samples block(65536);;) {
    const sf_count_t n = sf_readf_float(file, block.data(), static_cast<sf_count_t>(block.size()));
    if (n <= 0) break;
    out.insert(out.end(), block.begin(), block.begin() + n);
  }
  sf_close(file);
  return out;
}

void write_sound(const std::string& path, const Samples& samples) {
  SF_INFO info{};
  info.samplerate = kRate;
  info.channels = 1;
  info.format = SF_FORMAT_WAV | SF_FORMAT_PCM_16;
  SNDFILE* file = sf_open(path.c_str(), SFM_WRITE, &info);
  if (file == nullptr) stop(path + ": got " + sf_strerror(nullptr) + ", wanted a file that can be written");
  sf_command(file, SFC_SET_CLIPPING, nullptr, SF_TRUE);
  if (sf_writef_float(file, samples.data(), static_cast<sf_count_t>(samples.size())) !=
      static_cast<sf_count_t>(samples.size()))
    stop(path + ": got a short write");
  sf_close(file);
}

/// Short-time spectra with a square-root Hann window, and back by overlap-add.
class Stft {
 public:
  Stft()
      : forward_(kiss_fftr_alloc(kWindow, 0, nullptr, nullptr)),
        inverse_(kiss_fftr_alloc(kWindow, 1, nullptr, nullptr)) {
    for (int i = 0; i < kWindow; ++i)
      window_[i] = static_cast<float>(std::sqrt(0.5 - 0.5 * std::cos(2 * M_PI * i / kWindow)));
  }
  ~Stft() {
    kiss_fftr_free(forward_);
    kiss_fftr_free(inverse_);
  }
  Stft(const Stft&) = delete;
  Stft& operator=(const Stft&) = delete;

  static size_t frames(const Samples& s) { return s.size() < kWindow ? 0 : (s.size() - kWindow) / kHop + 1; }

  std::vector<kiss_fft_cpx> spectra(const Samples& s) const {
    std::vector<kiss_fft_cpx> out(frames(s) * kBins);
    float frame[kWindow];
    for (size_t t = 0; t < frames(s); ++t) {
      for (int i = 0; i < kWindow; ++i) frame[i] = s[t * kHop + static_cast<size_t>(i)] * window_[i];
      kiss_fftr(forward_, frame, out.data() + t * kBins);
    }
    return out;
  }
  /// The sound of spectra times a mask.
  Samples sound(const std::vector<kiss_fft_cpx>& spectra, const std::vector<float>& mask, size_t samples) const {
    Samples out(samples, 0), weight(samples, 0);
    kiss_fft_cpx bins[kBins];
    float frame[kWindow];
    for (size_t t = 0; t * kBins < spectra.size(); ++t) {
      for (size_t b = 0; b < kBins; ++b)
        bins[b] = {spectra[t * kBins + b].r * mask[t * kBins + b], spectra[t * kBins + b].i * mask[t * kBins + b]};
      kiss_fftri(inverse_, bins, frame);
      for (size_t i = 0; i < kWindow; ++i) {
        out[t * kHop + i] += frame[i] / kWindow * window_[i];
        weight[t * kHop + i] += window_[i] * window_[i];
      }
    }
    for (size_t i = 0; i < samples; ++i) out[i] /= std::max(weight[i], 1e-6f);
    return out;
  }

 private:
  kiss_fftr_cfg forward_, inverse_;
  float window_[kWindow];
};

// ---- The network --------------------------------------------------------------------------------------------------------------

struct Dense {
  lowbit::GruArray w;  // [inputs, outputs]
  std::vector<float> bias;

  enum Shape { kLinear, kRelu, kSigmoid };
  std::vector<float> run(const std::vector<float>& x, Shape shape) const {
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
      for (size_t j = 0; j < n && shape != kLinear; ++j)
        to[j] = shape == kRelu ? std::max(to[j], 0.0f) : 1 / (1 + std::exp(-to[j]));
    }
    return y;
  }
};

struct Network {
  Dense in, hidden[2], out;
  lowbit::GruNetwork gru;
};

Network load(const std::string& dir) {
  std::map<std::string, lowbit::GruArray> arrays;
  for (auto& a : value_or_exit(lowbit::read_float_arrays(dir))) arrays[a.name] = std::move(a);
  const auto dense = [&](const std::string& w, const std::string& b) {
    if (arrays.count(w) == 0 || arrays.count(b) == 0 || arrays[w].shape.size() != 2)
      stop(dir + ": got no " + w + ".npy and " + b + ".npy, wanted NSNet2's weights");
    return Dense{arrays[w], arrays[b].data};
  };
  return {dense("onnx__MatMul_166", "fc1_bias"),
          {dense("onnx__MatMul_207", "fc2_bias"), dense("onnx__MatMul_208", "fc3_bias")},
          dense("onnx__MatMul_209", "fc4_bias"),
          value_or_exit(lowbit::load_gru(dir))};
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
  const auto a = net.hidden[0].run(gru_output, Dense::kRelu);
  return net.out.run(net.hidden[1].run(a, Dense::kRelu), Dense::kSigmoid);
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

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// ---- Modes --------------------------------------------------------------------------------------------------------------------

/// Scale-invariant signal-to-distortion ratio in dB, without the ends that a window does not fill.
double si_sdr(const Samples& reference, const Samples& estimate) {
  const size_t first = kWindow, last = reference.size() - 2 * kWindow;
  double dot = 0, energy = 0, target = 0, noise = 0;
  for (size_t i = first; i < last; ++i) {
    dot += static_cast<double>(reference[i]) * static_cast<double>(estimate[i]);
    energy += static_cast<double>(reference[i]) * static_cast<double>(reference[i]);
  }
  for (size_t i = first; i < last; ++i) {
    const double t = dot / energy * static_cast<double>(reference[i]), e = static_cast<double>(estimate[i]) - t;
    target += t * t;
    noise += e * e;
  }
  return 10 * std::log10(target / noise);
}

int evaluate(const std::string& dir, bool json) {
  const Network net = load(dir);
  const Samples clean = read_sound(dir + "/clean.wav"), noisy = read_sound(dir + "/noisy.wav");
  if (clean.size() != noisy.size()) stop(dir + ": got clean.wav and noisy.wav of different lengths");
  const Stft stft;
  const auto spectra = stft.spectra(noisy);
  const auto x = net.in.run(features(spectra), Dense::kLinear);
  nlohmann::json rows = nlohmann::json::array();
  const auto report = [&](const std::string& name, const std::vector<float>& y, double ratio, double seconds) {
    const double db = si_sdr(clean, stft.sound(spectra, mask_of(net, y), noisy.size()));
    const double factor = static_cast<double>(noisy.size()) / kRate / seconds;
    rows.push_back({{"name", name}, {"si_sdr_db", db}, {"bytes_ratio", ratio}, {"times_real_time", factor}});
    if (!json) std::printf("%-12s SI-SDR %6.2f dB   size %.3f   %.0f x real time\n", name.c_str(), db, ratio, factor);
  };
  if (!json) std::printf("%-12s SI-SDR %6.2f dB\n", "noisy", si_sdr(clean, noisy));
  const lowbit::GruInput in = sequence(x, net.gru.input());
  const auto start = std::chrono::steady_clock::now();
  const auto floats = value_or_exit(lowbit::run_gru(net.gru, in));
  report("float", floats.y, 1, seconds_since(start));
  for (const auto& [name, preset, bits, rounding] : {std::tuple{"seed8", "seed8", 8, lowbit::GruRounding::kNearest},
                                                     {"gates12", "gates12", 8, lowbit::GruRounding::kNearest},
                                                     {"w8a16", "w8a16", 8, lowbit::GruRounding::kNearest},
                                                     {"accurate", "accurate", 8, lowbit::GruRounding::kNearest},
                                                     {"w4 nearest", "accurate", 4, lowbit::GruRounding::kNearest},
                                                     {"w4 feedback", "accurate", 4, lowbit::GruRounding::kFeedback}}) {
    auto config = value_or_exit(lowbit::gru_preset(preset));
    config.w.bits = config.r.bits = bits;
    config.rounding = rounding;
    const auto model = quantize(net, x, config);
    double best = 1e9;
    lowbit::GruOutput out;
    for (int i = 0; i < 3; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      out = value_or_exit(model.run(in));
      best = std::min(best, seconds_since(begin));
    }
    report(name, out.y, static_cast<double>(model.bytes()) / (4.0 * static_cast<double>(model.parameters())), best);
  }
  if (json) std::cout << nlohmann::json{{"noisy_db", si_sdr(clean, noisy)}, {"rows", rows}}.dump(1) << "\n";
  return 0;
}

struct Options {
  std::string dir, in, out, preset = "accurate";
  bool in_float = false, json = false, evaluating = false;
};

int denoise(const Options& o) {
  const Network net = load(o.dir);
  const Samples noisy = read_sound(o.in);
  const Stft stft;
  const auto spectra = stft.spectra(noisy);
  const auto x = net.in.run(features(spectra), Dense::kLinear);
  if (x.empty()) stop(o.in + ": got fewer than 512 samples");
  std::unique_ptr<lowbit::GruModel> model;
  if (!o.in_float)
    model = std::make_unique<lowbit::GruModel>(quantize(net, x, value_or_exit(lowbit::gru_preset(o.preset))));
  const auto start = std::chrono::steady_clock::now();
  const lowbit::GruInput in = sequence(x, net.gru.input());
  const auto y = o.in_float ? value_or_exit(lowbit::run_gru(net.gru, in)) : value_or_exit(model->run(in));
  const double gru_seconds = seconds_since(start);
  write_sound(o.out, stft.sound(spectra, mask_of(net, y.y), noisy.size()));
  const double seconds = static_cast<double>(noisy.size()) / kRate;
  if (o.json)
    std::cout << nlohmann::json{{"seconds", seconds},
                                {"gru_seconds", gru_seconds},
                                {"times_real_time", seconds / gru_seconds}}
                     .dump(1)
              << "\n";
  else
    std::printf("%s: %.1f s of sound, the GRUs ran at %.0f x real time\n", o.out.c_str(), seconds,
                seconds / gru_seconds);
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
    } else {
      names.push_back(a);
    }
  }
  if (names.size() != (o.evaluating ? 1u : 3u)) {
    std::fprintf(
        stderr,
        "usage: denoise DIR IN.wav OUT.wav [--preset P] [--float] [--json] | denoise DIR --evaluate [--json]\n");
    return 2;
  }
  o.dir = names[0];
  if (o.evaluating) return evaluate(o.dir, o.json);
  o.in = names[1];
  o.out = names[2];
  return denoise(o);
}
