#!/usr/bin/env python3
"""Golden vectors of the integer GRU, from a NumPy model written straight from docs/gru.md.

usage: make_gru_golden.py [--data DIR]   writes cases.npz and, with DIR (rnn/g2p, rnn/nsnet2), networks.npz beside this
                                         file.

Tables are the correctly rounded ones (mode "direct"): every other number is then fixed by the specification. Needs
NumPy.
"""
import argparse
import zlib
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
NAMES = ["x", "h", "ih", "hh", "ui", "u", "ri", "r", "ni", "n"]


def rs(x, k):
    """x 2^-k rounded half to even; exact for k <= 0. x int64, k int or array."""
    x = np.asarray(x, np.int64)
    k = np.broadcast_to(np.asarray(k, np.int64), x.shape)
    right, left = np.maximum(k, 1), np.maximum(-k, 0)
    rounded = (x + (np.int64(1) << (right - 1)) - 1 + ((x >> right) & 1)) >> right
    return np.where(k > 0, np.where(k >= 63, 0, rounded), x << left)


class Format:
    def __init__(self, bits, unsigned=0, symmetric=0, saturate=1):
        self.bits, self.unsigned, self.symmetric, self.saturate = bits, unsigned, symmetric, saturate
        self.low = 0 if unsigned else -(1 << (bits - 1))
        self.high = (1 << bits) - 1 if unsigned else (1 << (bits - 1)) - 1

    def clamp(self, q):
        return np.clip(q, self.low, self.high)

    def row(self):
        return [self.bits, self.unsigned, self.symmetric, self.saturate]

    def scale(self, low, high):
        """Shift and zero point for a range that contains 0."""
        e = self.saturate
        if not self.symmetric:
            delta = (high - low) / (self.high - self.low + e)
        else:
            delta = high / (self.high + e) if self.high + e > 0 and high > 0 else 0.0
            if not self.unsigned:
                delta = max(delta, low / self.low)
        if delta <= 0:
            shift = self.bits if self.unsigned else self.bits - 1
        else:
            fraction, exponent = np.frexp(delta)
            shift = int(1 - exponent if fraction == 0.5 else -exponent)
        zero = 0 if self.symmetric else int(np.clip(self.low - np.floor(low * 2.0 ** shift), self.low, self.high))
        return shift, zero

    def quantize(self, v, shift, zero=0):
        return self.clamp(np.rint(np.asarray(v, np.float64) * 2.0 ** np.asarray(shift, np.float64)).astype(np.int64) + zero)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


class Cell:
    """One direction of one layer. weights: dict W, R, bw, br in gate order u, r, n."""

    def __init__(self, weights, ranges, formats, w_format, bias_format, own_bias):
        self.f = formats
        self.hidden = weights["R"].shape[1]
        self.scales = [f.scale(*map(float, r)) for f, r in zip(formats, ranges)]
        self.shift = dict(zip(NAMES, (s for s, _ in self.scales)))
        self.zero = dict(zip(NAMES, (z for _, z in self.scales)))
        self.w, self.w_shift, self.bw, self.bx = self.product(weights["W"], weights["bw"], "x", w_format, bias_format, own_bias)
        self.r, self.r_shift, self.br, self.bh = self.product(weights["R"], weights["br"], "h", w_format, bias_format, own_bias)
        self.tables = {}
        for gate, out, f in (("ui", "u", sigmoid), ("ri", "r", sigmoid), ("ni", "n", np.tanh)):
            fi, fo = formats[NAMES.index(gate)], formats[NAMES.index(out)]
            q = np.arange(fi.low, fi.high + 1)
            y = np.rint(f((q - self.zero[gate]) * 2.0 ** -self.shift[gate]) * 2.0 ** self.shift[out]).astype(np.int64)
            self.tables[gate] = (fi.low, fo.clamp(y + self.zero[out]))

    def product(self, w, b, source, w_format, bias_format, own_bias):
        w, b = w.astype(np.float64), b.astype(np.float64)
        s = self.shift[source]
        shift = np.array([w_format.scale(min(r.min(), 0.0), max(r.max(), 0.0))[0] for r in w])
        cap = [31 if v == 0 else 29 - int(np.frexp(abs(v))[1] - 1) - s for v in b]
        shift = np.minimum(shift, np.minimum(cap, 31))
        q = w_format.quantize(w, shift[:, None])
        if own_bias:
            b_shift = np.array([min(bias_format.scale(min(v, 0.0), max(v, 0.0))[0], 31) for v in b])
        else:
            b_shift = shift + s
        qb = bias_format.quantize(b, b_shift)
        return q, shift, qb, rs(qb, b_shift - (shift + s)) - q.sum(1) * self.zero[source]

    def fmt(self, name):
        return self.f[NAMES.index(name)]

    def run(self, x):
        """x [T, N, C] floats -> h codes [T, N, H]."""
        s, z, n = self.shift, self.zero, self.hidden
        qx = self.fmt("x").quantize(x, s["x"], z["x"])
        h = np.full((x.shape[1], n), z["h"], np.int64)
        out = []
        for t in range(x.shape[0]):
            ih = self.fmt("ih").clamp(rs(qx[t] @ self.w.T + self.bx, self.w_shift + s["x"] - s["ih"]) + z["ih"]) - z["ih"]
            hh = self.fmt("hh").clamp(rs(h @ self.r.T + self.bh, self.r_shift + s["h"] - s["hh"]) + z["hh"]) - z["hh"]
            gates = {}
            for gate, at in (("ui", 0), ("ri", n)):
                a, b = ih[:, at:at + n], hh[:, at:at + n]
                gates[gate] = self.fmt(gate).clamp(rs(a, s["ih"] - s[gate]) + rs(b, s["hh"] - s[gate]) + z[gate])
            u, r = self.look_up("ui", gates["ui"]), self.look_up("ri", gates["ri"])
            ni = self.fmt("ni").clamp(rs(ih[:, 2 * n:], s["ih"] - s["ni"]) +
                                      rs((r - z["r"]) * hh[:, 2 * n:], s["r"] + s["hh"] - s["ni"]) + z["ni"])
            aligned = rs(self.look_up("ni", ni) - z["n"], s["n"] - s["h"])
            one = (1 << s["u"]) + z["u"]
            h = self.fmt("h").clamp(rs((u - z["u"]) * (h - z["h"]) + (one - u) * aligned, s["u"]) + z["h"])
            out.append(h)
        return np.stack(out)

    def look_up(self, gate, q):
        low, table = self.tables[gate]
        return table[q - low]


def float_ranges(w, x):
    """Running minimum and maximum of every tensor of the float cell."""
    n = w["R"].shape[1]
    h, seen = np.zeros((x.shape[1], n)), {k: [0.0, 0.0] for k in NAMES}

    def see(name, v):
        seen[name] = [min(seen[name][0], v.min()), max(seen[name][1], v.max())]

    for t in range(x.shape[0]):
        ih, hh = x[t] @ w["W"].T + w["bw"], h @ w["R"].T + w["br"]
        ui, ri = ih[:, :n] + hh[:, :n], ih[:, n:2 * n] + hh[:, n:2 * n]
        u, r = sigmoid(ui), sigmoid(ri)
        ni = ih[:, 2 * n:] + r * hh[:, 2 * n:]
        h = u * h + (1 - u) * np.tanh(ni)
        for name, v in zip(NAMES, (x[t], h, ih, hh, ui, u, ri, r, ni, np.tanh(ni))):
            see(name, v)
    ranges = np.array([seen[k] for k in NAMES], np.float32)
    ranges[[5, 7]], ranges[9] = [0, 1], [-1, 1]
    return ranges


def seed8():
    f = {k: Format(8) for k in NAMES}
    f["u"] = f["r"] = Format(8, 1)
    f["n"] = Format(8, 0, 1)
    return [f[k] for k in NAMES]


def random_formats(rng):
    out = []
    for name in NAMES:
        bits = int(rng.integers(1, 17)) if rng.random() < 0.3 else int(rng.integers(6, 17))
        unsigned = int(name in "ur" or rng.random() < 0.2)
        out.append(Format(bits, unsigned, int(rng.random() < 0.3), int(rng.random() < 0.7)))
    return out


def save(path, arrays):
    np.savez(path, **arrays)  # stored, not compressed: lowbit's reader wants it so
    print(path, path.stat().st_size, "bytes")


def small_cases():
    rng, arrays = np.random.default_rng(1), {}
    for i in range(24):
        t, n, c, h = (int(v) for v in rng.integers([1, 1, 1, 1], [9, 4, 10, 12]))
        spread = 2.0 ** rng.integers(-2, 2)
        w = {"W": rng.normal(0, spread, (3 * h, c)), "R": rng.normal(0, spread, (3 * h, h)),
             "bw": rng.normal(0, 0.3, 3 * h), "br": rng.normal(0, 0.3, 3 * h)}
        w = {k: v.astype(np.float32) for k, v in w.items()}
        x = rng.normal(0.2, 1, (t, n, c)).astype(np.float32)
        ranges = float_ranges(w, x)
        formats = seed8() if i < 6 else random_formats(rng)
        w_format = Format(8 if i < 6 else int(rng.integers(1, 17)), 0, 1)
        own = i % 2
        bias = Format(int(rng.integers(2, 17)) if own else 32, 0, 1)
        if not own:
            bias.low, bias.high = -(1 << 31), (1 << 31) - 1
        cell = Cell(w, ranges, formats, w_format, bias, own)
        p = f"c{i}."
        arrays.update({p + k: v for k, v in w.items()})
        arrays.update({p + "x": x, p + "ranges": ranges, p + "formats": np.array([f.row() for f in formats], np.int32),
                       p + "weights": np.array([w_format.bits, bias.bits, own], np.int32),
                       p + "scales": np.array(cell.scales, np.int32), p + "qW": cell.w.astype(np.int32),
                       p + "qR": cell.r.astype(np.int32), p + "sW": cell.w_shift.astype(np.int32),
                       p + "sR": cell.r_shift.astype(np.int32), p + "qbw": cell.bw.astype(np.int64),
                       p + "qbr": cell.br.astype(np.int64), p + "h": cell.run(x).astype(np.int32)})
    save(HERE / "cases.npz", arrays)


def real_networks(data):
    """Ranges and CRC32 of the state codes, int32 little-endian, of whole networks on a fixed input."""
    g2p = np.load(data / "rnn/g2p/checkpoint20.npz")
    order = lambda a: np.concatenate([np.split(a, 3, 0)[i] for i in (1, 0, 2)], 0)  # r, z, n -> u, r, n
    nets = {}
    for k in ("enc", "dec"):
        nets["g2p_" + k] = {a: order(g2p[f"{k}_{b}"]) for a, b in (("W", "w_ih"), ("R", "w_hh"), ("bw", "b_ih"), ("br", "b_hh"))}
    load = lambda n: np.load(data / f"rnn/nsnet2/onnx__GRU_{n}.npy")[0]
    for i, a in ((1, 184), (2, 204)):
        b = load(a + 2)
        nets[f"nsnet2_{i}"] = {"W": load(a), "R": load(a + 1), "bw": b[:1200], "br": b[1200:]}
    arrays = {}
    for name, w in nets.items():
        w = {k: v.astype(np.float32) for k, v in w.items()}
        t, n, c = 20, 2, w["W"].shape[1]
        # Multiples of 1/64 in [-1, 1) that any language can make again.
        i = np.arange(t * n * c, dtype=np.uint64)
        x = ((((i * np.uint64(2654435761) + np.uint64(12345)) >> np.uint64(8)) & np.uint64(127)).astype(np.float32) - 64) / 64
        x = x.reshape(t, n, c)
        ranges = float_ranges(w, x)
        arrays[name + ".ranges"] = ranges
        for preset in ("seed8", "w8a16"):
            formats = seed8()
            if preset == "w8a16":
                formats = [Format(16, f.unsigned, f.symmetric) for f in formats]
            bias = Format(8 if preset == "seed8" else 32, 0, 1)
            h = Cell(w, ranges, formats, Format(8, 0, 1), bias, preset == "seed8").run(x).astype("<i4")
            arrays[f"{name}.{preset}"] = np.array([zlib.crc32(h.tobytes())], np.uint32)
    save(HERE / "networks.npz", arrays)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    options = parser.parse_args()
    small_cases()
    if options.data:
        real_networks(options.data)


if __name__ == "__main__":
    main()
