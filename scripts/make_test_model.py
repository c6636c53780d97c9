#!/usr/bin/env python3
"""Makes a tiny llama model with random weights, for tests: standard library only, the same bytes every time.

  make_test_model.py OUT                 Hugging Face directory (config.json, model.safetensors, tokenizer files)
  make_test_model.py OUT.gguf            the same model as GGUF v3 (F32, or with --dtype q8_0)

The vocabulary has three special tokens, the 256 bytes and 41 merges. The feed-forward width, 172, is no multiple of
any group size, so that the short last group is met everywhere.
"""
import argparse
import array
import json
import math
import os
import random
import struct
import sys

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]  # ids 0, 1, 2
MERGES = """Ġ t|h e|Ġ a|Ġt he|i n|Ġ s|r e|e r|Ġ w|o n|n d|a t|Ġ b|Ġ o|e n|o u|i s|Ġ m|in g|Ġ f|Ġ c|o r|Ġ p|e d|Ġa nd|Ġ h|l l|e s|a n|a r|Ġt o|i t|Ġo f|Ġ d|o w|Ġ i|Ġ l|Ġ n|s t|r o|o m""".split("|")
CHAT_TEMPLATE = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
                 "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


def byte_alphabet():
    """GPT-2's printable character of each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(other)) for b in range(256)]


def vocabulary():
    return SPECIAL + byte_alphabet() + [m.replace(" ", "") for m in MERGES]


class Dims:
    def __init__(self, options):
        self.hidden, self.layers, self.ffn = options.hidden, options.layers, options.ffn
        self.heads, self.kv_heads = options.heads, options.kv_heads
        self.head_dim = self.hidden // self.heads
        self.vocab, self.context = len(vocabulary()), options.context
        self.tied = not options.untied


def tensor_shapes(d):
    """name -> shape, in the order of the file."""
    shapes = {"model.embed_tokens.weight": [d.vocab, d.hidden]}
    kv = d.kv_heads * d.head_dim
    for i in range(d.layers):
        p = f"model.layers.{i}."
        shapes |= {
            p + "input_layernorm.weight": [d.hidden],
            p + "self_attn.q_proj.weight": [d.hidden, d.hidden],
            p + "self_attn.k_proj.weight": [kv, d.hidden],
            p + "self_attn.v_proj.weight": [kv, d.hidden],
            p + "self_attn.o_proj.weight": [d.hidden, d.hidden],
            p + "post_attention_layernorm.weight": [d.hidden],
            p + "mlp.gate_proj.weight": [d.ffn, d.hidden],
            p + "mlp.up_proj.weight": [d.ffn, d.hidden],
            p + "mlp.down_proj.weight": [d.hidden, d.ffn],
        }
    shapes["model.norm.weight"] = [d.hidden]
    if not d.tied:
        shapes["lm_head.weight"] = [d.vocab, d.hidden]
    return shapes


def make_weights(d, seed):
    """name -> (shape, array of floats). Norms are near 1, the rest is normal with variance 1 / columns."""
    rng, weights = random.Random(seed), {}
    for name, shape in tensor_shapes(d).items():
        count = math.prod(shape)
        if len(shape) == 1:
            values = (1 + 0.1 * (rng.random() - 0.5) for _ in range(count))
        else:
            # A sum of three uniform numbers is near enough to normal.
            scale = 2 / math.sqrt(shape[1])
            values = (scale * (rng.random() + rng.random() + rng.random() - 1.5) for _ in range(count))
        weights[name] = (shape, array.array("f", values))
    return weights


def to_bytes(values, dtype):
    if sys.byteorder != "little":
        raise SystemExit("only for little-endian machines")
    if dtype == "f32":
        return values.tobytes()
    if dtype == "f16":
        return struct.pack(f"<{len(values)}e", *values)
    raw, out = values.tobytes(), bytearray(2 * len(values))  # bf16: the upper half, cut off
    out[0::2], out[1::2] = raw[2::4], raw[3::4]
    return bytes(out)


def config_json(d, dtype):
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": d.hidden,
        "intermediate_size": d.ffn, "num_hidden_layers": d.layers, "num_attention_heads": d.heads,
        "num_key_value_heads": d.kv_heads, "vocab_size": d.vocab, "max_position_embeddings": d.context,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": d.tied,
        "bos_token_id": 1, "eos_token_id": 2,
        "torch_dtype": {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}[dtype],
    }


def tokenizer_json():
    added = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for i, t in enumerate(SPECIAL)]
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "vocab": {t: i for i, t in enumerate(vocabulary())}, "merges": MERGES},
    }


def write_hugging_face(out, d, weights, dtype):
    os.makedirs(out, exist_ok=True)
    header, parts, offset = {}, [], 0
    for name, (shape, values) in weights.items():
        data = to_bytes(values, dtype)
        header[name] = {"dtype": dtype.upper(), "shape": shape, "data_offsets": [offset, offset + len(data)]}
        parts.append(data)
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(out, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(parts))
    tokenizer_config = {"tokenizer_class": "GPT2Tokenizer", "bos_token": SPECIAL[1], "eos_token": SPECIAL[2],
                        "unk_token": SPECIAL[0], "model_max_length": d.context, "chat_template": CHAT_TEMPLATE}
    for name, content in (("config.json", config_json(d, dtype)), ("tokenizer.json", tokenizer_json()),
                          ("tokenizer_config.json", tokenizer_config)):
        with open(os.path.join(out, name), "w", encoding="utf-8") as f:
            json.dump(content, f, ensure_ascii=False, indent=1)


GGUF_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}


def gguf_name(name):
    stem = name.removesuffix(".weight")
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{GGUF_NAMES[part]}.weight"
    return GGUF_NAMES[stem] + ".weight"


def interleave_rope(values, columns, heads):
    """Rows of q and k in GGUF's order: pair i of a head lies in rows 2i and 2i + 1, not i and i + half."""
    rows = len(values) // columns
    dim = rows // heads
    out = array.array("f")
    for h in range(heads):
        for r in range(dim):
            source = h * dim + (r % 2) * (dim // 2) + r // 2
            out.extend(values[source * columns:(source + 1) * columns])
    return out


def q8_0(values):
    out = bytearray()
    for i in range(0, len(values), 32):
        block = values[i:i + 32]
        scale = struct.unpack("<e", struct.pack("<e", max(map(abs, block)) / 127))[0]
        codes = [round(v / scale) if scale else 0 for v in block]
        out += struct.pack("<e32b", scale, *(max(-127, min(127, c)) for c in codes))
    return bytes(out)


def gguf_value(value):
    """(type number, bytes) of a metadata value."""
    def text(s):
        raw = s.encode()
        return struct.pack("<Q", len(raw)) + raw
    if isinstance(value, bool):
        return 7, struct.pack("<B", value)
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, str):
        return 8, text(value)
    if isinstance(value[0], str):
        return 9, struct.pack("<IQ", 8, len(value)) + b"".join(map(text, value))
    return 9, struct.pack("<IQ", 5, len(value)) + struct.pack(f"<{len(value)}i", *value)


def gguf_file(meta, tensors):
    """The bytes of a GGUF file. tensors: (name, shape, type, data), at multiples of 32 bytes."""
    infos, parts, offset = b"", [], 0
    for name, shape, kind, data in tensors:
        raw = name.encode()
        infos += struct.pack("<Q", len(raw)) + raw + struct.pack("<I", len(shape))
        infos += struct.pack(f"<{len(shape)}Q", *reversed(shape)) + struct.pack("<IQ", kind, offset)
        data += bytes(-len(data) % 32)
        parts.append(data)
        offset += len(data)
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(meta))
    for key, value in meta.items():
        kind, raw = gguf_value(value)
        head += struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", kind) + raw
    head += infos
    return head + bytes(-len(head) % 32) + b"".join(parts)


def write_gguf(out, d, weights, dtype):
    meta = {
        "general.architecture": "llama", "general.name": "lowbit test model", "general.alignment": 32,
        "llama.context_length": d.context, "llama.embedding_length": d.hidden, "llama.block_count": d.layers,
        "llama.feed_forward_length": d.ffn, "llama.attention.head_count": d.heads,
        "llama.attention.head_count_kv": d.kv_heads, "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0, "llama.rope.dimension_count": d.head_dim, "llama.vocab_size": d.vocab,
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": vocabulary(),
        "tokenizer.ggml.token_type": [3] * len(SPECIAL) + [1] * (d.vocab - len(SPECIAL)),
        "tokenizer.ggml.merges": MERGES, "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False, "tokenizer.chat_template": CHAT_TEMPLATE,
    }
    tensors = []
    for name, (shape, values) in weights.items():
        for part, heads in (("q_proj", d.heads), ("k_proj", d.kv_heads)):
            if part in name:
                values = interleave_rope(values, shape[1], heads)
        quantized = dtype == "q8_0" and len(shape) == 2 and shape[1] % 32 == 0
        tensors.append((gguf_name(name), shape, 8 if quantized else 0, q8_0(values) if quantized else to_bytes(values, "f32")))
    with open(out, "wb") as f:
        f.write(gguf_file(meta, tensors))



def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--dtype", default="f32", choices=["f32", "f16", "bf16", "q8_0"])
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--ffn", type=int, default=172)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--untied", action="store_true", help="a head of its own")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    d = Dims(options)
    weights = make_weights(d, options.seed)
    if options.out.endswith(".gguf"):
        write_gguf(options.out, d, weights, options.dtype)
    elif options.dtype == "q8_0":
        parser.error("q8_0 is for GGUF")
    else:
        write_hugging_face(options.out, d, weights, options.dtype)


if __name__ == "__main__":
    main()
