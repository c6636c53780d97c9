"""Reading and writing one safetensors file: tensors are mapped, not read; what breaks a rule of the format is refused
by name."""

from __future__ import annotations

import json
import math
import os

import numpy as np

from .errors import CorruptFile
from .small_files import open_regular

DTYPES = {"F64": "<f8", "I64": "<i8", "F32": "<f4", "I32": "<i4", "F16": "<f2", "BF16": "<u2", "I16": "<i2", "U8": "u1", "I8": "i1",
          "BOOL": "u1"}
MAX_HEADER_BYTES = 100_000_000


class SafetensorsFile:
    """names, dtype(name), array(name); BF16 arrays come as their uint16 bits. `metadata` is the file's own."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = str(path)
        size = os.path.getsize(path)
        with open_regular(path) as f:
            length = int.from_bytes(f.read(8), "little")
            if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
                raise CorruptFile(self.path, f"a header of {length} bytes in a file of {size}", "a safetensors file")
            try:
                header = json.loads(f.read(length), object_pairs_hook=self._unique)
            except (ValueError, RecursionError) as error:
                raise CorruptFile(self.path, str(error)[:100], "a JSON header") from None
        self.metadata = header.pop("__metadata__", {}) if isinstance(header, dict) else None
        if not isinstance(self.metadata, dict):
            raise CorruptFile(self.path, "a header or metadata that is no object", "a JSON object")
        self._entries, self._start, end = header, 8 + length, 0
        self._bytes = np.memmap(path, np.uint8, "r") if size > 0 else np.zeros(0, np.uint8)
        for name, entry in sorted(header.items(), key=lambda item: self._range(*item)):
            end = self._check(name, entry, end)
        if end != size - self._start:
            raise CorruptFile(self.path, f"{size - self._start} bytes of data", f"{end}, where the last tensor ends")

    def _unique(self, pairs):
        if len({key for key, _ in pairs}) != len(pairs):
            raise CorruptFile(self.path, "a key twice in the header", "each key once")
        return dict(pairs)

    def _broken(self, name, entry):
        return CorruptFile(f"{self.path}: tensor '{name}'", str(entry)[:100], "dtype, shape and data_offsets")

    def _range(self, name, entry):
        """(begin, end) of the tensor's bytes."""
        offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
        if not isinstance(offsets, list) or len(offsets) != 2 or not all(isinstance(at, int) for at in offsets):
            raise self._broken(name, entry)
        return tuple(offsets)

    def _check(self, name, entry, at):
        begin, end = entry["data_offsets"]
        dtype, shape = DTYPES.get(str(entry.get("dtype"))), entry.get("shape")
        if dtype is None or not isinstance(shape, list) or not all(isinstance(extent, int) for extent in shape):
            raise self._broken(name, entry)
        count = math.prod(shape)
        if begin != at or end - begin != count * np.dtype(dtype).itemsize or min(entry["shape"], default=0) < 0:
            raise CorruptFile(f"{self.path}: tensor '{name}'", f"bytes {begin} to {end}",
                              f"{count} elements of {entry['dtype']} from {at} on")
        return end

    @property
    def names(self) -> list[str]:
        return list(self._entries)

    def dtype(self, name: str) -> str:
        return self._entries[name]["dtype"]

    def array(self, name: str) -> np.ndarray:
        entry = self._entries[name]
        begin, end = entry["data_offsets"]
        return self._bytes[self._start + begin:self._start + end].view(DTYPES[entry["dtype"]]).reshape(entry["shape"])


def to_f32(array: np.ndarray, dtype: str) -> np.ndarray:
    """A float tensor of any storage type as f32, exactly."""
    if dtype == "BF16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32)


def from_f32(array: np.ndarray, dtype: str) -> np.ndarray:
    """f32 to a storage type, to nearest, ties to even; BF16 as uint16 bits."""
    if dtype != "BF16":
        return array.astype(DTYPES[dtype])
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def write_safetensors(path: str | os.PathLike[str], tensors: dict, metadata: dict) -> None:
    """tensors: name -> (dtype name, array). Widest element type first, so that each tensor lies aligned. The file is
    synced."""
    order = sorted(tensors, key=lambda name: -np.dtype(DTYPES[tensors[name][0]]).itemsize)
    header, at = {"__metadata__": metadata}, 0
    for name in order:
        dtype, array = tensors[name]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            f.write(np.ascontiguousarray(tensors[name][1]).data)
        f.flush()
        os.fsync(f.fileno())
