#!/usr/bin/env python3
"""DEFLATE streams of every kind of block, by zlib; and an archive by numpy.savez_compressed. What
src/io/inflate_test.cc unpacks.

    pip install numpy && python make_inflate_cases.py        (writes inflate_cases.txt and compressed.npz here)
Lines of inflate_cases.txt: name, stream in hex, and how many bytes of which CRC-32 it makes.
"""
import pathlib
import zlib

import numpy as np

HERE = pathlib.Path(__file__).parent
FAR = b"0123456789" + b"a" * 32000  # copies from 32,010 bytes before
TEXT = b"".join(b"%d bottles of beer on the wall\n" % (99 - i) for i in range(99))
NOISE = bytes((i * i * 7 + i // 3) % 251 for i in range(400))
CASES = {
    "empty": (b"", zlib.Z_DEFAULT_STRATEGY, 9),
    "stored": (NOISE[:100], zlib.Z_DEFAULT_STRATEGY, 0),
    "fixed": (TEXT[:300], zlib.Z_FIXED, 9),
    "fixed, a run": (b"x" * 1000, zlib.Z_FIXED, 9),
    "dynamic": (TEXT, zlib.Z_DEFAULT_STRATEGY, 9),
    "dynamic, literals alone": (TEXT[:600], zlib.Z_HUFFMAN_ONLY, 9),
    "dynamic, one distance": (b"ab" * 5000, zlib.Z_DEFAULT_STRATEGY, 9),
    "far copies": (FAR + FAR, zlib.Z_DEFAULT_STRATEGY, 9),
    "noise": (NOISE, zlib.Z_DEFAULT_STRATEGY, 9),
}


def main() -> None:
    lines = []
    for name, (data, strategy, level) in CASES.items():
        packer = zlib.compressobj(level, zlib.DEFLATED, -15, 9, strategy)
        lines.append(f"{name}\t{(packer.compress(data) + packer.flush()).hex()}\t{len(data)}\t{zlib.crc32(data)}\n")
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)  # several blocks, with an empty stored one between
    blocks = packer.compress(TEXT) + packer.flush(zlib.Z_SYNC_FLUSH) + packer.compress(NOISE) + packer.flush()
    lines.append(f"several blocks\t{blocks.hex()}\t{len(TEXT + NOISE)}\t{zlib.crc32(TEXT + NOISE)}\n")
    (HERE / "inflate_cases.txt").write_text("".join(lines))
    np.savez_compressed(HERE / "compressed.npz", ramp=np.arange(1000, dtype=np.float32).reshape(10, 100) / 8,
                        swapped=np.asfortranarray(np.arange(6, dtype=np.int16).reshape(2, 3)), none=np.zeros((0, 4), np.float64))


if __name__ == "__main__":
    main()
