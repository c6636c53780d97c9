#pragma once
// Sound of 16 kHz, one channel: files, short-time spectra, how near one is to another.

#include <kiss_fftr.h>
#include <sndfile.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "example_error.h"

using Samples = std::vector<float>;
constexpr int kWindow = 512, kHop = 256, kBins = kWindow / 2 + 1, kRate = 16000;
constexpr int kLoudest = 1000;  // float files may go beyond 1, but not to where squares overflow

inline Samples read_sound(const std::string& path) {
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
  if (!std::all_of(out.begin(), out.end(), [](float v) { return std::fabs(v) <= static_cast<float>(kLoudest); }))
    stop(path + ": got samples that are no numbers or louder than " + std::to_string(kLoudest) + ", wanted -1 to 1");
  return out;
}

/// A WAV file, whole or not at all; devices are written as they are.
inline void write_sound(const std::string& target, const Samples& samples) {
  std::error_code unknown;
  const bool in_place = std::filesystem::exists(target, unknown) && !std::filesystem::is_regular_file(target, unknown);
  const std::string path = in_place ? target : target + ".part";
  const auto fail = [&](const std::string& what) {
    if (!in_place) std::filesystem::remove(path, unknown);
    stop(target + ": got " + what + ", wanted a file that can be written");
  };
  SF_INFO info{};
  info.samplerate = kRate;
  info.channels = 1;
  info.format = SF_FORMAT_WAV | SF_FORMAT_PCM_16;
  SNDFILE* file = sf_open(path.c_str(), SFM_WRITE, &info);
  if (file == nullptr) fail(sf_strerror(nullptr));
  sf_command(file, SFC_SET_CLIPPING, nullptr, SF_TRUE);
  const auto count = static_cast<sf_count_t>(samples.size());
  const bool written = sf_writef_float(file, samples.data(), count) == count;
  if (sf_close(file) != 0 || !written) fail("a short write");
  if (in_place) return;
  std::filesystem::rename(path, target, unknown);
  if (unknown) fail(unknown.message());
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

/// Scale-invariant signal-to-distortion ratio in dB, without the ends that a window does not fill.
inline double si_sdr(const Samples& reference, const Samples& estimate) {
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
