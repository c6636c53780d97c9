"""BitNet models in the form of BitNet's GPU kernels and back, as safetensors: python -m lowbit.bitnet_gpu
to-gpu|from-gpu SRC OUT (docs/bitnet.md).

On one side the packed directory that transformers loads ("linear_class": "autobitlinear", "quantization_mode":
"offline"): U8 [out / 4, in] and one bf16 scale a matrix. On the other model_state_int2.safetensors: I8 [out, in / 4] in
blocks of 16 x 32, q, k and v in one matrix, gate and up in another, a bf16 [4] of scales for each, and rows of q and k
interleaved for the rotation. Both ways keep every byte of codes, scales and floats. NumPy alone.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

import numpy as np

from .errors import LowbitError
from .replace_directory import replace_directory
from .safetensors_file import SafetensorsFile, write_safetensors
from .small_files import read_text

GPU_FILE, HF_FILE = "model_state_int2.safetensors", "model.safetensors"
FUSED = {"attention.wqkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "attention.wo": ("self_attn.o_proj",),
         "feed_forward.w13": ("mlp.gate_proj", "mlp.up_proj"), "feed_forward.w2": ("mlp.down_proj",)}
NORMS = {"attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attention.attn_sub_norm": "self_attn.attn_sub_norm",
         "feed_forward.ffn_sub_norm": "mlp.ffn_sub_norm"}
TOP = {"tok_embeddings.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight"}
BLOCK_ROWS, BLOCK_COLUMNS, SCALES = 16, 32, 4


def unpack_rows(packed: np.ndarray) -> np.ndarray:
    """U8 [n / 4, k] to values + 1 [n, k]: bits 2i of byte [r, c] are row i * n / 4 + r."""
    return np.concatenate([packed >> shift & 3 for shift in (0, 2, 4, 6)])


def pack_rows(codes: np.ndarray) -> np.ndarray:
    """The inverse."""
    a, b, c, d = codes.reshape(4, len(codes) // 4, -1)
    return a | b << 2 | c << 4 | d << 6


def to_tiles(codes: np.ndarray) -> np.ndarray:
    """Codes [n, k] of 2 bits to bytes [n, k / 4]: a block's words by rows of 8, then columns of 16, then rows; a word's
    codes 0, 4, 8, 12, 1, ..."""
    n, k = codes.shape
    parts = codes.reshape(n // 16, 2, 8, k // 32, 2, 4, 4).transpose(0, 3, 1, 4, 2, 6, 5)
    return (parts[..., 0] | parts[..., 1] << 2 | parts[..., 2] << 4 | parts[..., 3] << 6).reshape(n, k // 4)


def from_tiles(tiles: np.ndarray) -> np.ndarray:
    """The inverse."""
    n, k = tiles.shape[0], 4 * tiles.shape[1]
    parts = np.stack([tiles >> shift & 3 for shift in (0, 2, 4, 6)], -1).reshape(n // 16, k // 32, 2, 2, 8, 4, 4)
    return np.ascontiguousarray(parts.transpose(0, 2, 4, 1, 3, 6, 5)).reshape(n, k)


def interleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k from halves to pairs."""
    return rows.reshape(heads, 2, len(rows) // heads // 2, -1).swapaxes(1, 2).reshape(len(rows), -1)


def split_halves(rows: np.ndarray, heads: int) -> np.ndarray:
    """The inverse."""
    return rows.reshape(heads, len(rows) // heads // 2, 2, -1).swapaxes(1, 2).reshape(len(rows), -1)


class _Model:
    """The config.json of a BitNet model."""

    def __init__(self, folder: Path) -> None:
        self.where = str(folder / "config.json")
        try:
            self.config = json.loads(read_text(folder / "config.json"))
            read = {key: self.config[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "model_type")}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LowbitError(self.where, f"{type(error).__name__} {error}"[:100], "a BitNet model's config.json") from None
        if read.pop("model_type") != "bitnet":
            raise LowbitError(self.where + ": model_type", str(self.config["model_type"])[:40], "bitnet")
        sizes = [*read.values(), self.config.get("num_key_value_heads", read["num_attention_heads"])]
        if not all(isinstance(size, int) and 0 < size < 2**24 for size in sizes):
            raise LowbitError(self.where, f"sizes {sizes}"[:100], "positive numbers")
        self.hidden, self.ffn, self.layers, self.heads, self.kv_heads = sizes
        self.head_dim = self.config.get("head_dim") or self.hidden // self.heads
        quantization = self.config.get("quantization_config") or {}
        wanted = {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline"}
        if not isinstance(quantization, dict) or {key: quantization.get(key) for key in wanted} != wanted or quantization.get("use_rms_norm"):
            raise LowbitError(self.where + ": quantization_config", json.dumps(quantization)[:100], json.dumps(wanted),
                              "`lowbit export SRC OUT` writes this form of any ternary model")
        self.tied = bool(self.config.get("tie_word_embeddings", False))

    def shape(self, name: str) -> tuple[int, int]:
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        rows = {"self_attn.q_proj": q, "self_attn.k_proj": kv, "self_attn.v_proj": kv, "mlp.gate_proj": self.ffn, "mlp.up_proj": self.ffn}
        columns = {"self_attn.o_proj": q, "mlp.down_proj": self.ffn}
        return rows.get(name, self.hidden), columns.get(name, self.hidden)

    def rotated_heads(self, name: str) -> int | None:
        return {"self_attn.q_proj": self.heads, "self_attn.k_proj": self.kv_heads}.get(name)


class _Reader:
    """Tensors of a file, each taken once."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise LowbitError(str(path.parent), f"no {path.name}", path.name, "`lowbit export` writes one file, where others have shards")
        self.file = SafetensorsFile(path)
        self.left = set(self.file.names)

    def take(self, name: str, dtype: str | None, shape: tuple[int, ...] | None) -> tuple[str, np.ndarray]:
        where = f"{self.file.path}: tensor '{name}'"
        if name not in self.left:
            raise LowbitError(where, "nothing", "a tensor of every BitNet model")
        self.left.remove(name)
        found, array = self.file.dtype(name), self.file.array(name)
        if (dtype is not None and found != dtype) or (shape is not None and array.shape != shape):
            raise LowbitError(where, f"{found} {list(array.shape)}", f"{dtype or found} {list(shape or array.shape)}")
        return found, array

    def finish(self) -> None:
        if self.left:
            raise LowbitError(f"{self.file.path}: tensor '{min(self.left)}'", "a tensor that this form has no place for", "none")


def _check_codes(where: str, codes: np.ndarray, bad: int) -> None:
    at = np.argwhere(codes == bad)
    if len(at):
        raise LowbitError(f"{where}: row {at[0][0]}, column {at[0][1]}", f"code {bad}", "a ternary weight's")


def gpu_tensors(source: _Reader, model: _Model) -> dict[str, tuple[str, np.ndarray]]:
    """Of the packed form: the GPU's, by name."""
    made = {gpu: source.take(hf, None, None) for gpu, hf in TOP.items()}
    made["output.weight"] = made["tok_embeddings.weight"] if model.tied else source.take("lm_head.weight", None, None)
    for i in range(model.layers):
        gpu_at, hf_at = f"layers.{i}.", f"model.layers.{i}."
        for gpu, hf in NORMS.items():
            made[f"{gpu_at}{gpu}.weight"] = source.take(f"{hf_at}{hf}.weight", None, None)
        for gpu, parts in FUSED.items():
            rows, scales = [], np.zeros(SCALES, "<u2")
            for j, part in enumerate(parts):
                n, k = model.shape(part)
                if n % BLOCK_ROWS or k % BLOCK_COLUMNS:
                    raise LowbitError(hf_at + part, f"{n} x {k}", "multiples of 16 rows and 32 columns, which this form needs")
                codes = unpack_rows(source.take(f"{hf_at}{part}.weight", "U8", (n // 4, k))[1])
                _check_codes(hf_at + part, codes, 3)
                heads = model.rotated_heads(part)
                rows.append(codes if heads is None else interleave(codes, heads))
                scales[j] = source.take(f"{hf_at}{part}.weight_scale", "BF16", (1,))[1][0]
            made[f"{gpu_at}{gpu}.weight"] = "I8", to_tiles(np.concatenate(rows) + np.uint8(1)).view(np.int8)
            made[f"{gpu_at}{gpu}.weight_scale"] = "BF16", scales
    return made


def packed_tensors(source: _Reader, model: _Model) -> dict[str, tuple[str, np.ndarray]]:
    """Of the GPU's form: the packed one, by name."""
    made = {hf: source.take(gpu, None, None) for gpu, hf in TOP.items()}
    head, embedding = source.take("output.weight", None, None), made["model.embed_tokens.weight"]
    if not model.tied:
        made["lm_head.weight"] = head
    elif head[0] != embedding[0] or not np.array_equal(head[1], embedding[1]):
        raise LowbitError(f"{source.file.path}: tensor 'output.weight'", "other numbers than in 'tok_embeddings.weight'",
                          "the same, as config.json says \"tie_word_embeddings\": true")
    for i in range(model.layers):
        gpu_at, hf_at = f"layers.{i}.", f"model.layers.{i}."
        for gpu, hf in NORMS.items():
            made[f"{hf_at}{hf}.weight"] = source.take(f"{gpu_at}{gpu}.weight", None, None)
        for gpu, parts in FUSED.items():
            n, k = sum(model.shape(part)[0] for part in parts), model.shape(parts[0])[1]
            codes = from_tiles(source.take(f"{gpu_at}{gpu}.weight", "I8", (n, k // 4))[1].view(np.uint8))
            _check_codes(gpu_at + gpu, codes, 0)
            scales = source.take(f"{gpu_at}{gpu}.weight_scale", "BF16", (SCALES,))[1]
            if scales[len(parts):].any():
                raise LowbitError(f"{gpu_at}{gpu}.weight_scale", f"{np.count_nonzero(scales)} scales", f"{len(parts)}, and zeros behind them")
            for j, part in enumerate(parts):
                rows, codes = np.split(codes, [model.shape(part)[0]])
                heads = model.rotated_heads(part)
                rows = rows if heads is None else split_halves(rows, heads)
                made[f"{hf_at}{part}.weight"] = "U8", pack_rows(rows - np.uint8(1))
                made[f"{hf_at}{part}.weight_scale"] = "BF16", scales[j:j + 1]
    return made


def convert(source: Path, out: Path, *, to_gpu: bool) -> int:
    """Writes OUT, a directory that does not exist or is empty, whole or not at all. How many tensors it has. Errors:
    LowbitError."""
    model = _Model(source)
    reader = _Reader(source / (HF_FILE if to_gpu else GPU_FILE))
    tensors = (gpu_tensors if to_gpu else packed_tensors)(reader, model)
    reader.finish()
    with replace_directory(out) as folder:
        write_safetensors(Path(folder) / (GPU_FILE if to_gpu else HF_FILE), tensors, {"format": "pt"})
        for file in sorted(source.iterdir()):
            if file.is_file() and (file.suffix == ".json" or file.name == "chat_template.jinja") and not file.name.endswith(".index.json"):
                shutil.copyfile(file, Path(folder) / file.name)
    return len(tensors)


def main(arguments: list[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="python -m lowbit.bitnet_gpu", description="BitNet models in the form of BitNet's GPU kernels, and back.")
    p.add_argument("direction", choices=("to-gpu", "from-gpu"))
    p.add_argument("source", type=Path, metavar="SRC")
    p.add_argument("out", type=Path, metavar="OUT")
    given = p.parse_args(arguments)
    try:
        count = convert(given.source, given.out, to_gpu=given.direction == "to-gpu")
    except (LowbitError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{given.out}: {count} tensors", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
