"""Integers of few bits from Python: NumPy's and torch's arrays against plain loops, seed 002's order and formula, and
refusals."""
import unittest

import cli

try:
    import numpy as np
    import xxhash  # noqa: F401
except ImportError:
    np = None
try:
    import torch
except ImportError:
    torch = None


def to_bf16(x):
    """Of float32: bits, to nearest, ties to even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def of_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def values2(codes, k):
    return ((codes[:, :, None] >> np.arange(0, 8, 2)) & 3).reshape(len(codes), -1)[:, :k].astype(np.int64) - 2


def signs(bits, k):
    return np.unpackbits(bits, axis=-1, bitorder="little")[..., :k].astype(np.int64) * 2 - 1


def seed_002_tiles(values):
    """A matrix of -2..1 as gpu/pack_weight.py of BitNet packs it: blocks of 16 x 32 in 32 words, 16 codes a word in the
    order 0, 4, 8, 12, ..."""
    n, k = values.shape
    words = np.zeros(n * k // 16, np.uint32)
    for r in range(n):
        for c in range(k):
            block = r // 16 * (k // 32) + c // 32
            word = block * 32 + r % 16 // 8 * 16 + c % 32 // 16 * 8 + r % 8
            element = c % 16
            words[word] |= np.uint32(int(values[r, c]) + 2) << np.uint32(2 * [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15].index(element))
    return words.view(np.uint8).reshape(n, k // 4)


@unittest.skipIf(np is None, "no numpy or no xxhash: pip install numpy xxhash")
class Operators(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cli.load_package()
        import lowbit
        from lowbit import operators
        cls.operators, cls.error = operators, lowbit.LowbitError
        cls.rng = np.random.default_rng(6)

    def test_activations(self):
        x = self.rng.standard_normal((3, 5, 37)).astype(np.float32)
        x[1, 1, 3], x[2] = np.nan, 0
        codes, s = self.operators.quantize_activations_int8(x)
        with np.errstate(invalid="ignore"):
            wanted = (np.float32(127) / np.maximum(np.abs(x).max(-1), np.float32(1e-5))).astype(np.float32)
            wanted_codes = np.nan_to_num(np.round(x * wanted[..., None]))
        self.assertEqual((codes.dtype, codes.shape, s.shape), (np.int8, x.shape, (3, 5)))
        np.testing.assert_array_equal(s, wanted)
        wanted_codes[1, 1] = 0
        np.testing.assert_array_equal(codes, wanted_codes)
        codes, s = self.operators.quantize_activations_int8(x[0], scale_dtype="bf16")
        np.testing.assert_array_equal(s, to_bf16(wanted[0]))
        np.testing.assert_array_equal(codes, np.clip(np.round(x[0] * of_bf16(s)[..., None]), -128, 127))
        codes, s = self.operators.quantize_activations_int8(x[0].astype(np.float16))
        np.testing.assert_array_equal(s, np.float32(127) / np.abs(x[0].astype(np.float16)).max(-1).astype(np.float32))

    def test_bitlinear(self):
        for m, n, k, ends in ((1, 3840, 256, [2560, 3200, 3840]), (3, 20, 131, None), (2, 16, 32, [5, 16])):
            x = self.rng.integers(-128, 128, (m, k), np.int8)
            codes = self.rng.integers(0, 256, (n, -(-k // 4)), np.uint8)
            s = (self.rng.random(m) * 100 + 1).astype(np.float32)
            ws = self.rng.standard_normal(len(ends or [n])).astype(np.float32)
            sums = x.astype(np.int64) @ values2(codes, k).T
            scale = np.repeat(ws, np.diff([0] + (ends or [n])))
            wanted = sums.astype(np.float32) / s[:, None] * scale
            call = self.operators.bitlinear_int8xint2
            np.testing.assert_array_equal(call(x, codes, s, ws, row_ends=ends, dtype="f32"), wanted)
            np.testing.assert_array_equal(call(x, codes, s, ws, row_ends=ends), to_bf16(wanted))
            np.testing.assert_array_equal(call(x, codes.view(np.int8), s, ws, row_ends=ends, s_multiplies=True, dtype="f32"),
                                          sums.astype(np.float32) * s[:, None] * scale)
            halves = call(x, codes, to_bf16(s), to_bf16(ws), row_ends=ends, dtype="f32")
            np.testing.assert_array_equal(halves, sums.astype(np.float32) / of_bf16(to_bf16(s))[:, None]
                                          * np.repeat(of_bf16(to_bf16(ws)), np.diff([0] + (ends or [n]))))
            self.assertEqual(call(x.reshape(m, 1, k), codes, s, ws, row_ends=ends).shape, (m, 1, n))

    def test_tiles_are_the_seeds(self):
        codes = self.rng.integers(0, 256, (48, 24), np.uint8)
        tiles = self.operators.int2_to_tiles(codes)
        np.testing.assert_array_equal(tiles, seed_002_tiles(values2(codes, 96)))
        np.testing.assert_array_equal(self.operators.int2_from_tiles(tiles), codes)
        x = self.rng.integers(-128, 128, (2, 96), np.int8)
        s, ws = np.array([3, 7], np.float32), np.array([0.25], np.float32)
        np.testing.assert_array_equal(self.operators.bitlinear_int8xint2(x, tiles, s, ws, weight_order="tiles"),
                                      self.operators.bitlinear_int8xint2(x, codes, s, ws))
        for shape in ((8, 24), (16, 4)):
            with self.assertRaises(self.error):
                self.operators.int2_to_tiles(np.zeros(shape, np.uint8))

    def test_bits(self):
        for m, n, k in ((1, 40, 256), (3, 9, 75)):
            x = self.rng.standard_normal((m, k)).astype(np.float32)
            bits, scales = self.operators.binarize_activations(x)
            np.testing.assert_array_equal(signs(bits, k), np.where(x >= 0, 1, -1))
            np.testing.assert_allclose(scales, np.abs(x).mean(-1), rtol=1e-6)
            weight = self.rng.integers(0, 256, (n, -(-k // 8)), np.uint8)
            sums = signs(bits, k) @ signs(weight, k).T
            np.testing.assert_array_equal(self.operators.binary_matmul(bits, weight, k), sums)
            ws, bias = self.rng.standard_normal((2, n)).astype(np.float32)
            got = self.operators.binary_matmul(bits, weight, k, x_scales=scales, weight_scales=ws, bias=bias)
            product = (sums.astype(np.float32) * ws).astype(np.float64) * scales[:, None]
            # the sum in double is all but exact, as fma's
            np.testing.assert_array_equal(got, (product + bias).astype(np.float32))

    def test_quantized_mm(self):
        x = self.rng.standard_normal((3, 64)).astype(np.float32)
        for bits in (1, 2, 4, 8):
            weight = self.rng.integers(0, 256, (24, 8 * bits), np.uint8)
            codes = np.unpackbits(weight, axis=1, bitorder="little").reshape(24, 64, bits) @ (1 << np.arange(bits))
            values = {1: 2 * codes - 1, 2: codes - 2}.get(bits, np.where(codes >= 1 << bits - 1, codes - (1 << bits), codes))
            for scales, each in ((None, 1), (np.arange(24, dtype=np.float32), np.arange(24)[:, None]),
                                 (self.rng.random((24, 4)).astype(np.float32), None)):
                each = np.repeat(scales, 16, axis=1) if each is None else each
                real = values * each * 0.5
                got = self.operators.quantized_mm(x, weight, bits, scale=0.5, scales=scales)
                self.assertLessEqual(np.max(np.abs(got - x @ real.T) - 1e-5 * (np.abs(x) @ np.abs(real).T)), 0)
        with self.assertRaises(self.error):
            self.operators.quantized_mm(x, weight, 3)

    @unittest.skipIf(torch is None, "no torch")
    def test_torch_and_the_seeds_formula(self):
        torch.manual_seed(1)
        x = torch.randn(4, 64, dtype=torch.bfloat16)
        codes, s = self.operators.quantize_activations_int8(x, scale_dtype="bf16")
        self.assertEqual((codes.dtype, s.dtype), (torch.int8, torch.bfloat16))
        wanted = 127 / x.abs().max(dim=-1, keepdim=True).values.clamp_(min=1e-5)  # BitLinearKernel.quant_input
        self.assertTrue(torch.equal(s, wanted[:, 0]))
        self.assertTrue(torch.equal(codes, (x.float() * wanted.float()).round().clamp(-128, 127).to(torch.int8)))
        weight = torch.randint(0, 256, (48, 16), dtype=torch.uint8)
        ws = torch.tensor([0.5, 1.25, 2], dtype=torch.bfloat16)
        y = self.operators.bitlinear_int8xint2(codes, weight, s, ws, row_ends=[32, 40, 48])
        sums = codes.double() @ torch.from_numpy(values2(weight.numpy(), 64)).double().T
        scale = ws.float().repeat_interleave(torch.tensor([32, 8, 8]))
        self.assertTrue(torch.equal(y, (sums.float() / s.float()[:, None] * scale).to(torch.bfloat16)))
        # from one to the other without a copy
        self.assertTrue(torch.equal(torch.from_dlpack(np.from_dlpack(codes)), codes))
        bits, scales = self.operators.binarize_activations(x)
        self.assertEqual(self.operators.binary_matmul(bits, torch.zeros(5, 8, dtype=torch.uint8), 64, x_scales=scales).shape, (4, 5))

    def test_refusals(self):
        x, w = np.zeros((2, 64), np.int8), np.zeros((16, 16), np.uint8)
        s, ws = np.ones(2, np.float32), np.ones(1, np.float32)
        call = self.operators.bitlinear_int8xint2
        for wrong in (lambda: call(x.astype(np.uint8), w, s, ws), lambda: call(x, w[:, :15], s, ws), lambda: call(x, w, s[:1], ws),
                      lambda: call(x, w, s, np.ones(2, np.float32)), lambda: call(x, w, s, ws.astype(np.float64)),
                      lambda: call(x, w, s, np.ones(2, np.float32), row_ends=[8, 15]), lambda: call(x, w, s, ws, row_ends=[17]),
                      lambda: call(x, w, s, np.ones(2, np.float32), row_ends=[16, 16]), lambda: call(x, w, s, ws, dtype="int8"),
                      lambda: call(x, w, s, ws, weight_order="columns"), lambda: call([1], w, s, ws),
                      lambda: self.operators.quantize_activations_int8(x), lambda: self.operators.binary_matmul(w, w, 200),
                      lambda: self.operators.binary_matmul(w, w, 128, bias=s),
                      lambda: self.operators.quantized_mm(x.astype(np.float32), w, 2, scales=np.ones((16, 1), np.float32), group=2**64 + 1)):
            with self.assertRaises(self.error):
                wrong()


if __name__ == "__main__":
    unittest.main()
