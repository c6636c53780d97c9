"""The checkpoint directory of docs/checkpoint.md: reading, decoding and writing with NumPy."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from .errors import CorruptFile, LowbitError, Unsupported
from .formats import code_values, find_format, unpack
from .replace_directory import replace_directory
from .safetensors_file import SafetensorsFile, to_f32, write_safetensors
from .small_files import read_text

FORMAT_VERSION = 1
SUPER_GROUP = 16
SHARD_BYTES = 4 << 30
SCALE_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "pow2": "I8", "double": "I8"}
ZERO_DTYPES = {"int8": "I8", "float16": "F16", "offset": None}  # offset: F32 beside float32 scales, else F16
FLOATS = ("F32", "F16", "BF16")
SIDE_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "special_tokens_map.json", "chat_template.jinja")


@dataclasses.dataclass(frozen=True)
class LayerSpec:
    """How a weight is stored: a config group. -1 is "all of it"; row_block may be "ranges"."""

    format: str
    group_size: int = 64
    row_block: int | str = 1
    scale_dtype: str = "float16"
    zero_dtype: str | None = None

    @classmethod
    def parse(cls, group: dict, where: str) -> LayerSpec:
        def known(key: str, value: str, table: dict) -> str:
            if value not in table:
                raise Unsupported(f"{where}.{key}", f"'{value}'", " or ".join(table))
            return value

        def block(key: str, default, words: tuple[str, ...] = ()):
            value = group.get(key, default)
            if value in words:
                return value
            if not isinstance(value, int) or isinstance(value, bool) or (value != -1 and value < 1):
                raise CorruptFile(f"{where}.{key}", repr(value)[:64], "-1 or a positive number")
            return value

        find_format(str(group.get("format", "nothing")), f"{where}.format")
        zero = known("zero_dtype", str(group.get("zero_dtype")), ZERO_DTYPES) if group.get("zero_point") else None
        return cls(group["format"], block("group_size", None), block("row_block", 1, ("ranges",)),
                   known("scale_dtype", str(group.get("scale_dtype")), SCALE_DTYPES), zero)

    def to_json(self) -> dict:
        group = {"format": self.format, "group_size": self.group_size, "row_block": self.row_block, "scale_dtype": self.scale_dtype,
                 "zero_point": self.zero_dtype is not None}
        return group | ({"zero_dtype": self.zero_dtype} if self.zero_dtype else {})

    def blocks(self, n: int, k: int, ranges: int = 0) -> tuple[int, int]:
        """(R, C): row blocks and column blocks of an [n, k] weight."""
        rows = ranges if self.row_block == "ranges" else 1 if self.row_block == -1 else -(-n // self.row_block)
        return rows, 1 if self.group_size == -1 else -(-k // self.group_size)

    def text(self) -> str:
        """The note `format.NAME` beside the codes: "int2 g64 float16 none"."""
        rows, cols = self.row_block, self.group_size
        if rows == "ranges":
            place = "ranges" if cols == -1 else f"ranges-g{cols}"
        elif rows == 1:
            place = "row" if cols == -1 else f"g{cols}"
        elif rows == -1 and cols == -1:
            place = "tensor"
        else:
            place = "x".join("all" if b == -1 else str(b) for b in (rows, cols))
        return f"{self.format} {place} {self.scale_dtype} {self.zero_dtype or 'none'}"


@dataclasses.dataclass
class QuantizedWeight:
    """A weight [N, K] as it is stored. codes: uint8 [N, row bytes]; scales and zeros: [R, C] in their storage type
    (BF16: uint16)."""

    spec: LayerSpec
    shape: tuple[int, int]
    codes: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray | None = None
    codebook: np.ndarray | None = None
    super_scales: np.ndarray | None = None
    row_ends: np.ndarray | None = None

    def parts(self) -> dict:
        """suffix -> (dtype, array), as in the file."""
        spec = self.spec
        zero = ("F32" if spec.scale_dtype == "float32" else "F16") if spec.zero_dtype == "offset" else ZERO_DTYPES.get(spec.zero_dtype)
        parts = {".codes": ("U8", self.codes), ".scales": (SCALE_DTYPES[spec.scale_dtype], self.scales),
                 ".shape": ("I64", np.array(self.shape, np.int64)), ".zeros": (zero, self.zeros), ".codebook": ("F32", self.codebook),
                 ".super_scales": ("F16", self.super_scales), ".row_ends": ("I64", self.row_ends)}
        return {suffix: part for suffix, part in parts.items() if part[1] is not None}

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for suffix, (_, array) in self.parts().items() if suffix != ".shape")

    def code_array(self) -> np.ndarray:
        """uint8 [N, K]."""
        return unpack(find_format(self.spec.format, "format"), self.codes, self.shape[1])

    def scale_array(self) -> np.ndarray:
        """f32 [R, C]."""
        kind = self.spec.scale_dtype
        if kind == "pow2":
            return np.ldexp(np.float32(1), -self.scales.astype(np.int32)).astype(np.float32)
        if kind == "double":
            supers = np.repeat(self.super_scales.astype(np.float32), SUPER_GROUP, axis=1)[:, :self.scales.shape[1]]
            return self.scales.astype(np.float32) * supers
        return to_f32(self.scales, SCALE_DTYPES[kind])

    def zero_array(self) -> np.ndarray | None:
        return None if self.zeros is None else self.zeros.astype(np.float32)

    def row_index(self) -> np.ndarray:
        """The row block of each row."""
        n, block = self.shape[0], self.spec.row_block
        if block == "ranges":
            return np.searchsorted(self.row_ends, np.arange(n), side="right")
        return np.zeros(n, np.int64) if block == -1 else np.arange(n) // block

    def per_row(self, blocks: np.ndarray) -> np.ndarray:
        """[R, C] -> [N, C]."""
        return blocks if self.spec.row_block == 1 else blocks[self.row_index()]

    def dequantize(self) -> np.ndarray:
        """f32 [N, K], with the roundings of lowbit itself."""
        n, k = self.shape
        fmt = find_format(self.spec.format, "format")
        group = k if self.spec.group_size == -1 else self.spec.group_size

        def spread(blocks: np.ndarray) -> np.ndarray:
            return np.repeat(self.per_row(blocks), group, axis=1)[:, :k]

        values = code_values(fmt, self.codebook)[self.code_array()]
        if self.zeros is None:
            return values * spread(self.scale_array())
        zero = spread(self.zero_array())
        if self.spec.zero_dtype == "offset":
            return values * spread(self.scale_array()) + zero
        return (values - zero) * spread(self.scale_array())


def _check_parts(name: str, weight: QuantizedWeight) -> None:
    n, k = weight.shape
    fmt = find_format(weight.spec.format, name)
    rows, cols = weight.spec.blocks(n, k, 0 if weight.row_ends is None else len(weight.row_ends))
    wanted = {"codes": (n, fmt.row_bytes(k)), "scales": (rows, cols)}
    wanted["zeros"] = (rows, cols) if weight.spec.zero_dtype else None
    wanted["codebook"] = (2**fmt.bits,) if fmt.kind == "table" else None
    wanted["super_scales"] = (rows, -(-cols // SUPER_GROUP)) if weight.spec.scale_dtype == "double" else None
    for part, shape in wanted.items():
        array = getattr(weight, part)
        if (array is None) != (shape is None) or (shape is not None and array.shape != shape):
            raise CorruptFile(f"tensor '{name}.{part}'", "nothing" if array is None else list(array.shape),
                              "nothing" if shape is None else f"{list(shape)} for {weight.spec.text()}")


def _object(value: object, where: str) -> dict:
    if not isinstance(value, dict):
        raise CorruptFile(where, repr(value)[:64], "an object")
    return value


class Checkpoint:
    """A lowbit checkpoint, opened. Tensors stay mapped files until they are asked for.

    config: the model's config.json. layers: full weight name -> LayerSpec. names: all tensors by their plain names.
    Errors: LowbitError, its CorruptFile and Unsupported, here and from every method.
    """

    config: dict
    layers: dict[str, LayerSpec]
    names: list[str]

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            self.config = json.loads(read_text(self.path / "config.json"))
        except OSError:
            raise LowbitError(self.path, "no config.json", "a checkpoint directory") from None
        except (ValueError, RecursionError) as error:
            raise CorruptFile(self.path / "config.json", str(error)[:100], "JSON") from None
        where = f"{self.path}/config.json: quantization_config"
        q = _object(_object(self.config, f"{self.path}/config.json").get("quantization_config", {}), where)
        if q.get("quant_method") != "lowbit":
            raise LowbitError(where, repr(q.get("quant_method")), 'quant_method "lowbit"', "`lowbit quantize` makes checkpoints")
        version = q.get("format_version")
        for transform in ("online_hadamard", "linear_norms"):
            if transform in q:
                raise Unsupported(f"{where}.{transform}", repr(q[transform])[:64], "no transform at run time", "the `lowbit` command runs such models")
        if not isinstance(version, int) or not 1 <= version <= FORMAT_VERSION:
            raise Unsupported(f"{where}.format_version", repr(version), f"1 to {FORMAT_VERSION}", "update lowbit")
        self.fit, self.quality = q.get("fit", {}), q.get("quality", {})
        groups = {}
        for name, group in _object(q.get("config_groups", {}), f"{where}.config_groups").items():
            groups[name] = LayerSpec.parse(_object(group, f"{where}.config_groups.{name}"), f"{where}.config_groups.{name}")
        self.layers = {}
        for layer, group in _object(q.get("layers", {}), f"{where}.layers").items():
            if not isinstance(group, str) or group not in groups:
                raise CorruptFile(f"{where}.layers.{layer}", repr(group)[:64], "the name of a config group")
            self.layers[layer + ".weight"] = groups[group]
        self._files: dict[str, SafetensorsFile] = {}
        for file in sorted(self.path.glob("*.safetensors")):
            opened = SafetensorsFile(file)
            got, wanted = opened.metadata.get("generation"), q.get("generation")
            if got != wanted:
                raise CorruptFile(file, f"generation {got}", f"{wanted}, as config.json has",
                                  "the checkpoint was replaced while it was read: open it again; or files of two checkpoints are mixed")
            self._files.update(dict.fromkeys(opened.names, opened))
        parts = {w + s for w in self.layers for s in (".codes", ".scales", ".shape", ".zeros", ".codebook", ".super_scales", ".row_ends")}
        dense = [name for name in self._files if name not in parts]
        for name in dense:
            if self._files[name].dtype(name) not in FLOATS:
                raise CorruptFile(f"{self.path}: tensor '{name}'", self._files[name].dtype(name), "floats, or a part of a listed layer")
        self.names = sorted([*self.layers, *dense])

    def _part(self, name: str) -> np.ndarray:
        if name not in self._files:
            raise CorruptFile(f"{self.path}: tensor '{name}'", "nothing", "a tensor that quantization_config promises")
        return self._files[name].array(name)

    def weight(self, name: str) -> QuantizedWeight:
        """A quantized weight by its full name ("model.layers.0.mlp.up_proj.weight")."""
        if name not in self.layers:
            hint = f"did you mean '{name}.weight'?" if f"{name}.weight" in self.layers else ""
            raise LowbitError(self.path, f"no quantized weight '{name}'", "a name in Checkpoint.layers", hint)
        spec = self.layers[name]
        fmt = find_format(spec.format, name)
        shape = tuple(int(x) for x in self._part(name + ".shape"))
        weight = QuantizedWeight(
            spec, shape, self._part(name + ".codes"), self._part(name + ".scales"),
            self._part(name + ".zeros") if spec.zero_dtype else None, self._part(name + ".codebook") if fmt.kind == "table" else None,
            self._part(name + ".super_scales") if spec.scale_dtype == "double" else None,
            self._part(name + ".row_ends") if spec.row_block == "ranges" else None)
        _check_parts(name, weight)
        return weight

    def dense(self, name: str) -> tuple[str, np.ndarray]:
        """(dtype, array) of a tensor that is not quantized; BF16 as uint16."""
        if name not in self._files:
            raise LowbitError(self.path, f"no tensor '{name}'", "a name in Checkpoint.names")
        return self._files[name].dtype(name), self._part(name)

    def tensor(self, name: str) -> np.ndarray:
        """Any tensor as f32."""
        if name in self.layers:
            return self.weight(name).dequantize()
        dtype, array = self.dense(name)
        return to_f32(array, dtype)

    def verify(self) -> list[str]:
        """Checksums and format notes that do not fit, one line each; empty when all is well."""
        problems = []
        for name, file in sorted(self._files.items()):
            got, wanted = _xxh3(file.array(name)), file.metadata.get("xxh3." + name)
            if got != wanted:
                problems.append(f"{file.path}: tensor '{name}': got checksum {got}, wanted {wanted}")
        for name, spec in self.layers.items():
            note = self._files[name + ".codes"].metadata.get("format." + name) if name + ".codes" in self._files else None
            if note != spec.text():
                problems.append(f"{self.path}/config.json: layer of '{name}': got {spec.text()}, wanted {note}")
        return problems


def _xxh3(array: np.ndarray) -> str:
    import xxhash

    return xxhash.xxh3_64_hexdigest(np.ascontiguousarray(array).data if array.size else b"")


def _generation(content) -> str:
    """16 digits that all files of one checkpoint carry, and no other checkpoint's: a reader never mixes two."""
    import xxhash

    return xxhash.xxh3_64_hexdigest(json.dumps(content, sort_keys=True).encode())


def _number_pattern(layer: str) -> str:
    """ "model.layers.3.mlp.up_proj" as a pattern for all layer numbers."""
    return r"\.".join(r"\d+" if re.fullmatch("[0-9]+", part) else re.sub(r"([\\^$.|?*+()\[\]{}])", r"\\\1", part)
                      for part in layer.split("."))


def describe_layers(specs: dict, dense: list) -> dict:
    """config_groups, layers and ignore for `specs` (layer without .weight -> LayerSpec)."""
    groups: dict[LayerSpec, list[str]] = {}
    seen: dict[str, set[LayerSpec | None]] = {}
    for layer, spec in specs.items():
        groups.setdefault(spec, []).append(layer)
        seen.setdefault(_number_pattern(layer), set()).add(spec)
    for layer in dense:
        seen.setdefault(_number_pattern(layer), set()).add(None)
    out = {"config_groups": {}, "layers": {}, "ignore": dense}
    for i, (spec, layers) in enumerate(groups.items()):
        targets = set()
        for layer in layers:
            pattern = _number_pattern(layer)
            exact = len(seen[pattern]) > 1 or r"\d+" not in pattern
            targets.add(layer if exact else "re:" + pattern)
            out["layers"][layer] = f"group_{i}"
        out["config_groups"][f"group_{i}"] = spec.to_json() | {"targets": sorted(targets)}
    return out


def _write_text(path: Path, text: str) -> None:
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
        f.flush()
        os.fsync(f.fileno())


def _shards(tensors: dict) -> Iterator[tuple[dict, dict]]:
    """(file tensors, metadata) of each file: at most SHARD_BYTES, the parts of a weight together."""
    shard, notes, size = {}, {}, 0
    for name, value in tensors.items():
        quantized = isinstance(value, QuantizedWeight)
        nbytes = value.nbytes if quantized else value[1].nbytes
        if shard and size + nbytes > SHARD_BYTES:
            yield shard, notes
            shard, notes, size = {}, {}, 0
        if quantized:
            _check_parts(name, value)
            shard.update({name + suffix: part for suffix, part in value.parts().items()})
            notes["format." + name] = value.spec.text()
        else:
            shard[name] = value
        size += nbytes
    yield shard, notes


def write_checkpoint(target: str | os.PathLike[str], config: dict, tensors: dict, *, fit: dict, quality: dict | None = None, side_files: dict | None = None,
                     overwrite: bool = False) -> None:
    """Writes a checkpoint directory, whole or not at all.

    config: the model's own config.json. tensors: full name -> QuantizedWeight, or (dtype, array) for floats ("BF16" as
    uint16). side_files: file name -> text. overwrite: a checkpoint that is there is replaced. Errors: LowbitError,
    OSError.
    """
    from . import __version__

    specs = {name.removesuffix(".weight"): t.spec for name, t in tensors.items() if isinstance(t, QuantizedWeight)}
    dense = [name.removesuffix(".weight") for name, t in tensors.items()
             if not isinstance(t, QuantizedWeight) and name.endswith(".weight") and t[1].ndim == 2]
    q = {"quant_method": "lowbit", "format_version": FORMAT_VERSION, "lowbit_version": __version__, **describe_layers(specs, dense),
         "fit": fit, "quality": quality or {}}
    with replace_directory(target, overwrite) as directory:
        plain = {key: value for key, value in config.items() if key != "quantization_config"}
        shards = [(shard, notes, {"xxh3." + name: _xxh3(array) for name, (_, array) in shard.items()}) for shard, notes in _shards(tensors)]
        q["generation"] = _generation([[notes, sums] for _, notes, sums in shards] + [plain, q, side_files or {}])
        index, written = {}, []
        for i, (shard, notes, sums) in enumerate(shards):
            write_safetensors(directory / f"shard-{i}", shard, {"format": "pt", "generation": q["generation"], **notes, **sums})
            written.append(sorted(shard))
        for i, names in enumerate(written):
            name = "model.safetensors" if len(written) == 1 else f"model-{i + 1:05}-of-{len(written):05}.safetensors"
            os.rename(directory / f"shard-{i}", directory / name)
            index.update(dict.fromkeys(names, name))
        if len(written) > 1:
            _write_text(directory / "model.safetensors.index.json", json.dumps({"metadata": {"generation": q["generation"]}, "weight_map": index}, indent=2) + "\n")
        for name, text in (side_files or {}).items():
            _write_text(directory / name, text)
        _write_text(directory / "config.json", json.dumps(plain | {"quantization_config": q}, indent=2) + "\n")


def side_files(directory: str | os.PathLike[str]) -> dict[str, str]:
    """Tokenizer and generation files of a model directory: file name -> text."""
    found = [name for name in SIDE_FILES if (Path(directory) / name).is_file()]
    return {name: read_text(Path(directory) / name) for name in found}
