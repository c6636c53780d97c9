#pragma once
// Sound of 16 kHz, one channel: files, short-time spectra, how near one is to another.

#include <fcntl.h>
#include <kiss_fftr.h>
#include <sndfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "example_error.h"

using Samples = std::vector<float>;
constexpr int kWindow = 512, kHop = 256, kBins = kWindow / 2 + 1, kRate = 16000;
constexpr float kLeastWeight = 1e-6f;  // at the ends of a sound
constexpr int kLoudest = 1000;         // float files may go beyond 1, but not to where squares overflow

/// Appends up to `count` raw 16-bit samples of stdin; false when there are no more.
inline bool read_raw(Samples& out, size_t count) {
  int16_t v = 0;
  for (size_t i = 0; i < count; ++i) {
    if (std::fread(&v, 2, 1, stdin) != 1) return false;
    out.push_back(static_cast<float>(v) / 32768);
  }
  return true;
}

constexpr size_t kMostRawSamples = size_t{1} << 28;     // of stdin at once: four and a half hours
constexpr uintmax_t kExtraBytes = uintmax_t{64} << 20;  // that a compressed file may unpack to beyond 4 times its size

/// A sound file. Errors: another rate than 16 kHz, several channels, samples that are no numbers, more of them than the
/// file can hold.
inline lowbit::Result<Samples> load_sound(const std::string& path) {
  const auto bad = [&](const std::string& got, const std::string& wanted) {
    return tl::unexpected(lowbit::Error{lowbit::ErrorCode::kInvalidArgument, path, got, wanted, ""});
  };
  SF_INFO info{};
  const std::unique_ptr<SNDFILE, int (*)(SNDFILE*)> file(sf_open(path.c_str(), SFM_READ, &info), sf_close);
  if (file == nullptr) return bad(sf_strerror(nullptr), "a sound file");
  if (info.samplerate != kRate || info.channels != 1)
    return bad(std::to_string(info.samplerate) + " Hz and " + std::to_string(info.channels) + " channels",
               "16000 Hz mono");
  std::error_code unknown;
  const auto size = std::filesystem::file_size(path, unknown);  // a pipe has none
  const auto most = (unknown ? 0 : 4 * size) + kExtraBytes;
  Samples out;
  for (Samples block(65536);;) {
    const sf_count_t n = sf_readf_float(file.get(), block.data(), static_cast<sf_count_t>(block.size()));
    if (n <= 0) break;
    out.insert(out.end(), block.begin(), block.begin() + n);
    if (out.size() * sizeof(float) > most)
      return bad("samples of more than 4 times the file and 64 MiB", "fewer, or a WAV file");
  }
  if (!std::all_of(out.begin(), out.end(), [](float v) { return std::fabs(v) <= static_cast<float>(kLoudest); }))
    return bad("samples that are no numbers or louder than " + std::to_string(kLoudest), "-1 to 1");
  return out;
}

inline Samples read_sound(const std::string& path) {
  if (path != "-") return value_or_exit(load_sound(path));
  Samples out;
  while (read_raw(out, 65536))
    if (out.size() > kMostRawSamples) stop("-: got more than 2^28 samples, wanted fewer, or `- OUT`: a stream");
  return out;
}

/// A WAV file that is written bit by bit and appears whole or not at all; devices are written as they are, `-` gets raw
/// 16-bit samples.
class SoundWriter {
 public:
  explicit SoundWriter(const std::string& target) : target_(target) {
    if (target == "-") return;
    std::error_code unknown;
    in_place_ = std::filesystem::exists(target, unknown) && !std::filesystem::is_regular_file(target, unknown);
    path_ = in_place_ ? target : target + ".part";
    SF_INFO info{};
    info.samplerate = kRate;
    info.channels = 1;
    info.format = SF_FORMAT_WAV | SF_FORMAT_PCM_16;
    file_ = in_place_ ? sf_open(path_.c_str(), SFM_WRITE, &info) : open_part(info);
    if (file_ == nullptr) fail(sf_strerror(nullptr));
    sf_command(file_, SFC_SET_CLIPPING, nullptr, SF_TRUE);
  }
  SoundWriter(const SoundWriter&) = delete;
  SoundWriter& operator=(const SoundWriter&) = delete;
  ~SoundWriter() {
    if (file_ != nullptr) sf_close(file_);
  }

  void put(const Samples& samples) {
    if (file_ == nullptr) return put_raw(samples);
    const auto count = static_cast<sf_count_t>(samples.size());
    if (sf_writef_float(file_, samples.data(), count) != count) fail("a short write");
  }
  void finish() {
    if (file_ == nullptr) return;
    if (sf_close(std::exchange(file_, nullptr)) != 0) fail("a short write");
    std::error_code failed;
    if (!in_place_) std::filesystem::rename(path_, target_, failed);
    if (failed) fail(failed.message());
  }
  /// Leaves no file.
  void discard() {
    std::error_code unknown;
    if (!in_place_ && !path_.empty()) std::filesystem::remove(path_, unknown);
  }

 private:
  /// A file at OUT.part, left behind or put there by somebody, is removed and never written through: it may be a link.
  SNDFILE* open_part(SF_INFO& info) {
    unlink(path_.c_str());
    const int fd = open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0) {
      path_.clear();  // not ours to remove
      fail(std::strerror(errno));
    }
    struct stat old = {};
    if (stat(target_.c_str(), &old) == 0) (void)!fchmod(fd, old.st_mode & 0777);
    return sf_open_fd(fd, SFM_WRITE, &info, SF_TRUE);
  }
  void put_raw(const Samples& samples) {
    for (const float v : samples) {
      const auto sample = static_cast<int16_t>(std::lrint(std::clamp(v, -1.0f, 1.0f) * 32767));
      if (std::fwrite(&sample, 2, 1, stdout) != 1) fail("a short write");
    }
    if (std::fflush(stdout) != 0) fail("a short write");
  }
  [[noreturn]] void fail(const std::string& what) {
    discard();
    stop(target_ + ": got " + what + ", wanted a file that can be written");
  }

  std::string target_, path_;
  SNDFILE* file_ = nullptr;
  bool in_place_ = false;
};

inline void write_sound(const std::string& target, const Samples& samples) {
  SoundWriter file(target);
  file.put(samples);
  file.finish();
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

  /// kBins bins of kWindow samples.
  void spectrum(const float* samples, kiss_fft_cpx* bins) const {
    float frame[kWindow];
    for (int i = 0; i < kWindow; ++i) frame[i] = samples[i] * window_[i];
    kiss_fftr(forward_, frame, bins);
  }
  /// Adds the sound of a spectrum times a mask to kWindow samples, and to `weight` what they have to be divided by.
  void add(const kiss_fft_cpx* spectrum, const float* mask, float* samples, float* weight) const {
    kiss_fft_cpx bins[kBins];
    float frame[kWindow];
    for (int b = 0; b < kBins; ++b) bins[b] = {spectrum[b].r * mask[b], spectrum[b].i * mask[b]};
    kiss_fftri(inverse_, bins, frame);
    for (int i = 0; i < kWindow; ++i) {
      samples[i] += frame[i] / kWindow * window_[i];
      weight[i] += window_[i] * window_[i];
    }
  }

  std::vector<kiss_fft_cpx> spectra(const Samples& s) const {
    std::vector<kiss_fft_cpx> out(frames(s) * kBins);
    for (size_t t = 0; t < frames(s); ++t) spectrum(s.data() + t * kHop, out.data() + t * kBins);
    return out;
  }
  /// The sound of spectra times a mask.
  Samples sound(const std::vector<kiss_fft_cpx>& spectra, const std::vector<float>& mask, size_t samples) const {
    Samples out(samples, 0), weight(samples, 0);
    for (size_t t = 0; t * kBins < spectra.size(); ++t)
      add(spectra.data() + t * kBins, mask.data() + t * kBins, out.data() + t * kHop, weight.data() + t * kHop);
    for (size_t i = 0; i < samples; ++i) out[i] /= std::max(weight[i], kLeastWeight);
    return out;
  }

 private:
  kiss_fftr_cfg forward_, inverse_;
  float window_[kWindow];
};

/// Sound through a mask as it comes: every kHop samples in, kHop samples out, kHop later. The numbers of Stft::sound.
class StftStream {
 public:
  /// `mask_of`: the mask for the spectrum of the frame that these samples complete. Fewer than kHop samples end the
  /// stream.
  template <class MaskOf>
  Samples push(const Samples& samples, MaskOf&& mask_of) {
    std::move(in_.begin() + kHop, in_.end(), in_.begin());
    std::copy(samples.begin(), samples.end(), in_.end() - kHop);
    if (samples.size() < kHop) return ending(samples.size());
    if (++hops_ == 1) return {};  // half a window
    std::vector<kiss_fft_cpx> bins(kBins);
    stft_.spectrum(in_.data(), bins.data());
    const std::vector<float> mask = mask_of(bins);
    stft_.add(bins.data(), mask.data(), out_.data(), weight_.data());
    return first_half();
  }

 private:
  /// The rest of the last frame, and silence where no window reached.
  Samples ending(size_t left) {
    Samples last = hops_ > 1 ? first_half() : Samples(hops_ * kHop, 0);
    last.resize(last.size() + left, 0);
    return last;
  }
  Samples first_half() {
    Samples done(kHop);
    for (size_t i = 0; i < kHop; ++i) done[i] = out_[i] / std::max(weight_[i], kLeastWeight);
    for (Samples* s : {&out_, &weight_}) {
      std::move(s->begin() + kHop, s->end(), s->begin());
      std::fill(s->end() - kHop, s->end(), 0.0f);
    }
    return done;
  }

  Stft stft_;
  Samples in_ = Samples(kWindow), out_ = Samples(kWindow), weight_ = Samples(kWindow);
  size_t hops_ = 0;
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
