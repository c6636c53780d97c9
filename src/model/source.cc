#include "model/source.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

#include "base/try.h"
#include "io/checkpoint.h"
#include "io/json_text.h"
#include "io/mapped_file.h"
#include "io/posix_file.h"
#include "model/source_kinds.h"

namespace lowbit {
namespace {

constexpr int64_t kMaxTemplateBytes = int64_t{4} << 20;
constexpr size_t kMaxTokenizerConfigBytes = size_t{32} << 20;
constexpr int64_t kMaxTextBytes = int64_t{256} << 20;  // some tokenizer.json files have tens of megabytes

Result<std::string> read_if_there(const std::string& path) {
  auto text = read_text_file(path, kMaxTextBytes);
  if (!text && text.error().code == ErrorCode::kNotFound) return std::string();
  return text;
}

namespace fs = std::filesystem;

/// "owner/name", as other programs take them for a download.
bool is_hub_name(const std::string& path) {
  return std::count(path.begin(), path.end(), '/') == 1 && !path.starts_with('.') && !path.starts_with('/') &&
         !path.ends_with('/') && !path.ends_with(".gguf");
}

/// Errors: kNotFound.
Result<fs::file_status> status_of(const std::string& path) {
  std::error_code error;
  const auto status = fs::status(path, error);
  if (fs::exists(status)) return status;
  return fail(ErrorCode::kNotFound, path.empty() ? "model" : path,
              path.empty()                                ? "an empty name"
              : status.type() == fs::file_type::not_found ? "nothing there"
                                                          : error.message(),
              "a checkpoint directory, a Hugging Face directory or a GGUF file",
              is_hub_name(path) ? "lowbit downloads nothing; fetch the model first and name its directory" : "");
}

/// Another number when the directory was replaced by another one of the same name.
std::pair<dev_t, ino_t> identity_of(const std::string& path) {
  struct stat info = {};
  return stat(path.c_str(), &info) == 0 ? std::pair{info.st_dev, info.st_ino} : std::pair{dev_t{0}, ino_t{0}};
}

/// A pipe is not asked: reading from it may wait for ever.
bool is_gguf(const std::string& path, fs::file_status status) {
  char magic[4] = {};
  if (!fs::is_regular_file(status)) return false;
  std::ifstream in(path, std::ios::binary);
  return in.read(magic, 4) && std::string_view(magic, 4) == "GGUF";
}

/// The files DIRECTORY/chat_templates/NAME.jinja, or those of additional_chat_templates, where transformers writes
/// them; by name.
std::vector<std::string> named_templates(const std::string& directory) {
  std::vector<std::string> names;
  for (const char* folder : {"/chat_templates", "/additional_chat_templates"}) {
    const auto found = directory_names(directory + folder);
    for (size_t i = 0; found && i < found->size(); ++i)
      if ((*found)[i].ends_with(".jinja")) names.push_back(directory + folder + "/" + (*found)[i]);
    if (!names.empty()) break;
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// Puts a template that stands beside the model where all readers look for it. chat_template.jinja (written by
/// transformers since version 5) counts for more than tokenizer_config.json, so does one named default; another name is
/// taken where there is nothing else.
Status add_chat_template(const std::string& directory, std::string* tokenizer_config) {
  std::string path = directory + "/chat_template.jinja";
  std::error_code error;
  bool counts = fs::exists(path, error);
  if (!counts) {
    const std::vector<std::string> names = named_templates(directory);
    const auto usual =
        std::find_if(names.begin(), names.end(), [](const auto& n) { return n.ends_with("/default.jinja"); });
    if (names.empty()) return {};
    counts = usual != names.end();
    path = counts ? *usual : names.front();
  }
  nlohmann::json config = nlohmann::json::object();
  if (!tokenizer_config->empty()) {
    LOWBIT_TRY_ASSIGN(config, parse_json_object(*tokenizer_config, directory + "/tokenizer_config.json",
                                                {.text_bytes = kMaxTokenizerConfigBytes}));
  }
  if (!counts && config.contains("chat_template") && !config["chat_template"].is_null()) return {};
  LOWBIT_TRY_ASSIGN(config["chat_template"], read_text_file(path, kMaxTemplateBytes));
  *tokenizer_config = json_dump(config, 2) + "\n";
  return {};
}

}  // namespace

Result<ModelTexts> read_model_texts(const std::string& directory) {
  ModelTexts texts;
  LOWBIT_TRY_ASSIGN(texts.tokenizer, read_if_there(directory + "/tokenizer.json"));
  LOWBIT_TRY_ASSIGN(texts.tokenizer_config, read_if_there(directory + "/tokenizer_config.json"));
  LOWBIT_TRY(add_chat_template(directory, &texts.tokenizer_config));
  const std::string generation = directory + "/generation_config.json";
  LOWBIT_TRY_ASSIGN(texts.generation_config, read_if_there(generation));
  std::error_code ignored;
  if (!texts.generation_config.empty() || fs::exists(generation, ignored)) {
    LOWBIT_TRY(parse_json_object(texts.generation_config, generation));  // broken: not what its author meant
  }
  return texts;
}

Result<std::unique_ptr<WeightSource>> open_source(const std::string& path, const std::string& i2s_layout) {
  LOWBIT_TRY_ASSIGN(const fs::file_status status, status_of(path));
  if (!fs::is_directory(status)) {
    if (is_gguf(path, status)) return open_gguf_source(path, i2s_layout);
    return fail(ErrorCode::kUnsupported, path, "a file that is not GGUF",
                "a checkpoint directory, a Hugging Face directory or a GGUF file",
                path.ends_with(".safetensors") ? "give the directory that holds it and config.json" : "");
  }
  std::error_code error;
  if (!fs::exists(path + "/config.json", error))
    return fail(ErrorCode::kNotFound, path, "no config.json", "a checkpoint directory or a Hugging Face directory");
  // A directory that is replaced meanwhile could give files of both: then all are read again.
  constexpr int kAttempts = 8;
  for (int attempt = 0;; ++attempt) {
    const auto before = identity_of(path);
    auto source = Checkpoint::is_checkpoint(path) ? open_lowbit_source(path) : open_huggingface_source(path);
    if (identity_of(path) == before) return source;
    if (attempt == kAttempts)
      return fail(ErrorCode::kIo, path, "a directory that is replaced again and again", "one that stays");
  }
}

Result<TokenizerTexts> read_tokenizer_texts(const std::string& path) {
  LOWBIT_TRY_ASSIGN(const fs::file_status status, status_of(path));
  ModelTexts texts;
  if (fs::is_directory(status)) {
    LOWBIT_TRY_ASSIGN(texts, read_model_texts(path));
  } else if (is_gguf(path, status)) {
    LOWBIT_TRY_ASSIGN(const GgufFile file, GgufFile::open(path));
    LOWBIT_TRY(gguf_tokenizer_json(file, &texts));
  } else if (path.ends_with(".json")) {
    LOWBIT_TRY_ASSIGN(texts.tokenizer, read_text_file(path, kMaxTextBytes));
  } else {
    return fail(ErrorCode::kUnsupported, path, "a file that is not GGUF",
                "a tokenizer.json, a model's directory or a GGUF file");
  }
  return TokenizerTexts{std::move(texts.tokenizer), std::move(texts.tokenizer_config)};
}

}  // namespace lowbit
