// llama_reference MODEL.gguf PROMPT [NEW_TOKENS=32] [LOGITS.f32]
//
// Prints, as one JSON object, what an implementation of the same model must agree with: the
// prompt's token ids, the five largest logits after it, and a greedy continuation. The KV cache is
// F32 and flash attention is off, so only the weights' type rounds. LOGITS.f32 receives the raw logits
// ([tokens, vocabulary], float32, this machine's byte order) of all prompt positions.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "llama.h"

using nlohmann::ordered_json;

std::string Text(const llama_vocab* vocab, const std::vector<llama_token>& tokens) {
  std::string text(16 * tokens.size() + 64, '\0');
  text.resize(
      std::max(0, llama_detokenize(vocab, tokens.data(), tokens.size(), text.data(), text.size(), false, true)));
  return text;
}

int main(int argc, char** argv) {
  if (argc < 3) return std::fprintf(stderr, "usage: MODEL.gguf PROMPT [NEW_TOKENS=32] [LOGITS.f32]\n"), 2;
  const std::string prompt = argv[2];
  const int new_tokens = argc > 3 ? std::atoi(argv[3]) : 32;

  llama_log_set(
      [](ggml_log_level level, const char* text, void*) {
        if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
      },
      nullptr);
  llama_backend_init();
  llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());
  if (!model) return 1;
  const llama_vocab* vocab = llama_model_get_vocab(model);
  const int vocab_size = llama_vocab_n_tokens(vocab);

  std::vector<llama_token> tokens(prompt.size() + 8);
  tokens.resize(llama_tokenize(vocab, prompt.data(), prompt.size(), tokens.data(), tokens.size(), true, true));
  const int prompt_size = tokens.size();

  llama_context_params params = llama_context_default_params();
  params.n_ctx = params.n_batch = params.n_ubatch = prompt_size + new_tokens;
  params.n_threads = params.n_threads_batch = 2;
  params.type_k = params.type_v = GGML_TYPE_F32;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  llama_context* context = llama_init_from_model(model, params);
  if (!context) return 1;

  // The prompt, with logits of every position.
  llama_batch batch = llama_batch_init(prompt_size, 0, 1);
  batch.n_tokens = prompt_size;
  for (int i = 0; i < prompt_size; ++i) {
    batch.token[i] = tokens[i];
    batch.pos[i] = i;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = 0;
    batch.logits[i] = true;
  }
  if (llama_decode(context, batch)) return 1;
  if (argc > 4) {
    std::ofstream out(argv[4], std::ios::binary);
    for (int i = 0; i < prompt_size; ++i) {
      out.write(reinterpret_cast<const char*>(llama_get_logits_ith(context, i)), vocab_size * sizeof(float));
    }
  }

  const float* logits = llama_get_logits_ith(context, -1);
  std::vector<llama_token> order(vocab_size);
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + 5, order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  auto top = ordered_json::array();
  for (int i = 0; i < 5; ++i)
    top.push_back({{"id", order[i]}, {"text", Text(vocab, {order[i]})}, {"logit", logits[order[i]]}});

  std::vector<llama_token> greedy;
  for (llama_token next = order[0]; static_cast<int>(greedy.size()) < new_tokens;) {
    greedy.push_back(next);
    if (llama_vocab_is_eog(vocab, next) || llama_decode(context, llama_batch_get_one(&next, 1))) break;
    logits = llama_get_logits_ith(context, -1);
    next = std::max_element(logits, logits + vocab_size) - logits;
  }

  char description[128] = "";
  llama_model_desc(model, description, sizeof description);
  const ordered_json result = {{"model", description},
                               {"prompt", prompt},
                               {"tokens", tokens},
                               {"vocabulary", vocab_size},
                               {"top5", top},
                               {"greedy", greedy},
                               {"greedy_text", Text(vocab, greedy)}};
  std::puts(result.dump(2, ' ', false, ordered_json::error_handler_t::replace).c_str());
}
