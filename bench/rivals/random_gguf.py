#!/usr/bin/env python3
"""Writes a GGUF file with random weights for llama-bench: the llama architecture, no vocabulary, the dimensions of
bench/model/random_checkpoint.cc. Needs nothing but Python.

  bench/rivals/random_gguf.py OUT.gguf --type TQ2_0 --head Q6_K

Blocks repeat after about a megabyte, which changes no speed; scales are those of a matrix whose products stay near 1.
"""
import argparse
import os
import struct
from pathlib import Path

# name: (GGUF type, elements and bytes of a block)
TYPES = {"F32": (0, 1, 4), "Q4_0": (2, 32, 18), "Q8_0": (8, 32, 34), "Q2_K": (10, 256, 84), "Q3_K": (11, 256, 110), "Q4_K": (12, 256, 144),
         "Q6_K": (14, 256, 210), "TQ1_0": (34, 256, 54), "TQ2_0": (35, 256, 66)}
TRITS4 = bytes(sum((b // 3**i % 3) << (2 * i) for i in range(4)) for b in range(81))
TRITS5 = bytes((n * 256 + 242) // 243 for n in range(243))


def half(value: float) -> bytes:
    return struct.pack("<e", value)


def block(kind: str, scale: float) -> bytes:
    def codes(count: int, table: bytes = b"") -> bytes:
        raw = os.urandom(count)
        return bytes(table[b * len(table) >> 8] for b in raw) if table else raw

    if kind == "TQ2_0":
        return codes(64, TRITS4) + half(scale)
    if kind == "TQ1_0":
        return codes(48, TRITS5) + codes(4, TRITS5) + half(scale)
    if kind == "Q4_0":
        return half(scale / 5) + codes(16)
    if kind == "Q8_0":
        return half(scale / 80) + codes(32)
    if kind == "Q2_K":
        return codes(16) + codes(64) + half(scale / 16) + half(scale / 16)
    if kind == "Q3_K":
        return codes(32) + codes(64) + codes(12) + half(scale / 60)
    if kind == "Q4_K":
        return half(scale / 300) + half(scale / 60) + codes(12) + codes(128)
    if kind == "Q6_K":
        return codes(128) + codes(64) + codes(16) + half(scale / 2000)
    raise SystemExit(f"no type {kind}")


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def metadata(pairs: dict) -> bytes:
    out = b""
    for key, value in pairs.items():
        out += text(key)
        if isinstance(value, str):
            out += struct.pack("<I", 8) + text(value)
        elif isinstance(value, float):
            out += struct.pack("<If", 6, value)
        else:
            out += struct.pack("<II", 4, value)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--type", default="TQ2_0", choices=TYPES)
    parser.add_argument("--down", default="", choices=["", *TYPES], help="of ffn_down, where it differs: llama-quantize's mixes "
                        "for rows that are no multiple of 256")
    parser.add_argument("--head", default="Q6_K", choices=TYPES, help="of the embedding, which is the head, too")
    for name, value in (("layers", 30), ("hidden", 2560), ("intermediate", 6912), ("heads", 20), ("kv-heads", 5),
                        ("vocab", 128256), ("context", 4096)):
        parser.add_argument(f"--{name}", type=int, default=value)
    o = parser.parse_args()
    kv = o.hidden // o.heads * o.kv_heads
    tensors = [("token_embd.weight", o.head, o.vocab, o.hidden), ("output_norm.weight", "F32", 1, o.hidden)]
    for i in range(o.layers):
        for name, kind, n, k in (("attn_norm", "F32", 1, o.hidden), ("ffn_norm", "F32", 1, o.hidden),
                                 ("attn_q", o.type, o.hidden, o.hidden), ("attn_k", o.type, kv, o.hidden),
                                 ("attn_v", o.type, kv, o.hidden), ("attn_output", o.type, o.hidden, o.hidden),
                                 ("ffn_gate", o.type, o.intermediate, o.hidden), ("ffn_up", o.type, o.intermediate, o.hidden),
                                 ("ffn_down", o.down or o.type, o.hidden, o.intermediate)):
            tensors.append((f"blk.{i}.{name}.weight", kind, n, k))
    pairs = {"general.architecture": "llama", "general.name": "random", "llama.context_length": o.context,
             "llama.embedding_length": o.hidden, "llama.block_count": o.layers, "llama.feed_forward_length": o.intermediate,
             "llama.attention.head_count": o.heads, "llama.attention.head_count_kv": o.kv_heads,
             "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.dimension_count": o.hidden // o.heads,
             "llama.rope.freq_base": 500000.0, "llama.vocab_size": o.vocab, "tokenizer.ggml.model": "no_vocab"}
    sizes = [n * k // TYPES[kind][1] * TYPES[kind][2] for _, kind, n, k in tensors]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)) + metadata(pairs)
    at = 0
    for (name, kind, n, k), size in zip(tensors, sizes):
        shape = (k,) if n == 1 else (k, n)
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, TYPES[kind][0], at)
        at += (size + 31) // 32 * 32
    with o.out.open("wb") as out:
        out.write(head + bytes(-len(head) % 32))
        chunks: dict = {}
        for (_, kind, n, k), size in zip(tensors, sizes):
            if kind == "F32":
                data = struct.pack("<f", 1.0) * k
            else:
                if (kind, k) not in chunks:
                    chunks[kind, k] = b"".join(block(kind, 1.2 / k**0.5) for _ in range(4096))
                unit = chunks[kind, k]
                data = unit * (size // len(unit)) + unit[:size % len(unit)]
            out.write(data + bytes(-len(data) % 32))
    print(f"{o.out}: {sum(sizes) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
