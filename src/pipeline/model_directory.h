#pragma once
// Test only: a random model as a Hugging Face directory, with a tokenizer of single letters.

#include <map>
#include <string>
#include <vector>

#include "io/safetensors.h"
#include "io/test_files.h"
#include "model/random_model.h"

namespace lowbit::testing_model {

/// 97 tokens: three special ones and letters.
inline std::string letters_tokenizer() {
  std::string vocab = R"("<unk>": 0, "<s>": 1, "</s>": 2)";
  for (int id = 3; id < 29; ++id) vocab += ", \"" + std::string(1, char('a' + id - 3)) + "\": " + std::to_string(id);
  for (int id = 29; id < 97; ++id) vocab += ", \"<" + std::to_string(id) + ">\": " + std::to_string(id);
  return R"({"added_tokens": [], "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
             "model": {"type": "BPE", "unk_token": "<unk>", "merges": [], "vocab": {)" +
         vocab + "}}}";
}

/// Writes it to `path`, a directory that exists.
inline void write_model(const std::string& path, const RandomModelSpec& spec) {
  const MemorySource source = make_random_model(spec);
  std::vector<SafetensorsDecl> declared;
  for (const SourceTensor& t : source.listed) {
    const QTensor& w = source.weights.at(t.name);
    declared.push_back({t.name, DType::kF32, w.n == 1 ? Shape{w.k} : Shape{w.n, w.k}});
  }
  auto writer = SafetensorsWriter::create(path + "/model.safetensors", declared, {});
  ASSERT_TRUE(writer) << writer.error().message();
  for (const SourceTensor& t : source.listed) {
    const QTensor& w = source.weights.at(t.name);
    ASSERT_TRUE((*writer)->append({w.codes.data(), size_t(w.codes.size())}));
  }
  ASSERT_TRUE((*writer)->finish());
  testing_io::write_file(path + "/config.json", source.config);
  testing_io::write_file(path + "/tokenizer.json", letters_tokenizer());
}

}  // namespace lowbit::testing_model
