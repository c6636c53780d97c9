// AIMET encodings: real = (code + offset) * scale with code in 0 .. 2^bits - 1, as its exporters write them. Version
// 0.6.1 has objects by name, 1.0.0 lists of objects with a name. Scales there are any floats; here they are powers of
// two.

#include <algorithm>
#include <cmath>

#include "base/try.h"
#include "gru/model.h"
#include "gru/ranges.h"
#include "io/json_text.h"
#include "io/mapped_file.h"
#include "io/posix_file.h"

namespace lowbit {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxEncodingsBytes = int64_t{1} << 28;

struct Encoding {
  int bits = 8;
  bool symmetric = false;
  double scale = 1;
  int64_t offset = 0;
};

std::string cell_name(size_t cell, const char* tensor) { return "cell." + std::to_string(cell) + "." + tensor; }

// ---- Writing

Encoding encoding_of(const GruFormat& f, int shift, int64_t zp) {
  return {f.bits, f.symmetric, std::ldexp(1.0, -shift), f.q_min() - zp};
}

/// One tensor; several encodings are one per row.
Json encoding_json(const std::string& name, const std::vector<Encoding>& rows, bool lists) {
  const Encoding& first = rows.front();
  if (lists) {
    Json scales = Json::array(), offsets = Json::array();
    for (const Encoding& e : rows) {
      scales.push_back(e.scale);
      offsets.push_back(e.offset);
    }
    return {{"name", name},
            {"enc_type", rows.size() > 1 ? "PER_CHANNEL" : "PER_TENSOR"},
            {"dtype", "INT"},
            {"bw", first.bits},
            {"is_sym", first.symmetric},
            {"scale", scales},
            {"offset", offsets}};
  }
  Json out = Json::array();
  for (const Encoding& e : rows) {
    const double steps = std::ldexp(1.0, e.bits) - 1;
    out.push_back({{"bitwidth", e.bits},
                   {"dtype", "int"},
                   {"is_symmetric", e.symmetric ? "True" : "False"},
                   {"min", static_cast<double>(e.offset) * e.scale},
                   {"max", (static_cast<double>(e.offset) + steps) * e.scale},
                   {"offset", e.offset},
                   {"scale", e.scale}});
  }
  return out;
}

class EncodingsWriter {
 public:
  explicit EncodingsWriter(bool lists) : lists_(lists) {
    activations_ = parameters_ = lists ? Json::array() : Json::object();
  }
  void activation(const std::string& name, const Encoding& e) { add(activations_, name, {e}); }
  void parameter(const std::string& name, const GruFormat& f, const std::vector<int32_t>& shift,
                 const std::vector<int32_t>& zp) {
    std::vector<Encoding> rows;
    for (size_t i = 0; i < shift.size(); ++i) rows.push_back(encoding_of(f, shift[i], zp.empty() ? 0 : zp[i]));
    const bool same = std::all_of(rows.begin(), rows.end(), [&](const Encoding& e) {
      return e.scale == rows[0].scale && e.offset == rows[0].offset;
    });
    if (same) rows.resize(1);
    add(parameters_, name, rows);
  }
  Json json() const {
    return {{"version", lists_ ? "1.0.0" : "0.6.1"},
            {"activation_encodings", activations_},
            {"param_encodings", parameters_},
            {"producer", "lowbit"}};
  }

 private:
  void add(Json& to, const std::string& name, const std::vector<Encoding>& rows) const {
    if (lists_)
      to.push_back(encoding_json(name, rows, true));
    else
      to[name] = encoding_json(name, rows, false);
  }
  bool lists_;
  Json activations_, parameters_;
};

// ---- Reading

tl::unexpected<Error> bad(const std::string& where, const std::string& got, std::string wanted) {
  return fail(ErrorCode::kCorrupt, where, got.substr(0, 64), std::move(wanted));
}

/// "True", "false", true.
std::optional<bool> flag_of(const Json& json, const char* key) {
  if (const auto flag = json_bool(json, key)) return flag;
  const auto text = json_string(json, key);
  if (!text) return std::nullopt;
  if (*text == "True" || *text == "true") return true;
  if (*text == "False" || *text == "false") return false;
  return std::nullopt;
}

/// The number, or the only or first of a list.
std::optional<double> first_number(const Json& json, const char* key) {
  const auto it = json.find(key);
  if (it == json.end()) return std::nullopt;
  if (it->is_number()) return it->get<double>();
  if (it->is_array() && !it->empty() && (*it)[0].is_number()) return (*it)[0].get<double>();
  return std::nullopt;
}

Result<Encoding> read_encoding(const Json& json, const std::string& where) {
  if (!json.is_object()) return bad(where, "no object", "an encoding");
  const std::string dtype = json_string(json, "dtype").value_or("int");
  if (dtype != "int" && dtype != "INT")
    return fail(ErrorCode::kUnsupported, where, "dtype " + dtype.substr(0, 16), "int");
  Encoding e;
  const auto bits = json.contains("bw") ? json_int(json, "bw") : json_int(json, "bitwidth");
  const auto scale = first_number(json, "scale"), offset = first_number(json, "offset");
  const auto symmetric = json.contains("is_sym") ? flag_of(json, "is_sym") : flag_of(json, "is_symmetric");
  if (!bits || *bits < 1 || *bits > 16) return bad(where, "no bits or not 1 to 16", "bw or bitwidth from 1 to 16");
  if (!scale || !(*scale > 1e-12) || !(*scale < 1e12)) return bad(where, "no scale", "a scale from 1e-12 to 1e12");
  if (!offset || *offset != std::rint(*offset) || std::fabs(*offset) > 65536)
    return bad(where, "no offset", "a whole number from -65536 to 65536");
  if (!symmetric) return bad(where, "no is_sym or is_symmetric", "true or false");
  e.bits = static_cast<int>(*bits);
  e.scale = *scale;
  e.offset = static_cast<int64_t>(*offset);
  e.symmetric = *symmetric;
  return e;
}

/// The encoding of `name` in a section of either version; null when there is none.
const Json* find_encoding(const Json& section, const std::string& name) {
  if (section.is_object()) {
    const auto it = section.find(name);
    if (it == section.end()) return nullptr;
    return it->is_array() && !it->empty() ? &(*it)[0] : &*it;
  }
  if (!section.is_array()) return nullptr;
  for (const Json& e : section)
    if (e.is_object() && json_string(e, "name") == name) return &e;
  return nullptr;
}

GruFormat format_of(const Encoding& e) {
  const int64_t middle = -(int64_t{1} << (e.bits - 1));
  GruFormat f;
  f.bits = e.bits;
  f.is_unsigned = e.offset == 0;
  f.symmetric = e.offset == 0 || (e.symmetric && e.offset == middle);
  return f;
}

Status set_format(GruFormat& to, const Encoding& e, const std::string& where, bool first) {
  const GruFormat f = format_of(e);
  if (!first && (to.bits != f.bits || to.is_unsigned != f.is_unsigned || to.symmetric != f.symmetric))
    return fail(ErrorCode::kUnsupported, where, std::to_string(f.bits) + " bits, other than an earlier cell's",
                "one format per tensor in all cells");
  to = f;
  return {};
}

}  // namespace

Status GruModel::save_encodings(const std::string& path, bool lists) const {
  EncodingsWriter writer(lists);
  for (size_t i = 0; i < impl_->cells.size(); ++i) {
    const GruCell& c = impl_->cells[i]->cell();
    for (int t = 0; t < kGruTensors; ++t) {
      const auto tensor = static_cast<GruTensor>(t);
      writer.activation(cell_name(i, gru_tensor_name(tensor)),
                        encoding_of(c[tensor].format, c[tensor].scale.shift, c[tensor].scale.zp));
    }
    writer.parameter(cell_name(i, "weight.W"), c.w_format, c.w_shift, c.w_zp);
    writer.parameter(cell_name(i, "weight.R"), c.r_format, c.r_shift, c.r_zp);
    writer.parameter(cell_name(i, "weight.bw"), c.bw_format, c.bw_shift, {});
    writer.parameter(cell_name(i, "weight.br"), c.br_format, c.br_shift, {});
  }
  return write_text_file(path, json_dump(writer.json(), 1) + "\n");
}

Result<GruEncodings> read_gru_encodings(const std::string& path, const GruNetwork& network, const GruConfig& base) {
  LOWBIT_TRY(check_gru(network));
  LOWBIT_TRY_ASSIGN(const std::string text, read_text_file(path, kMaxEncodingsBytes));
  JsonLimits limits;
  limits.text_bytes = static_cast<size_t>(kMaxEncodingsBytes);
  LOWBIT_TRY_ASSIGN(const Json json, parse_json_object(text, path, limits));
  const auto activations = json.find("activation_encodings"), parameters = json.find("param_encodings");
  if (activations == json.end() || parameters == json.end())
    return bad(path, "no activation_encodings or param_encodings", "an AIMET encodings file");
  auto impl = std::make_shared<GruRanges::Impl>();
  impl->bidirectional = network.bidirectional;
  impl->steps = 1;
  GruConfig config = base;
  for (size_t i = 0; i < network.cells.size(); ++i)
    impl->cells.push_back({network.cells[i].input, network.cells[i].hidden, {}, {}});
  GruRanges ranges(impl);
  for (size_t i = 0; i < network.cells.size(); ++i) {
    for (int t = 0; t < kGruTensors; ++t) {
      const auto tensor = static_cast<GruTensor>(t);
      const std::string name = cell_name(i, gru_tensor_name(tensor)), where = path + ": '" + name + "'";
      const Json* found = find_encoding(*activations, name);
      if (found == nullptr) return bad(where, "no such encoding", "one for each tensor of each cell");
      LOWBIT_TRY_ASSIGN(const Encoding e, read_encoding(*found, where));
      const double low = static_cast<double>(e.offset) * e.scale, top = low + (std::ldexp(1.0, e.bits) - 1) * e.scale;
      if (low > 0 || top < 0) return bad(where, "a range without 0", "one that includes it");
      LOWBIT_TRY(set_format(config[tensor], e, where, i == 0));
      ranges.set_range(static_cast<int>(i), tensor, static_cast<float>(low), static_cast<float>(top));
    }
    for (const auto& [name, format] : {std::pair{"weight.W", &config.w}, std::pair{"weight.R", &config.r}}) {
      const std::string full = cell_name(i, name), where = path + ": '" + full + "'";
      const Json* found = find_encoding(*parameters, full);
      if (found == nullptr) continue;  // those of `base`
      LOWBIT_TRY_ASSIGN(const Encoding e, read_encoding(*found, where));
      LOWBIT_TRY(set_format(*format, e, where, i == 0));
    }
  }
  config.fixed_gate_ranges = false;
  LOWBIT_TRY(check_gru_config(config));
  return GruEncodings{std::move(ranges), config};
}

}  // namespace lowbit
