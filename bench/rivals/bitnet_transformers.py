#!/usr/bin/env python3
"""A bf16 model of BitNet 2B-4T's shape by transformers on a GPU: milliseconds of a prompt and of its answer, random
weights.

The prompt is one eager call, the answer replays of one CUDA graph a token with a static cache, each waited for. The
median of three runs. The table that it fills: docs/performance-gpu.md, "Text on a GPU".
"""
import statistics
import time

import torch
from transformers import BitNetConfig, BitNetForCausalLM, StaticCache

CASES = ((1, 64, 16), (1, 64, 32), (1, 64, 64), (1, 256, 16), (8, 64, 64))  # batch, tokens of the prompt, of the answer


def make_model():
    config = BitNetConfig(vocab_size=128256, hidden_size=2560, intermediate_size=6912, num_hidden_layers=30, num_attention_heads=20,
                          num_key_value_heads=5, max_position_embeddings=4096, tie_word_embeddings=True)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        return BitNetForCausalLM(config).eval()


def milliseconds(work):
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3


def record(model, cache, batch, position):
    """The step of one token as a graph; always at the same position, which costs what any position costs with a static
    cache."""
    token = torch.zeros(batch, 1, dtype=torch.long, device="cuda")
    at = torch.tensor([position], device="cuda")

    def step():
        return model(input_ids=token, past_key_values=cache, use_cache=True, cache_position=at,
                     position_ids=at[None].expand(batch, 1), logits_to_keep=1).logits.argmax(-1)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    graph.replay()
    return graph


@torch.no_grad()
def measure(model, batch, prompt, answer):
    ids = torch.randint(0, 128000, (batch, prompt), device="cuda")
    at = torch.arange(prompt, device="cuda")
    prompts, answers = [], []
    for _ in range(4):
        cache = StaticCache(config=model.config, max_cache_len=prompt + answer + 8)
        prompts.append(milliseconds(lambda: model(input_ids=ids, past_key_values=cache, use_cache=True, cache_position=at,
                                                  position_ids=at[None].expand(batch, prompt), logits_to_keep=1)))
        graph = record(model, cache, batch, prompt)

        def generate():
            for _ in range(answer):
                graph.replay()
                torch.cuda.synchronize()

        answers.append(milliseconds(generate))
    return statistics.median(prompts[1:]), statistics.median(answers[1:])  # the first run warms up


def main():
    model = make_model()
    for batch, prompt, answer in CASES:
        first, rest = measure(model, batch, prompt, answer)
        print(f"batch {batch}, prompt {prompt}, answer {answer}: {first:.1f} + {rest:.1f} = {first + rest:.1f} ms", flush=True)


if __name__ == "__main__":
    main()
