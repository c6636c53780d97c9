"""Codes, values and packings of docs/formats.md in NumPy.

A code is the stored bits of an element, a value what it means. Levels are the values of a format in ascending order; an
index is a place in that order.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from .errors import LowbitError, Unsupported

# Trellis formats: with w = c[i] | c[i - 1] << bits | .., the stored codes of a row up to column i (0 in front of the
# row), bit a of the code of column i is the parity of w & MASKS[a]. As Trellis<B>::mask of src/format/trellis.h.
TRELLIS_MASKS = {2: (0x24, 0x28, 0x63, 0x86), 3: (0x30, 0xa1, 0x152, 0x44)}
TRELLIS_MEMORY = {2: 3, 3: 2}  # stored codes before its own that a code depends on


@dataclasses.dataclass(frozen=True)
class Format:
    """levels: first, first + step, ... (count of them); None for formats whose values are no such sequence. trellis:
    bits that are stored for a code of `bits`, which then depends on those before it; 0: the code itself is stored."""

    name: str
    bits: int
    first: int = 0
    step: int = 1
    count: int = 0
    kind: str = "uniform"  # uniform, table (a codebook of the tensor), fp8
    trellis: int = 0

    @property
    def twos_complement(self) -> bool:
        return self.name in ("int8", "int4")

    @property
    def levels(self) -> np.ndarray:
        """f32 [count], ascending. Only for uniform formats."""
        return (self.first + self.step * np.arange(self.count)).astype(np.float32)

    @property
    def stored_bits(self) -> int:
        return self.trellis or self.bits

    def row_bytes(self, k: int) -> int:
        return -(-k // 5) if self.name == "ternary-packed" else -(-k * self.stored_bits // 8)

    def indices_to_codes(self, index: np.ndarray) -> np.ndarray:
        """uint8 codes of level indices."""
        if self.twos_complement:
            return ((index.astype(np.int16) + self.first) & (2**self.bits - 1)).astype(np.uint8)
        return index.astype(np.uint8)

    def codes_to_indices(self, codes: np.ndarray) -> np.ndarray:
        if self.twos_complement:
            return (codes ^ np.uint8(2 ** (self.bits - 1))).astype(np.uint8)
        return codes


FORMATS = {
    f.name: f
    for f in (
        Format("int8", 8, -128, 1, 256), Format("int4", 4, -8, 1, 16), Format("uint4", 4, 0, 1, 16), Format("int3", 3, -4, 1, 8),
        Format("int2", 2, -2, 1, 4), Format("int3odd", 3, -7, 2, 8), Format("int2odd", 2, -3, 2, 4), Format("binary", 1, -1, 2, 2),
        Format("ternary", 2, -1, 1, 3), Format("ternary-packed", 2, -1, 1, 3), Format("fp8", 8, kind="fp8"),
        Format("codebook4", 4, count=16, kind="table"), Format("codebook3", 3, count=8, kind="table"),
        Format("codebook2", 2, count=4, kind="table"), Format("trellis2", 4, count=16, kind="table", trellis=2),
        Format("trellis3", 4, count=16, kind="table", trellis=3))
}


def find_format(name: str, where: str) -> Format:
    if name not in FORMATS:
        raise Unsupported(where, f"'{name}'", "a format that this version of lowbit knows: " + " ".join(FORMATS))
    return FORMATS[name]


def _e4m3_values() -> np.ndarray:
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, (code & 7).astype(np.float32)
    magnitude = np.where(exponent == 0, np.ldexp(mantissa, -9), np.ldexp(8 + mantissa, exponent - 10))
    return np.where(code & 127 == 127, np.nan, np.where(code & 128, -magnitude, magnitude)).astype(np.float32)


def code_values(fmt: Format, codebook: np.ndarray | None = None) -> np.ndarray:
    """f32 [number of codes]: the value of each code."""
    if fmt.kind == "table":
        return np.asarray(codebook, np.float32)
    if fmt.kind == "fp8":
        return _e4m3_values()
    codes = np.arange(2**fmt.bits, dtype=np.uint8)
    return (fmt.first + fmt.step * fmt.codes_to_indices(codes).astype(np.float32)).astype(np.float32)


def trellis_codes(bits: int) -> np.ndarray:
    """uint8 [states, 2**bits]: the code of each state (the TRELLIS_MEMORY[bits] codes stored before, the last one
    lowest) and code stored behind it. The next state is (state << bits | stored) % states."""
    windows = np.arange(2 ** (bits * (TRELLIS_MEMORY[bits] + 1)), dtype=np.uint32)
    code = np.zeros(len(windows), np.uint8)
    for a, mask in enumerate(TRELLIS_MASKS[bits]):
        parity = windows & mask
        for shift in (8, 4, 2, 1):
            parity = parity ^ parity >> shift
        code |= (parity & 1).astype(np.uint8) << np.uint8(a)
    return code.reshape(-1, 2**bits)


def _trellis_unpack(bits: int, stored: np.ndarray) -> np.ndarray:
    """Trellis codes of stored codes, uint8 [N, K]."""
    windows = stored.astype(np.uint16)
    for back in range(1, TRELLIS_MEMORY[bits] + 1):
        windows[:, back:] |= stored[:, :-back].astype(np.uint16) << np.uint16(bits * back)
    return trellis_codes(bits).ravel()[windows]


def _trellis_pack(fmt: Format, codes: np.ndarray) -> np.ndarray:
    """The stored codes of trellis codes, uint8 [N, K], column by column."""
    table = trellis_codes(fmt.trellis)
    states, offered = table.shape
    inverse = np.full((states, 2**fmt.bits), 255, np.uint8)
    inverse[np.arange(states)[:, None], table] = np.arange(offered, dtype=np.uint8)
    stored = np.empty(codes.shape[::-1], np.uint8)
    state = np.zeros(len(codes), np.uint32)
    for column, code in enumerate(np.ascontiguousarray(codes.T)):
        stored[column] = inverse[state, np.minimum(code, 2**fmt.bits - 1)]
        off = np.flatnonzero((stored[column] == 255) | (code >= 2**fmt.bits))
        if len(off):
            raise LowbitError("pack", f"code {code[off[0]]} at row {off[0]}, column {column}",
                              f"a code that the trellis offers behind those before it for {fmt.name}",
                              "codes of a trellis come from a search over whole rows")
        state = (state << np.uint32(fmt.trellis) | stored[column]) % np.uint32(states)
    return np.ascontiguousarray(stored.T)


def unpack(fmt: Format, packed: np.ndarray, k: int) -> np.ndarray:
    """Codes, uint8 [N, k], of packed rows, uint8 [N, row_bytes(k)]."""
    if fmt.trellis:
        return _trellis_unpack(fmt.trellis, _unpack_stored(fmt, packed, k))
    return _unpack_stored(fmt, packed, k)


def _unpack_stored(fmt: Format, packed: np.ndarray, k: int) -> np.ndarray:
    n, bits = len(packed), fmt.stored_bits
    if fmt.name == "ternary-packed":
        powers = np.array([1, 3, 9, 27, 81], np.uint8)
        digits = (packed[:, :, None] * powers).astype(np.uint16) * 3 >> 8
        return digits.astype(np.uint8).reshape(n, -1)[:, :k]
    if bits == 8:
        return packed
    if bits == 3:
        triples = np.zeros((n, -(-k // 8) * 3), np.uint32)
        triples[:, :packed.shape[1]] = packed
        words = triples[:, 0::3] | triples[:, 1::3] << 8 | triples[:, 2::3] << 16
        return (words[:, :, None] >> np.arange(0, 24, 3, dtype=np.uint32) & 7).astype(np.uint8).reshape(n, -1)[:, :k]
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return (packed[:, :, None] >> shifts & (2**bits - 1)).reshape(n, -1)[:, :k]


def pack(fmt: Format, codes: np.ndarray) -> np.ndarray:
    """Packed rows of codes, uint8 [N, K]; what is unused in the last byte is zero. Errors: LowbitError for codes off a
    trellis."""
    if fmt.trellis:
        codes = _trellis_pack(fmt, codes)
    n, k = codes.shape
    bits = fmt.stored_bits
    per = {"ternary-packed": 5}.get(fmt.name, 8 if bits == 3 else 8 // bits)
    padded = np.zeros((n, -(-k // per) * per), np.uint8)
    padded[:, :k] = codes
    runs = padded.reshape(n, -1, per)
    if fmt.name == "ternary-packed":
        number = runs.astype(np.uint32) @ np.array([81, 27, 9, 3, 1], np.uint32)
        packed = (number * 256 + 242) // 243
    elif bits == 3:
        words = np.zeros(runs.shape[:2], np.uint32)
        for i in range(8):
            words |= runs[:, :, i].astype(np.uint32) << np.uint32(3 * i)
        packed = np.stack([words & 255, words >> 8 & 255, words >> 16], -1)
    else:
        packed = np.zeros(runs.shape[:2], np.uint8)
        for i in range(per):
            packed |= runs[:, :, i] << np.uint8(bits * i)
    return np.ascontiguousarray(packed.reshape(n, -1)[:, :fmt.row_bytes(k)], dtype=np.uint8)
