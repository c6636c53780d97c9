// .lbgru: a safetensors file with every number of an integer network. Layout: docs/gru.md.

#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "base/try.h"
#include "format/registry.h"
#include "gru/config_json.h"
#include "gru/model.h"
#include "io/replace_file.h"
#include "io/safetensors.h"

namespace lowbit {
namespace {

constexpr const char* kFormat = "lowbit-gru";
constexpr int64_t kVersion = 1;
constexpr int64_t kMaxCells = 4096;
constexpr std::array<const char*, 3> kTableNames = {"u", "r", "n"};
constexpr int64_t kColumns = 6;  // of `tensors`: bits, unsigned, symmetric, saturate, shift, zero point

/// Weights of 2, 3 and 4 bits lie in the project's packed formats, up to 8 in bytes, more in 16-bit words.
FormatId packed_format(int bits) {
  return bits == 2 ? FormatId::kInt2 : bits == 3 ? FormatId::kInt3 : bits == 4 ? FormatId::kInt4 : FormatId::kInt8;
}

/// A tensor to be written.
struct Piece {
  SafetensorsDecl decl;
  std::vector<std::byte> bytes;
};

template <class T>
Piece piece(std::string name, DType dtype, Shape shape, const std::vector<T>& values) {
  Piece p{{std::move(name), dtype, std::move(shape)}, std::vector<std::byte>(values.size() * sizeof(T))};
  if (!values.empty()) std::memcpy(p.bytes.data(), values.data(), p.bytes.size());
  return p;
}

std::vector<int8_t> bytes_of(const std::vector<int32_t>& v) { return {v.begin(), v.end()}; }

/// Codes as signed ones of the same bits: of unsigned formats 2^(bits - 1) is taken off.
Piece weight_piece(const std::string& name, const std::vector<int32_t>& q, int64_t k, const GruFormat& f) {
  const auto rows = static_cast<int64_t>(q.size()) / k;
  const int bits = f.bits;
  const int32_t offset = f.is_unsigned ? 1 << (bits - 1) : 0;
  if (bits > 8) {
    std::vector<int16_t> words;
    for (const int32_t v : q) words.push_back(static_cast<int16_t>(v - offset));
    return piece(name, DType::kI16, {rows, k}, words);
  }
  const FormatId id = packed_format(bits);
  const int64_t stride = row_bytes(id, k);
  std::vector<uint8_t> packed(static_cast<size_t>(rows * stride)), codes(static_cast<size_t>(k));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < k; ++i)
      codes[static_cast<size_t>(i)] = code_of(id, static_cast<int16_t>(q[static_cast<size_t>(r * k + i)] - offset));
    format_ops(id).pack(codes.data(), k, packed.data() + r * stride);
  }
  return piece(name, DType::kU8, {rows, stride}, packed);
}

void add_cell(std::vector<Piece>& out, const std::string& p, const GruPlan& plan) {
  const GruCell& c = plan.cell();
  const int64_t rows = 3 * c.hidden;
  std::vector<int32_t> tensors;
  for (const GruParam& t : c.tensors)
    for (const int v : {t.format.bits, int{t.format.is_unsigned}, int{t.format.symmetric}, t.format.saturate,
                        t.scale.shift, t.scale.zp})
      tensors.push_back(v);
  out.push_back(piece(p + "tensors", DType::kI32, {kGruTensors, kColumns}, tensors));
  out.push_back(piece(p + "derived", DType::kI32, {2 * rows + 8}, plan.derived_shifts()));
  out.push_back(weight_piece(p + "W.codes", c.w, c.input, c.w_format));
  out.push_back(weight_piece(p + "R.codes", c.r, c.hidden, c.r_format));
  if (!c.w_format.symmetric) out.push_back(piece(p + "W.zero", DType::kI32, {rows}, c.w_zp));
  if (!c.r_format.symmetric) out.push_back(piece(p + "R.zero", DType::kI32, {rows}, c.r_zp));
  out.push_back(piece(p + "shape", DType::kI64, {2}, std::vector<int64_t>{c.input, c.hidden}));
  out.push_back(piece(p + "bw", DType::kI32, {rows}, c.bw));
  out.push_back(piece(p + "br", DType::kI32, {rows}, c.br));
  out.push_back(piece(p + "W.shift", DType::kI8, {rows}, bytes_of(c.w_shift)));
  out.push_back(piece(p + "R.shift", DType::kI8, {rows}, bytes_of(c.r_shift)));
  out.push_back(piece(p + "bw.shift", DType::kI8, {rows}, bytes_of(c.bw_shift)));
  out.push_back(piece(p + "br.shift", DType::kI8, {rows}, bytes_of(c.br_shift)));
  for (size_t i = 0; i < 3; ++i) {
    const GruTable& t = c.tables[i];
    const std::string name = p + "table." + kTableNames[i] + ".";
    const auto n = static_cast<int64_t>(t.slope.size());
    if (t.mode == GruTableMode::kDirect) {
      out.push_back(piece(name + "direct", DType::kI32, {static_cast<int64_t>(t.direct.size())}, t.direct));
      continue;
    }
    std::vector<int32_t> thresholds = t.threshold;
    thresholds.push_back(INT32_MAX);  // of the last segment: nothing lies beyond it
    out.push_back(piece(name + "threshold", DType::kI32, {n}, thresholds));
    out.push_back(piece(name + "slope", DType::kI32, {n}, t.slope));
    out.push_back(piece(name + "shift", DType::kI8, {n}, bytes_of(t.shift)));
    out.push_back(piece(name + "intercept", DType::kI64, {n}, t.intercept));
  }
}

std::string checksum_text(uint64_t hash) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

class Hash {
 public:
  Hash() : state_(XXH3_createState()) { XXH3_64bits_reset(state_); }
  ~Hash() { XXH3_freeState(state_); }
  Hash(const Hash&) = delete;
  Hash& operator=(const Hash&) = delete;
  void add(std::span<const std::byte> bytes) { XXH3_64bits_update(state_, bytes.data(), bytes.size()); }
  std::string text() const { return checksum_text(XXH3_64bits_digest(state_)); }

 private:
  XXH3_state_t* state_;
};

// ---- Reading

class CellReader {
 public:
  CellReader(const SafetensorsFile& file, const GruConfig& config, int64_t cell)
      : file_(file), config_(config), prefix_("cells." + std::to_string(cell) + ".") {}

  Result<GruCell> read() {
    GruCell c;
    std::vector<int64_t> shape;
    LOWBIT_TRY_ASSIGN(shape, integers("shape", DType::kI64, {2}));
    c.input = shape[0];
    c.hidden = shape[1];
    if (c.input < 1 || c.hidden < 1 || c.input > kMaxGruSize || c.hidden > kMaxGruSize)
      return fail(ErrorCode::kCorrupt, where("shape"), shape_string({c.input, c.hidden}), "1 to 2^20 of both");
    const int64_t rows = 3 * c.hidden;
    LOWBIT_TRY_ASSIGN(const auto tensors, integers("tensors", DType::kI32, {kGruTensors, kColumns}));
    for (size_t t = 0; t < kGruTensors; ++t) {
      const int64_t* v = tensors.data() + t * kColumns;
      if (v[0] < 1 || v[0] > 16)
        return fail(ErrorCode::kCorrupt, where("tensors"), std::to_string(v[0]) + " bits", "1 to 16");
      c.tensors[t] = {{static_cast<int>(v[0]), v[1] != 0, v[2] != 0, static_cast<int>(v[3])},
                      {static_cast<int>(v[4]), static_cast<int32_t>(v[5])}};
    }
    c.w_format = config_.w;
    c.r_format = config_.r;
    c.bw_format = config_.bw;
    c.br_format = config_.br;
    LOWBIT_TRY_ASSIGN(c.w, weights("W.codes", rows, c.input, config_.w));
    LOWBIT_TRY_ASSIGN(c.r, weights("R.codes", rows, c.hidden, config_.r));
    if (!config_.w.symmetric) {
      LOWBIT_TRY_ASSIGN(c.w_zp, narrow("W.zero", DType::kI32, {rows}));
    }
    if (!config_.r.symmetric) {
      LOWBIT_TRY_ASSIGN(c.r_zp, narrow("R.zero", DType::kI32, {rows}));
    }
    LOWBIT_TRY_ASSIGN(c.bw, narrow("bw", DType::kI32, {rows}));
    LOWBIT_TRY_ASSIGN(c.br, narrow("br", DType::kI32, {rows}));
    LOWBIT_TRY_ASSIGN(c.w_shift, narrow("W.shift", DType::kI8, {rows}));
    LOWBIT_TRY_ASSIGN(c.r_shift, narrow("R.shift", DType::kI8, {rows}));
    LOWBIT_TRY_ASSIGN(c.bw_shift, narrow("bw.shift", DType::kI8, {rows}));
    LOWBIT_TRY_ASSIGN(c.br_shift, narrow("br.shift", DType::kI8, {rows}));
    for (size_t i = 0; i < 3; ++i) {
      LOWBIT_TRY_ASSIGN(c.tables[i], table(std::string("table.") + kTableNames[i] + "."));
    }
    return c;
  }

  /// The file must agree with what the plan derives.
  Status check_derived(const GruPlan& plan) {
    const auto derived = plan.derived_shifts();
    LOWBIT_TRY_ASSIGN(const auto stored, narrow("derived", DType::kI32, {static_cast<int64_t>(derived.size())}));
    for (size_t i = 0; i < derived.size(); ++i)
      if (stored[i] != derived[i])
        return fail(ErrorCode::kCorrupt, where("derived"),
                    "shift " + std::to_string(i) + " = " + std::to_string(stored[i]),
                    std::to_string(derived[i]) + " as its tensors' shifts give");
    return {};
  }

 private:
  std::string where(const std::string& name) const { return file_.path() + ": '" + prefix_ + name + "'"; }

  Result<Buffer> tensor(const std::string& name, DType dtype, const Shape& shape) {
    const SafetensorsEntry* e = file_.find(prefix_ + name);
    if (e == nullptr) return fail(ErrorCode::kCorrupt, where(name), "no such tensor", "all of a cell");
    if (e->dtype != dtype || e->shape != shape)
      return fail(ErrorCode::kCorrupt, where(name), std::string(dtype_name(e->dtype)) + " " + shape_string(e->shape),
                  std::string(dtype_name(dtype)) + " " + shape_string(shape));
    return file_.bytes(*e);
  }

  Result<std::vector<int64_t>> integers(const std::string& name, DType dtype, const Shape& shape) {
    LOWBIT_TRY_ASSIGN(const Buffer b, tensor(name, dtype, shape));
    LOWBIT_TRY_ASSIGN(const int64_t n, element_count(shape));
    const auto read = [&](const auto* p) { return std::vector<int64_t>(p, p + n); };
    if (dtype == DType::kI64) return read(b.as<int64_t>());
    if (dtype == DType::kI32) return read(b.as<int32_t>());
    return read(b.as<int8_t>());
  }
  Result<std::vector<int32_t>> narrow(const std::string& name, DType dtype, const Shape& shape) {
    LOWBIT_TRY_ASSIGN(const auto wide, integers(name, dtype, shape));
    return std::vector<int32_t>(wide.begin(), wide.end());
  }

  Result<std::vector<int32_t>> weights(const std::string& name, int64_t rows, int64_t k, const GruFormat& f) {
    const int bits = f.bits;
    const int32_t offset = f.is_unsigned ? 1 << (bits - 1) : 0;
    std::vector<int32_t> out;  // of no size before the tensor has proved to have it
    if (bits > 8) {
      LOWBIT_TRY_ASSIGN(const Buffer b, tensor(name, DType::kI16, {rows, k}));
      out.resize(static_cast<size_t>(rows * k));
      std::transform(b.as<int16_t>(), b.as<int16_t>() + out.size(), out.begin(), [&](int16_t v) { return v + offset; });
      return out;
    }
    const FormatId id = packed_format(bits);
    const int64_t stride = row_bytes(id, k);
    LOWBIT_TRY_ASSIGN(const Buffer b, tensor(name, DType::kU8, {rows, stride}));
    out.resize(static_cast<size_t>(rows * k));
    std::vector<uint8_t> codes(static_cast<size_t>(k));
    const float* values = format_ops(id).values;
    for (int64_t r = 0; r < rows; ++r) {
      format_ops(id).unpack(b.as<uint8_t>() + r * stride, 0, k, codes.data());
      for (int64_t i = 0; i < k; ++i)
        out[static_cast<size_t>(r * k + i)] = static_cast<int32_t>(values[codes[static_cast<size_t>(i)]]) + offset;
    }
    return out;
  }

  Result<GruTable> table(const std::string& name) {
    GruTable t;
    t.mode = config_.table;
    const char* main = t.mode == GruTableMode::kDirect ? "direct" : "slope";
    const SafetensorsEntry* e = file_.find(prefix_ + name + main);
    if (e == nullptr || e->shape.size() != 1 || e->shape[0] < 1 || e->shape[0] > 65536)
      return fail(ErrorCode::kCorrupt, where(name + main), "no table", "1 to 65536 entries");
    const int64_t n = e->shape[0];
    if (t.mode == GruTableMode::kDirect) {
      LOWBIT_TRY_ASSIGN(t.direct, narrow(name + "direct", DType::kI32, {n}));
      return t;
    }
    LOWBIT_TRY_ASSIGN(t.threshold, narrow(name + "threshold", DType::kI32, {n}));
    if (t.threshold.back() != INT32_MAX)
      return fail(ErrorCode::kCorrupt, where(name + "threshold"), std::to_string(t.threshold.back()) + " at the end",
                  std::to_string(INT32_MAX));
    t.threshold.pop_back();
    LOWBIT_TRY_ASSIGN(t.slope, narrow(name + "slope", DType::kI32, {n}));
    LOWBIT_TRY_ASSIGN(t.shift, narrow(name + "shift", DType::kI8, {n}));
    LOWBIT_TRY_ASSIGN(t.intercept, integers(name + "intercept", DType::kI64, {n}));
    return t;
  }

  const SafetensorsFile& file_;
  const GruConfig& config_;
  std::string prefix_;
};

Result<std::string> metadata_of(const SafetensorsFile& file, const char* key) {
  const auto it = file.metadata().find(key);
  if (it != file.metadata().end()) return it->second;
  return fail(ErrorCode::kCorrupt, file.path(), std::string("no metadata '") + key + "'", "a .lbgru file",
              "`lowbit gru quantize` makes them");
}

Status check_hash(const SafetensorsFile& file, const std::string& stored) {
  Hash hash;
  for (const SafetensorsEntry& e : file.tensors()) {
    LOWBIT_TRY_ASSIGN(const Buffer b, file.bytes(e));
    hash.add(b.span());
  }
  if (hash.text() == stored) return {};
  return fail(ErrorCode::kCorrupt, file.path(), "checksum " + hash.text(), stored.substr(0, 32), "the file is damaged");
}

int64_t number_of(const std::string& text, int64_t limit) {
  int64_t v = 0;
  for (const char c : text) {
    if (c < '0' || c > '9' || v > limit) return -1;
    v = 10 * v + (c - '0');
  }
  return text.empty() || v > limit ? -1 : v;
}

}  // namespace

Status GruModel::save(const std::string& path) const {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < impl_->cells.size(); ++i)
    add_cell(pieces, "cells." + std::to_string(i) + ".", *impl_->cells[i]);
  // Wide types first, so that everything lies aligned.
  std::stable_sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    return dtype_bytes(a.decl.dtype) > dtype_bytes(b.decl.dtype);
  });
  Hash hash;
  std::vector<SafetensorsDecl> decls;
  for (const Piece& p : pieces) {
    hash.add(p.bytes);
    decls.push_back(p.decl);
  }
  std::map<std::string, std::string> metadata = {{"format", kFormat},
                                                 {"version", std::to_string(kVersion)},
                                                 {"bidirectional", impl_->bidirectional ? "1" : "0"},
                                                 {"cells", std::to_string(impl_->cells.size())},
                                                 {"config", gru_config_json(impl_->config)},
                                                 {"xxh3", hash.text()}};
  if (impl_->batch_first) metadata["batch_first"] = "1";
  LOWBIT_TRY_ASSIGN(ReplaceFile file, ReplaceFile::create(path));
  LOWBIT_TRY_ASSIGN(auto writer, SafetensorsWriter::create(file.path(), decls, metadata));
  for (const Piece& p : pieces) LOWBIT_TRY(writer->append(p.bytes));
  LOWBIT_TRY(writer->finish());
  return file.commit();
}

Result<GruModel> GruModel::open(const std::string& path) {
  LOWBIT_TRY_ASSIGN(const SafetensorsFile file, SafetensorsFile::open(path));
  LOWBIT_TRY_ASSIGN(const std::string format, metadata_of(file, "format"));
  LOWBIT_TRY_ASSIGN(const std::string version, metadata_of(file, "version"));
  LOWBIT_TRY_ASSIGN(const std::string count, metadata_of(file, "cells"));
  LOWBIT_TRY_ASSIGN(const std::string config_text, metadata_of(file, "config"));
  LOWBIT_TRY_ASSIGN(const std::string bidirectional, metadata_of(file, "bidirectional"));
  LOWBIT_TRY_ASSIGN(const std::string checksum, metadata_of(file, "xxh3"));
  if (format != kFormat) return fail(ErrorCode::kCorrupt, path, "format '" + format.substr(0, 32) + "'", kFormat);
  if (number_of(version, 1000) != kVersion)
    return fail(ErrorCode::kUnsupported, path, "version " + version.substr(0, 16), std::to_string(kVersion),
                "a newer lowbit wrote it");
  LOWBIT_TRY(check_hash(file, checksum));
  const int64_t cells = number_of(count, kMaxCells);
  if (cells < 1 || (bidirectional != "0" && bidirectional != "1"))
    return fail(ErrorCode::kCorrupt, path, count.substr(0, 16) + " cells, bidirectional " + bidirectional.substr(0, 16),
                "1 to 4096, and 0 or 1");
  LOWBIT_TRY_ASSIGN(const auto json, parse_json_object(config_text, path + ": config"));
  LOWBIT_TRY_ASSIGN(GruConfig config, parse_gru_config(json, path + ": config", GruConfig{}));
  std::vector<GruCell> list;
  for (int64_t i = 0; i < cells; ++i) {
    LOWBIT_TRY_ASSIGN(GruCell cell, CellReader(file, config, i).read());
    list.push_back(std::move(cell));
  }
  const auto batch_first = file.metadata().find("batch_first");
  if (batch_first != file.metadata().end() && batch_first->second != "1")
    return fail(ErrorCode::kCorrupt, path, "batch_first " + batch_first->second.substr(0, 16), "1, or none");
  auto impl = make_gru_impl(config, bidirectional == "1", std::move(list), batch_first != file.metadata().end());
  if (!impl) {
    Error e = impl.error();
    e.where = path + ": " + e.where;
    return tl::unexpected<Error>(std::move(e));
  }
  for (int64_t i = 0; i < cells; ++i)
    LOWBIT_TRY(CellReader(file, config, i).check_derived(*(*impl)->cells[static_cast<size_t>(i)]));
  return GruModel(std::move(*impl));
}

}  // namespace lowbit
