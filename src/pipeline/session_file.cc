// Sessions in files: tokens, logits and the pages of keys and values, as safetensors.

#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>

#include "base/try.h"
#include "io/lost_pages.h"
#include "io/replace_file.h"
#include "io/safetensors.h"
#include "lowbit/version.h"
#include "pipeline/session_impl.h"

namespace lowbit {
namespace {

constexpr const char* kFormat = "lowbit session";
/// The version of the file and of the meaning of keys and values: a change of either is another version. Quantized
/// caches have transformed values since version 2; f16 caches have not changed.
const char* version_of(const std::string& kv) { return kv == "f16" ? "1" : "2"; }

using Metadata = std::map<std::string, std::string>;

std::string value_of(const Metadata& metadata, const std::string& key) {
  const auto it = metadata.find(key);
  return it == metadata.end() ? std::string() : it->second;
}

Result<int64_t> number_of(const Metadata& metadata, const std::string& key, const std::string& path) {
  const std::string text = value_of(metadata, key);
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || number < 0)
    return fail(ErrorCode::kCorrupt, path, fmt::format("{} '{}'", key, text), "a whole number");
  return number;
}

std::string file_name_of(const std::string& path) { return std::filesystem::path(path).filename().string(); }

std::string f16_name(size_t group) { return fmt::format("kv.{}.f16", group); }
std::string f16_pages_name(size_t group) { return fmt::format("kv.{}.f16_pages", group); }
std::string packed_name(size_t group) { return fmt::format("kv.{}.packed", group); }
std::string packed_gone_name(size_t group) { return fmt::format("kv.{}.packed_gone", group); }
std::string demoted_name(size_t group) { return fmt::format("kv.{}.demoted", group); }

/// The options that a session's results depend on, as text.
Metadata metadata_of(const SharedModel& model, int64_t length) {
  const KvFormat& kv = model.transformer->kv();
  return {{"format", kFormat},
          {"version", version_of(model.info.kv)},
          {"lowbit", version()},
          {"model", model.transformer->fingerprint()},
          {"model_name", file_name_of(model.info.path)},
          {"architecture", model.info.architecture},
          {"activation", model.info.activation},
          {"kv", model.info.kv},
          {"kv_residual", std::to_string(kv.residual)},
          {"kv_keep", model.info.kv_keep},
          {"kv_refresh", std::to_string(model.info.kv_refresh)},
          {"kv_demote", model.info.kv_demote},
          {"length", std::to_string(length)}};
}

Status check_metadata(const Metadata& file, const SharedModel& model, const std::string& path) {
  const Metadata own = metadata_of(model, 0);
  const auto of = [&](const char* key) { return value_of(file, key); };
  if (of("format") != kFormat)
    return fail(ErrorCode::kCorrupt, path, "no session", "a file that a session was saved to");
  if (of("version") != version_of(of("kv")))
    return fail(ErrorCode::kUnsupported, path, fmt::format("a session of version '{}'", of("version")),
                version_of(of("kv")), fmt::format("it was written by lowbit {}, this is {}", of("lowbit"), version()));
  if (of("model") != own.at("model"))
    return fail(ErrorCode::kInvalidArgument, path,
                fmt::format("a session of another model ({} {})", of("model_name"), of("model").substr(0, 12)),
                fmt::format("one of {} {}", own.at("model_name"), own.at("model").substr(0, 12)),
                "open the model that it was saved with");
  // Files of older versions do not have the last two.
  const auto differs = [&](const char* key) {
    return of(key) != own.at(key) && !(of(key).empty() && own.at(key) == "0");
  };
  const auto option = [&](const char* name, const char* key) {
    return of(key).empty() || of(key) == "0" ? std::string() : fmt::format(" {} {}", name, of(key));
  };
  for (const char* key : {"activation", "kv", "kv_residual", "kv_keep", "kv_refresh", "kv_demote"})
    if (differs(key))
      return fail(ErrorCode::kInvalidArgument, path, fmt::format("a session with {} {}", key, of(key)),
                  fmt::format("{} {}", key, own.at(key)),
                  fmt::format("open the model with --act {} --kv {} --kv-residual {}{}{}{}", of("activation"), of("kv"),
                              of("kv_residual"), option("--kv-keep", "kv_keep"), option("--kv-refresh", "kv_refresh"),
                              option("--kv-demote", "kv_demote")));
  return {};
}

/// A tensor's bytes as numbers; none where there is no such tensor, which is how a file says that there are none.
template <class T>
Result<std::vector<T>> read_numbers(const SafetensorsFile& file, const std::string& name, DType dtype) {
  const SafetensorsEntry* const entry = file.find(name);
  if (entry == nullptr) return std::vector<T>();
  if (entry->dtype != dtype || entry->shape.size() != 1)
    return fail(ErrorCode::kCorrupt, file.path() + ": " + name,
                std::string(dtype_name(entry->dtype)) + " " + shape_string(entry->shape),
                std::string(dtype_name(dtype)) + ", one dimension");
  LOWBIT_TRY_ASSIGN(const Buffer bytes, file.bytes(*entry));
  return std::vector<T>(bytes.as<T>(), bytes.as<T>() + entry->shape[0]);
}

/// How many pages of a store the file has.
Result<int64_t> count_pages(const SafetensorsFile& file, const std::string& name, int64_t page_bytes) {
  const SafetensorsEntry* const entry = file.find(name);
  if (entry == nullptr) return int64_t{0};
  if (entry->dtype == DType::kU8 && entry->shape.size() == 2 && entry->shape[1] == page_bytes) return entry->shape[0];
  return fail(ErrorCode::kCorrupt, file.path() + ": " + name,
              std::string(dtype_name(entry->dtype)) + " " + shape_string(entry->shape),
              fmt::format("U8 [pages, {}]", page_bytes));
}

struct Saved {
  KvImage image;
  std::vector<TokenId> tokens;
  std::vector<float> logits;
  std::string note;
};

Result<Saved> read_all_but_pages(const SafetensorsFile& file, const SharedModel& model) {
  const std::string& path = file.path();
  LOWBIT_TRY(check_metadata(file.metadata(), model, path));
  Saved saved;
  LOWBIT_TRY_ASSIGN(saved.image.length, number_of(file.metadata(), "length", path));
  if (model.pages->refresh() > 0) {
    LOWBIT_TRY_ASSIGN(saved.image.refreshed, number_of(file.metadata(), "refreshed", path));
  }
  if (saved.image.length > model.info.context)
    return fail(ErrorCode::kInvalidArgument, path, fmt::format("a session of {} tokens", saved.image.length),
                fmt::format("at most {}", model.info.context), "ask for a larger context (-c)");
  LOWBIT_TRY_ASSIGN(saved.tokens, read_numbers<TokenId>(file, "tokens", DType::kI32));
  LOWBIT_TRY_ASSIGN(saved.logits, read_numbers<float>(file, "logits", DType::kF32));
  LOWBIT_TRY_ASSIGN(const auto note, read_numbers<char>(file, "note", DType::kU8));
  saved.note.assign(note.begin(), note.end());
  const auto vocab = model.info.vocab_size;
  if (int64_t(saved.tokens.size()) != saved.image.length)
    return fail(ErrorCode::kCorrupt, path, fmt::format("{} tokens", saved.tokens.size()),
                fmt::format("{}, as its length says", saved.image.length));
  for (const TokenId token : saved.tokens)
    if (token < 0 || token >= vocab)
      return fail(ErrorCode::kCorrupt, path, fmt::format("token {}", token), fmt::format("0 to {}", vocab - 1));
  if (!saved.logits.empty() && int64_t(saved.logits.size()) != vocab)
    return fail(ErrorCode::kCorrupt, path, fmt::format("{} logits", saved.logits.size()), fmt::format("{}", vocab));
  const KvPool& pool = *model.pages;
  for (size_t g = 0; g < pool.groups().size(); ++g) {
    KvImage::Group group;
    LOWBIT_TRY_ASSIGN(const auto pages, read_numbers<int32_t>(file, f16_pages_name(g), DType::kI32));
    group.f16.assign(pages.begin(), pages.end());
    LOWBIT_TRY_ASSIGN(const int64_t f16, count_pages(file, f16_name(g), pool.page_bytes(int(g))));
    if (f16 != int64_t(pages.size()))
      return fail(ErrorCode::kCorrupt, path + ": " + f16_name(g), fmt::format("{} pages", f16),
                  fmt::format("{}, as {} names", pages.size(), f16_pages_name(g)));
    LOWBIT_TRY_ASSIGN(const auto gone, read_numbers<int32_t>(file, packed_gone_name(g), DType::kI32));
    for (const int32_t pages_gone : gone) group.packed_gone = pages_gone;
    LOWBIT_TRY_ASSIGN(group.packed, count_pages(file, packed_name(g), pool.page_bytes(pool.packed_store(int(g)))));
    group.packed += group.packed_gone;
    LOWBIT_TRY_ASSIGN(group.demoted, count_pages(file, demoted_name(g), pool.page_bytes(pool.demoted_store(int(g)))));
    saved.image.groups.push_back(std::move(group));
  }
  return saved;
}

/// Bytes of a tensor, page by page, to the pages of a store that `page_of` names.
template <class PageOf>
Status write_pages(const SafetensorsFile& file, const std::string& name, KvCache& cache, int store, int64_t count,
                   const PageOf& page_of) {
  if (count == 0) return {};
  const SafetensorsEntry& entry = *file.find(name);
  LOWBIT_TRY_ASSIGN(const Buffer bytes, file.bytes(entry));
  for (int64_t i = 0; i < count; ++i)
    LOWBIT_TRY(cache.write_page(store, page_of(i), bytes.data() + i * cache.pool().page_bytes(store)));
  file.release(entry);
  return {};
}

Result<KvCache> restore(const SafetensorsFile& file, const SharedModel& model, const KvImage& image,
                        std::span<const TokenId> tokens) {
  auto made = KvCache::from_image(model.pages, model.info.context, image);
  if (!made) {
    if (made.error().code == ErrorCode::kCorrupt) made.error().where = file.path() + ": " + made.error().where;
    return made;
  }
  for (size_t g = 0; g < image.groups.size(); ++g) {
    const KvImage::Group& group = image.groups[g];
    LOWBIT_TRY(write_pages(file, f16_name(g), *made, int(g), int64_t(group.f16.size()),
                           [&](int64_t i) { return group.f16[size_t(i)]; }));
    LOWBIT_TRY(write_pages(file, packed_name(g), *made, made->pool().packed_store(int(g)), group.packed_there(),
                           [&](int64_t i) { return group.packed_gone + i + 1; }));
    LOWBIT_TRY(write_pages(file, demoted_name(g), *made, made->pool().demoted_store(int(g)), group.demoted,
                           [](int64_t i) { return i + 1; }));
  }
  made->set_recent(tokens);
  return made;
}

std::vector<int64_t> numbers(int64_t first, int64_t last) {
  std::vector<int64_t> all;
  for (int64_t i = first; i <= last; ++i) all.push_back(i);
  return all;
}

/// Tensors in the order of a file: wide types first. Those without elements are left out.
class SessionWriter {
 public:
  explicit SessionWriter(const KvCache& cache) : cache_(cache) {}

  void add(const std::string& name, DType dtype, std::span<const std::byte> bytes) {
    if (bytes.empty()) return;
    declared_.push_back({name, dtype, {int64_t(bytes.size()) / dtype_bytes(dtype)}});
    pieces_.push_back({bytes, -1, {}});
  }
  /// `pages`: their numbers.
  void add_pages(const std::string& name, int store, std::vector<int64_t> pages) {
    if (pages.empty()) return;
    declared_.push_back({name, DType::kU8, {int64_t(pages.size()), cache_.pool().page_bytes(store)}});
    pieces_.push_back({{}, store, std::move(pages)});
  }

  Status write(const std::string& path, const Metadata& metadata) {
    LOWBIT_TRY_ASSIGN(ReplaceFile file, ReplaceFile::create(path));
    LOWBIT_TRY_ASSIGN(const auto writer, SafetensorsWriter::create(file.path(), declared_, metadata));
    for (const Piece& piece : pieces_) {
      if (piece.store < 0) LOWBIT_TRY(writer->append(piece.bytes));
      if (piece.store >= 0) LOWBIT_TRY(append_pages(*writer, piece.store, piece.pages));
    }
    LOWBIT_TRY(writer->finish());
    return file.commit();
  }

 private:
  struct Piece {
    std::span<const std::byte> bytes;
    int store = -1;  // whose pages they are, in place of bytes
    std::vector<int64_t> pages = {};
  };
  Status append_pages(SafetensorsWriter& writer, int store, std::span<const int64_t> pages) {
    page_.resize(size_t(cache_.pool().page_bytes(store)));
    for (const int64_t page : pages) {
      LOWBIT_TRY(cache_.read_page(store, page, page_.data()));
      LOWBIT_TRY(writer.append(page_));
    }
    return {};
  }

  const KvCache& cache_;
  std::vector<SafetensorsDecl> declared_;
  std::vector<Piece> pieces_;
  std::vector<std::byte> page_;
};

}  // namespace

Status Session::save(const std::string& path, const std::string& note) const {
  const KvImage image = impl_->cache.image();
  std::vector<std::vector<int32_t>> pages;
  for (const KvImage::Group& group : image.groups) pages.emplace_back(group.f16.begin(), group.f16.end());
  const KvPool& pool = impl_->cache.pool();
  SessionWriter writer(impl_->cache);
  writer.add("tokens", DType::kI32, std::as_bytes(tokens()));
  writer.add("logits", DType::kF32, std::as_bytes(logits()));
  for (size_t g = 0; g < pages.size(); ++g)
    writer.add(f16_pages_name(g), DType::kI32, std::as_bytes(std::span(pages[g])));
  std::vector<int32_t> gone(image.groups.size());
  for (size_t g = 0; g < gone.size(); ++g) {
    gone[g] = int32_t(image.groups[g].packed_gone);
    if (gone[g] > 0) writer.add(packed_gone_name(g), DType::kI32, std::as_bytes(std::span(&gone[g], 1)));
  }
  for (size_t g = 0; g < pages.size(); ++g) {
    const KvImage::Group& group = image.groups[g];
    writer.add_pages(f16_name(g), int(g), group.f16);
    writer.add_pages(packed_name(g), pool.packed_store(int(g)), numbers(group.packed_gone + 1, group.packed));
    writer.add_pages(demoted_name(g), pool.demoted_store(int(g)), numbers(1, group.demoted));
  }
  writer.add("note", DType::kU8, std::as_bytes(std::span(note)));
  Metadata metadata = metadata_of(*impl_->model, length());
  if (pool.refresh() > 0) metadata["refreshed"] = std::to_string(image.refreshed);
  return writer.write(path, metadata);
}

Result<std::string> Session::load(const std::string& path) {
  if (impl_->trace != nullptr)
    return fail(ErrorCode::kInvalidArgument, "load a session", "one that is traced", "one without a trace");
  const LostPages lost;
  LOWBIT_TRY_ASSIGN(const SafetensorsFile file, SafetensorsFile::open(path));
  LOWBIT_TRY_ASSIGN(Saved saved, read_all_but_pages(file, *impl_->model));
  std::optional<KvCache> cache;
  LOWBIT_TRY(impl_->with_pages(impl_->most_wait, [&]() -> Status {
    LOWBIT_TRY_ASSIGN(cache, restore(file, *impl_->model, saved.image, saved.tokens));
    return {};
  }));
  LOWBIT_TRY(lost.status(path));
  impl_->cache = std::move(*cache);
  impl_->history = std::move(saved.tokens);
  impl_->has_logits = !saved.logits.empty();
  if (impl_->has_logits) impl_->logits = std::move(saved.logits);
  return std::move(saved.note);
}

}  // namespace lowbit
