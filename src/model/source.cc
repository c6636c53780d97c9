#include "model/source.h"

#include <filesystem>
#include <fstream>

#include "base/try.h"
#include "io/checkpoint.h"
#include "io/mapped_file.h"
#include "model/source_kinds.h"

namespace lowbit {
namespace {

constexpr int64_t kMaxTextBytes = int64_t{256} << 20;  // some tokenizer.json files have tens of megabytes

Result<std::string> read_if_there(const std::string& path) {
  auto text = read_text_file(path, kMaxTextBytes);
  if (!text && text.error().code == ErrorCode::kNotFound) return std::string();
  return text;
}

}  // namespace

Result<ModelTexts> read_model_texts(const std::string& directory) {
  ModelTexts texts;
  LOWBIT_TRY_ASSIGN(texts.tokenizer, read_if_there(directory + "/tokenizer.json"));
  LOWBIT_TRY_ASSIGN(texts.tokenizer_config, read_if_there(directory + "/tokenizer_config.json"));
  LOWBIT_TRY_ASSIGN(texts.generation_config, read_if_there(directory + "/generation_config.json"));
  return texts;
}

Result<std::unique_ptr<WeightSource>> open_source(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status))
    return fail(ErrorCode::kNotFound, path, "nothing there",
                "a checkpoint directory, a Hugging Face directory or a GGUF file");
  if (!std::filesystem::is_directory(status)) {
    std::ifstream in(path, std::ios::binary);
    char magic[4] = {};
    if (in.read(magic, 4) && std::string_view(magic, 4) == "GGUF") return open_gguf_source(path);
    return fail(ErrorCode::kUnsupported, path, "a file that is not GGUF",
                "a checkpoint directory, a Hugging Face directory or a GGUF file",
                path.ends_with(".safetensors") ? "give the directory that holds it and config.json" : "");
  }
  if (!std::filesystem::exists(path + "/config.json", error))
    return fail(ErrorCode::kNotFound, path, "no config.json", "a checkpoint directory or a Hugging Face directory");
  return Checkpoint::is_checkpoint(path) ? open_lowbit_source(path) : open_huggingface_source(path);
}

}  // namespace lowbit
