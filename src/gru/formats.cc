// Formats by name and number: what a configuration may say.

#include <cmath>

#include "base/try.h"
#include "gru/cell.h"

namespace lowbit {
namespace {

constexpr std::array<const char*, kGruTensors> kNames = {"input.x",          "output.h",          "linear.weight_ih",
                                                         "linear.weight_hh", "gate.update_input", "gate.update_output",
                                                         "gate.reset_input", "gate.reset_output", "gate.new_input",
                                                         "gate.new_output"};

void set_bits(GruConfig& c, std::initializer_list<GruTensor> tensors, int bits) {
  for (const GruTensor t : tensors) c[t].bits = bits;
}

GruConfig seed8() {
  GruConfig c;
  c[GruTensor::kU].is_unsigned = c[GruTensor::kR].is_unsigned = true;
  c[GruTensor::kN].symmetric = true;
  c.bw.bits = c.br.bits = 8;
  c.bias_at_product_scale = false;
  return c;
}

Status check_bits(const GruFormat& f, int low, int high, const std::string& name) {
  if (f.bits < low || f.bits > high)
    return fail(ErrorCode::kInvalidArgument, "gru format " + name, std::to_string(f.bits) + " bits",
                std::to_string(low) + " to " + std::to_string(high));
  if (f.saturate != 0 && f.saturate != 1)
    return fail(ErrorCode::kInvalidArgument, "gru format " + name, "saturate " + std::to_string(f.saturate), "0 or 1");
  return {};
}

}  // namespace

const char* gru_tensor_name(GruTensor tensor) { return kNames[static_cast<size_t>(tensor)]; }

Result<GruConfig> gru_preset(const std::string& name) {
  GruConfig c = seed8();
  using enum GruTensor;
  if (name == "seed8") return c;
  if (name == "accurate8") {
    c[kU].saturate = c[kR].saturate = 0;  // shift 7: gates that can be exactly 1
    return c;
  }
  c.bw.bits = c.br.bits = 32;
  c.bias_at_product_scale = true;
  if (name == "gates12") {
    set_bits(c, {kIh, kHh, kUi, kU, kRi, kR, kNi, kN}, 12);
    return c;
  }
  set_bits(c, {kX, kH, kIh, kHh, kUi, kU, kRi, kR, kNi, kN}, 16);
  if (name == "w8a16") return c;
  if (name == "accurate") {
    c[kU].saturate = 0;  // strict cover of [0, 1]: shift 15, so that a gate can be exactly 1 and hold the state
    return c;
  }
  return fail(ErrorCode::kInvalidArgument, "gru preset", name, "seed8, accurate8, gates12, w8a16 or accurate");
}

std::vector<std::string> gru_presets() { return {"seed8", "accurate8", "gates12", "w8a16", "accurate"}; }

Status check_gru_config(const GruConfig& config) {
  for (int i = 0; i < kGruTensors; ++i)
    LOWBIT_TRY(check_bits(config.tensors[static_cast<size_t>(i)], 1, 16, kNames[static_cast<size_t>(i)]));
  const std::pair<const GruFormat*, const char*> weights[] = {{&config.w, "weight.W"}, {&config.r, "weight.R"}};
  const std::pair<const GruFormat*, const char*> biases[] = {{&config.bw, "weight.bw"}, {&config.br, "weight.br"}};
  for (const auto& [f, name] : weights) LOWBIT_TRY(check_bits(*f, 1, 16, name));
  for (const auto& [f, name] : biases) LOWBIT_TRY(check_bits(*f, 2, 32, name));
  for (const auto& [f, name] : biases)
    if (f->is_unsigned || !f->symmetric)
      return fail(ErrorCode::kInvalidArgument, std::string("gru format ") + name, "unsigned or with a zero point",
                  "signed and symmetric", "biases are added as they are");
  if (config.segments != 0 && (config.segments < 4 || config.segments > kMaxSegments))
    return fail(ErrorCode::kInvalidArgument, "gru table", std::to_string(config.segments) + " segments",
                "4 to " + std::to_string(kMaxSegments) + ", or 0 to choose");
  return {};
}

int32_t quantize_value(float v, const GruParam& p) {
  if (std::isnan(v)) return p.scale.zp;
  const double q = std::nearbyint(std::ldexp(static_cast<double>(v), p.scale.shift)) + p.scale.zp;
  const double low = p.lo(), high = p.hi();
  return static_cast<int32_t>(q < low ? low : q > high ? high : q);
}

void quantize_codes(std::span<const float> v, const GruParam& p, uint16_t* codes) {
  // Products with powers of two are exact down to numbers that round to 0; adding 1.5 * 2^23 rounds half to even what
  // the clamp has left.
  const float scale = std::ldexp(1.0f, p.scale.shift), magic = 0x1.8p23f;
  const auto low = static_cast<float>(p.lo() - p.scale.zp), high = static_cast<float>(p.hi() - p.scale.zp);
  const int32_t centre = p.scale.zp - p.lo();
  const size_t count = v.size();
  for (size_t i = 0; i < count; ++i) {
    float d = v[i] * scale;
    d = d == d ? d : 0;
    d = d < low ? low : d;
    d = d > high ? high : d;
    codes[i] = static_cast<uint16_t>(static_cast<int32_t>((d + magic) - magic) + centre);
  }
}

void dequantize_codes(std::span<const uint16_t> codes, const GruParam& p, float* out) {
  const float scale = std::ldexp(1.0f, -p.scale.shift);
  const int32_t centre = p.scale.zp - p.lo();
  for (size_t i = 0; i < codes.size(); ++i) out[i] = static_cast<float>(int32_t{codes[i]} - centre) * scale;
}

double dequantize_value(int64_t q, const GruScale& scale) {
  return std::ldexp(static_cast<double>(q - scale.zp), -scale.shift);
}

}  // namespace lowbit
