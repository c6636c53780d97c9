"""Random BitNet b1.58 models in the forms in which they are found, and what they compute, in NumPy.

The float weights are bf16 numbers. `write_online` stores them (transformers rounds them to ternary whenever the model
runs), `write_packed` what they round to, as uint8 [out / 4, in] with a weight_scale. The tokenizer is that of
scripts/make_test_model.py, or one with Llama 3's regex and special tokens.
"""
import json
import struct
from pathlib import Path

import numpy as np

LINEARS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
TO_STREAM = ("self_attn.o_proj", "mlp.down_proj")
THETA = 500000.0
EPS = 1e-5
LINEAR_EPS = 1e-6  # of norms inside the linear layers (use_rms_norm)


class Sizes:
    def __init__(self, hidden, ffn, layers, heads, kv_heads, vocab, context=512):
        self.hidden, self.ffn, self.layers, self.heads, self.kv_heads = hidden, ffn, layers, heads, kv_heads
        self.head_dim, self.vocab, self.context = hidden // heads, vocab, context


def bf16(values):
    """The nearest bf16 numbers, ties to even, as f32."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def random_weights(sizes, seed, linear_norms=False):
    """name -> bf16 numbers as f32. Matrices are Laplacian rather than normal, so that as many codes are 0 as in a
    trained model.

    What blocks add to the stream is small beside it, as at the start of a training. Two programs round some value of x
    to neighbouring codes, and all codes behind it differ a little then: 5e-3 of a block's output, whoever is right.
    """
    rng, weights = np.random.default_rng(seed), {}

    def norm(name, n):
        weights[name] = bf16(1 + 0.2 * rng.standard_normal(n))

    def matrix(name, n, k, spread):
        weights[name] = bf16(rng.laplace(0, spread, (n, k)))

    d, q, kv = sizes.hidden, sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    weights["model.embed_tokens.weight"] = bf16(rng.standard_normal((sizes.vocab, d)))
    shapes = dict(zip(LINEARS, ((q, d), (kv, d), (kv, d), (d, q), (sizes.ffn, d), (sizes.ffn, d), (d, sizes.ffn))))
    for i in range(sizes.layers):
        at = f"model.layers.{i}."
        norm(at + "input_layernorm.weight", d)
        norm(at + "post_attention_layernorm.weight", d)
        norm(at + "self_attn.attn_sub_norm.weight", q)
        norm(at + "mlp.ffn_sub_norm.weight", sizes.ffn)
        for name, (n, k) in shapes.items():
            if linear_norms:
                norm(at + name + ".rms_norm.weight", k)
            matrix(at + name + ".weight", n, k, (0.03 if name in TO_STREAM else 0.7) / np.sqrt(k))
    norm("model.norm.weight", d)
    return weights


def is_ternary(name):
    return any(name.endswith(f"{linear}.weight") for linear in LINEARS)


def ternarized(weight):
    """codes -1..1 and the scale, as transformers' WeightQuant has them."""
    mean = np.float32(np.mean(np.abs(weight.astype(np.float64))))
    inverse = np.float32(1) / max(mean, np.float32(1e-5))
    return np.clip(np.round(weight * inverse), -1, 1).astype(np.int8), np.float32(1) / inverse


# ---- files ----

def norms_of(weights):
    """Their quantization_config."""
    there = any(name.endswith(".rms_norm.weight") for name in weights)
    return {"use_rms_norm": True, "rms_norm_eps": LINEAR_EPS} if there else {}


def config_json(sizes, quantization, name="BitNetForCausalLM"):
    config = {
        "architectures": [name], "model_type": "bitnet", "hidden_size": sizes.hidden, "intermediate_size": sizes.ffn,
        "num_hidden_layers": sizes.layers, "num_attention_heads": sizes.heads, "num_key_value_heads": sizes.kv_heads,
        "vocab_size": sizes.vocab, "max_position_embeddings": sizes.context, "rms_norm_eps": EPS, "rope_theta": THETA,
        "hidden_act": "relu2", "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16",
    }
    if quantization is not None:
        config["quantization_config"] = {"quant_method": "bitnet", **quantization}
    return config


def write_safetensors(path, tensors):
    """tensors: name -> (dtype name, shape, bytes)."""
    header, offset = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            f.write(data)


def as_bf16(values):
    return "BF16", values.shape, (bf16(values).view(np.uint32) >> 16).astype(np.uint16).tobytes()


def write_directory(out, config, tensors):
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(config, indent=1))
    write_safetensors(out / "model.safetensors", tensors)
    return out


def write_online(out, sizes, weights):
    config = config_json(sizes, {"linear_class": "autobitlinear", "quantization_mode": "online", "modules_to_not_convert": None}
                         | norms_of(weights))
    return write_directory(out, config, {name: as_bf16(w) for name, w in weights.items()})


def packed(codes):
    rows = len(codes) // 4
    fields = (codes + 1).astype(np.uint8).reshape(4, rows, -1)
    return fields[0] | fields[1] << 2 | fields[2] << 4 | fields[3] << 6


def packed_scale(linear_class, scale):
    """The number in the file, and the factor that the model multiplies by."""
    stored = bf16(np.float32(1) / scale if linear_class == "bitlinear" else scale)
    return stored, np.float32(1) / stored if linear_class == "bitlinear" else stored


def write_packed(out, sizes, weights, linear_class):
    tensors = {}
    for name, w in weights.items():
        if not is_ternary(name):
            tensors[name] = as_bf16(w)
            continue
        codes, scale = ternarized(w)
        bytes_ = packed(codes)
        tensors[name] = "U8", bytes_.shape, bytes_.tobytes()
        tensors[name + "_scale"] = as_bf16(np.array([packed_scale(linear_class, scale)[0]]))
    config = config_json(sizes, {"linear_class": linear_class, "quantization_mode": "offline", "modules_to_not_convert": None}
                         | norms_of(weights))
    return write_directory(out, config, tensors)


# ---- what a model computes ----

def rms_norm(x, weight, eps=EPS):
    return x / np.sqrt(np.mean(x.astype(np.float64) ** 2, -1, keepdims=True) + eps).astype(np.float32) * weight


def rotated(x, positions):
    """x [tokens, heads, head_dim], half-split."""
    half = x.shape[-1] // 2
    angles = positions[:, None] * THETA ** (-np.arange(half) / half)
    cos, sin = np.cos(angles).astype(np.float32)[:, None], np.sin(angles).astype(np.float32)[:, None]
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


class Reference:
    """f32, but for sums; int8 codes of x with a scale a token; exact integer products. Keys and values are rounded to
    f16, as lowbit's cache is."""

    def __init__(self, sizes, weights, linear_class=None):
        """linear_class: of a packed file, whose scales are bf16; None: the floats themselves."""
        self.sizes, self.weights, self.linears = sizes, weights, {}
        for name in filter(is_ternary, weights):
            codes, scale = ternarized(weights[name])
            self.linears[name.removesuffix(".weight")] = codes, packed_scale(linear_class, scale)[1] if linear_class else scale

    def linear(self, name, x):
        codes, scale = self.linears[name]
        if name + ".rms_norm.weight" in self.weights:
            x = rms_norm(x, self.weights[name + ".rms_norm.weight"], LINEAR_EPS)
        factor = np.float32(127) / np.maximum(np.abs(x).max(-1, keepdims=True), np.float32(1e-5))
        xq = np.round(x * factor)
        sums = xq @ codes.astype(np.float32).T  # integers below 2^24: exact
        return (sums.astype(np.float64) / factor * scale).astype(np.float32)

    def attention(self, at, h):
        s, tokens = self.sizes, len(h)
        positions = np.arange(tokens)
        q = rotated(self.linear(at + "q_proj", h).reshape(tokens, s.heads, -1), positions)
        k = rotated(self.linear(at + "k_proj", h).reshape(tokens, s.kv_heads, -1), positions)
        v = self.linear(at + "v_proj", h).reshape(tokens, s.kv_heads, -1)
        group = s.heads // s.kv_heads
        k, v = (np.repeat(a.astype(np.float16).astype(np.float64), group, 1) for a in (k, v))
        scores = np.einsum("qhd,khd->hqk", q.astype(np.float64), k) / np.sqrt(s.head_dim)
        scores[:, positions[:, None] < positions[None]] = -np.inf
        p = np.exp(scores - scores.max(-1, keepdims=True))
        out = np.einsum("hqk,khd->qhd", p / p.sum(-1, keepdims=True), v)
        return out.reshape(tokens, -1).astype(np.float32)

    def logits(self, tokens):
        w = self.weights
        x = w["model.embed_tokens.weight"][tokens]
        for i in range(self.sizes.layers):
            at = f"model.layers.{i}."
            attended = self.attention(at + "self_attn.", rms_norm(x, w[at + "input_layernorm.weight"]))
            x = x + self.linear(at + "self_attn.o_proj", rms_norm(attended, w[at + "self_attn.attn_sub_norm.weight"]))
            h = rms_norm(x, w[at + "post_attention_layernorm.weight"])
            gated = np.maximum(self.linear(at + "mlp.gate_proj", h), 0) ** 2 * self.linear(at + "mlp.up_proj", h)
            x = x + self.linear(at + "mlp.down_proj", rms_norm(gated, w[at + "mlp.ffn_sub_norm.weight"]))
        return rms_norm(x, w["model.norm.weight"]).astype(np.float64) @ w["model.embed_tokens.weight"].astype(np.float64).T


# ---- GGUF ----

GGUF_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q",
              "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.attn_sub_norm": "attn_sub_norm",
              "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
              "mlp.ffn_sub_norm": "ffn_sub_norm", "mlp.down_proj": "ffn_down"}


def gguf_name(name):
    stem = name.removesuffix(".weight")
    if not stem.startswith("model.layers."):
        return GGUF_NAMES[stem] + ".weight"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{GGUF_NAMES[part]}.weight"


def i2s_x86(codes, scale):
    blocks = (codes + 1).astype(np.uint8).reshape(-1, 4, 32)
    data = blocks[:, 0] << 6 | blocks[:, 1] << 4 | blocks[:, 2] << 2 | blocks[:, 3]
    return 36, data.tobytes() + np.float32(scale).tobytes() + bytes(28)


def tq2_0(codes, scale):
    blocks = (codes + 1).astype(np.uint8).reshape(-1, 2, 4, 32)
    data = (blocks[:, :, 0] | blocks[:, :, 1] << 2 | blocks[:, :, 2] << 4 | blocks[:, :, 3] << 6).reshape(-1, 64)
    tail = np.repeat(np.array([scale], np.float16).view(np.uint8)[None], len(data), 0)
    return 35, np.concatenate([data, tail], 1).tobytes()


def write_gguf(out, sizes, weights, meta, gguf_file, pack):
    """The numbers of the autobitlinear form. meta: the tokenizer's keys; gguf_file: that of
    scripts/make_test_model.py."""
    arch = "bitnet-b1.58"
    meta = {"general.architecture": arch, "general.alignment": 32, f"{arch}.context_length": sizes.context,
            f"{arch}.embedding_length": sizes.hidden, f"{arch}.block_count": sizes.layers, f"{arch}.feed_forward_length": sizes.ffn,
            f"{arch}.attention.head_count": sizes.heads, f"{arch}.attention.head_count_kv": sizes.kv_heads,
            f"{arch}.attention.layer_norm_rms_epsilon": EPS, f"{arch}.rope.freq_base": THETA,
            f"{arch}.rope.dimension_count": sizes.head_dim, f"{arch}.vocab_size": sizes.vocab, **meta}
    tensors = []
    for name, w in weights.items():
        kind, data = 0, w.tobytes()
        if is_ternary(name):
            codes, scale = ternarized(w)
            kind, data = pack(codes, packed_scale("autobitlinear", scale)[1])
        tensors.append((gguf_name(name), w.shape, kind, data))
    Path(out).write_bytes(gguf_file(meta, tensors))
    return out


# ---- text, as the 2B-4T model has it ----

LLAMA3_REGEX = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3_SPECIAL = {"<|begin_of_text|>": 128000, "<|end_of_text|>": 128001, "<|start_header_id|>": 128006, "<|end_header_id|>": 128007,
                  "<|eot_id|>": 128009}
TEMPLATE = ("{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = message['role'] | capitalize + ': ' + "
            "message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"
            "{{ content }}{% endfor %}{% if add_generation_prompt %}{{ 'Assistant: ' }}{% endif %}")


def llama3_tokenizer(vocab, merges):
    """Llama 3's tokenizer with other words: ids of special tokens are the real ones."""
    words = vocab + [f"<unused {i}>" for i in range(len(vocab), 128000)]
    added = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
             for t, i in LLAMA3_SPECIAL.items()]
    bos = {"id": "<|begin_of_text|>", "ids": [128000], "tokens": ["<|begin_of_text|>"]}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": LLAMA3_REGEX}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]},
        "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": bos["id"], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                           "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                           "special_tokens": {bos["id"]: bos}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": True, "vocab": {t: i for i, t in enumerate(words)}, "merges": merges},
    }
