"""Models to learn from: a lowbit checkpoint, a Hugging Face directory or a GGUF file, as f32 tensors with Hugging
Face's names and rows."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import numpy as np

from .checkpoint import Checkpoint
from .errors import CorruptFile, LowbitError, Unsupported
from .replace_directory import is_checkpoint
from .safetensors_file import SafetensorsFile, to_f32
from .small_files import read_text


@dataclasses.dataclass(frozen=True)
class LlamaConfig:
    """The shape of a model, as the forward pass needs it; models with equal shapes are of one architecture."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    eps: float
    rope_theta: float
    context: int

    @classmethod
    def parse(cls, config: dict, where) -> LlamaConfig:
        """From a config.json. Errors: Unsupported for anything that is not a plain llama."""
        kind = config.get("model_type")
        if kind not in ("llama", "mistral"):
            raise Unsupported(where, f"model_type '{kind}'", "a llama")
        rope = config.get("rope_parameters") or {}
        scaling = config.get("rope_scaling") or (rope if rope.get("rope_type", "default") != "default" else None)
        for key, value, wanted in (("rope_scaling", scaling, None), ("hidden_act", config.get("hidden_act", "silu"), "silu"),
                                   ("attention_bias", bool(config.get("attention_bias")), False),
                                   ("mlp_bias", bool(config.get("mlp_bias")), False)):
            if value != wanted:
                raise Unsupported(f"{where}: {key}", repr(value)[:80], repr(wanted))
        try:
            heads = config["num_attention_heads"]
            theta = config.get("rope_theta", rope.get("rope_theta", 10000.0))
            return cls(config["hidden_size"], config["num_hidden_layers"], heads, config.get("num_key_value_heads") or heads,
                       config.get("head_dim") or config["hidden_size"] // heads, config["intermediate_size"], config["vocab_size"],
                       float(config.get("rms_norm_eps", 1e-6)), float(theta), int(config.get("max_position_embeddings", 2048)))
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptFile(where, f"no usable {error}", "a llama's configuration") from None


class Model:
    """config, names and tensor(name) -> f32 array; `sha256` of what it was read from, as `lowbit` writes it; `head` is
    the head's name."""

    def __init__(self, path, config: LlamaConfig, names, read, sha256):
        self.path, self.config, self.names, self.tensor, self.sha256 = str(path), config, list(names), read, sha256

    @property
    def head(self) -> str:
        return "lm_head.weight" if "lm_head.weight" in self.names else "model.embed_tokens.weight"


def file_sha256(path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        while piece := f.read(1 << 22):
            digest.update(piece)
    return digest.hexdigest()


def _checkpoint(path) -> Model:
    c = Checkpoint(path)
    return Model(path, LlamaConfig.parse(c.config, path), c.names, c.tensor, lambda: c.fit.get("source_sha256", ""))


def _huggingface(path) -> Model:
    config = json.loads(read_text(path / "config.json"))
    files = [SafetensorsFile(file) for file in sorted(path.glob("*.safetensors"))]
    if not files:
        raise LowbitError(path, "no safetensors file", "the weights of a model")
    if config.get("quantization_config"):
        raise Unsupported(path, "weights that are quantized", "floats", "`lowbit import` makes a checkpoint of it, which will do")
    where = {name: file for file in files for name in file.names}

    def read(name):
        if name not in where:
            raise LowbitError(path, f"no tensor '{name}'", "a tensor of this model")
        return to_f32(where[name].array(name), where[name].dtype(name))

    def sha256():
        if len(files) == 1:
            return file_sha256(files[0].path)
        listing = "".join(f"{file_sha256(file.path)}  {Path(file.path).name}\n" for file in files)
        return hashlib.sha256(listing.encode()).hexdigest()

    return Model(path, LlamaConfig.parse(config, path), where, read, sha256)


GGUF_LAYER_NAMES = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
                    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
                    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
GGUF_NAMES = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
              "output.weight": "lm_head.weight"}


def _gguf_name(name: str) -> str:
    if name.startswith("blk."):
        _, layer, part, suffix = name.split(".", 3)
        return f"model.layers.{layer}.{GGUF_LAYER_NAMES.get(part, part)}.{suffix}"
    return GGUF_NAMES.get(name, name)


def _half_split_rows(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k from GGUF's interleaved rotation pairs to halves."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _gguf(path) -> Model:
    try:
        from gguf import GGUFReader
        from gguf.quants import dequantize
    except ImportError:
        raise LowbitError(path, "no package gguf", "it, to read GGUF files",
                          "pip install gguf; or `lowbit import` the file and give the checkpoint") from None
    reader = GGUFReader(str(path))

    def field(key, default=None):
        found = reader.get_field(key)
        return default if found is None else found.contents()

    kind = field("general.architecture")
    if kind != "llama":
        raise Unsupported(path, f"architecture '{kind}'", "llama")
    tensors = {_gguf_name(t.name): t for t in reader.tensors}
    heads, hidden = field("llama.attention.head_count"), field("llama.embedding_length")
    kv_heads = field("llama.attention.head_count_kv", heads)
    if field("llama.rope.scaling.type", "none") != "none":
        raise Unsupported(path, "scaled rotation", "none")
    config = LlamaConfig(hidden, field("llama.block_count"), heads, kv_heads, field("llama.rope.dimension_count", hidden // heads),
                         field("llama.feed_forward_length"), len(tensors["model.embed_tokens.weight"].data),
                         float(field("llama.attention.layer_norm_rms_epsilon")), float(field("llama.rope.freq_base", 10000.0)),
                         field("llama.context_length"))

    def read(name):
        if name not in tensors:
            raise LowbitError(path, f"no tensor '{name}'", "a tensor of this model")
        t = tensors[name]
        weight = np.asarray(dequantize(t.data, t.tensor_type), np.float32)
        if name.endswith("q_proj.weight"):
            return _half_split_rows(weight, heads)
        return _half_split_rows(weight, kv_heads) if name.endswith("k_proj.weight") else weight

    return Model(path, config, tensors, read, lambda: file_sha256(path))


def open_model(path) -> Model:
    """Errors: LowbitError naming what is missing; Unsupported for models other than a plain llama."""
    path = Path(path)
    if path.is_dir():
        return _checkpoint(path) if is_checkpoint(path) else _huggingface(path)
    if not path.is_file():
        raise LowbitError(path, "nothing there", "a checkpoint directory, a Hugging Face directory or a GGUF file")
    with open(path, "rb") as f:
        if f.read(4) != b"GGUF":
            raise Unsupported(path, "a file that is not GGUF", "a checkpoint directory, a Hugging Face directory or a GGUF file")
    return _gguf(path)
