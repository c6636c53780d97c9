"""FP8 in blocks from Python: the example, NumPy's and torch's arrays, definitions of E4M3 that are not lowbit's, and
refusals."""
import re
import subprocess
import sys
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


def e4m3_values():
    """Of codes 0 to 126, all that are finite and not negative."""
    codes = np.arange(127)
    exponent, mantissa = codes >> 3, codes & 7
    return np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))


def nearest_codes(x):
    """Nearest, ties to the even code, 448 for all above."""
    values = e4m3_values()
    middles, magnitude = (values[1:] + values[:-1]) / 2, np.abs(x.astype(np.float64))
    codes = np.searchsorted(middles, magnitude)
    tie = (codes < 126) & (middles[np.minimum(codes, 125)] == magnitude)
    codes = codes + (tie & (codes % 2 == 1))
    return (codes | np.where(np.signbit(x), 0x80, 0)).astype(np.uint8)


@unittest.skipIf(np is None, "no numpy or no xxhash: pip install numpy xxhash")
class Fp8(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cli.load_package()
        import lowbit
        from lowbit import fp8
        cls.fp8, cls.error = fp8, lowbit.LowbitError
        cls.rng = np.random.default_rng(4)

    def test_the_example(self):
        ran = subprocess.run([sys.executable, cli.SOURCE / "examples/fp8_pipeline.py"], capture_output=True, text=True, check=True)
        self.assertRegex(ran.stdout, r"weights: 3072000 bytes as float32, 768192 as FP8, 4\.00 times smaller")
        errors = [float(e) for e in re.findall(r"relative error ([\d.]+)", ran.stdout)]
        self.assertEqual(len(errors), 2)
        # each operand is rounded by 2.6 % in the mean
        self.assertTrue(all(0.02 < e < 0.05 for e in errors), ran.stdout)

    def test_the_documents_act_quant(self):
        x = self.rng.standard_normal((3, 5, 300), dtype=np.float32) * np.float32(3)
        codes, scales = self.fp8.act_quant(x)
        self.assertEqual((codes.shape, scales.shape), ((3, 5, 300), (3, 5, 3)))
        for b, first in enumerate(range(0, 300, 128)):
            part = x[..., first:first + 128]
            wanted = (np.abs(part).max(-1) / np.float32(448)).astype(np.float32)
            np.testing.assert_array_equal(scales[..., b], wanted)
            np.testing.assert_array_equal(codes[..., first:first + 128], nearest_codes(part / wanted[..., None]))
        half, half_scales = self.fp8.act_quant(x.astype(np.float16))
        same, same_scales = self.fp8.act_quant(x.astype(np.float16).astype(np.float32))
        np.testing.assert_array_equal(half, same)
        np.testing.assert_array_equal(half_scales, same_scales)
        bits = (x.view(np.uint32) >> 16).astype(np.uint16)
        bf16, bf16_scales = self.fp8.act_quant(bits, bf16=True)
        same, same_scales = self.fp8.act_quant((bits.astype(np.uint32) << 16).view(np.float32))
        np.testing.assert_array_equal(bf16, same)
        by_column, column_scales = self.fp8.act_quant(x, scale_order="column")
        np.testing.assert_array_equal(by_column, codes)
        np.testing.assert_array_equal(column_scales[:, :15].T, scales.reshape(15, 3))
        self.assertEqual(column_scales[:, 15].tolist(), [0, 0, 0])

    def test_products(self):
        x, w = (self.rng.standard_normal(shape, dtype=np.float32) for shape in ((7, 500), (200, 500)))
        for block in ((128, 128), (1, 128)):
            w_codes, w_scales = self.fp8.weight_quant(w, block)
            real_w = self.fp8.weight_dequant(w_codes, w_scales, block)
            for order in ("row", "column"):
                x_codes, x_scales = self.fp8.act_quant(x, scale_order=order)
                y = self.fp8.gemm(x_codes, x_scales, w_codes, w_scales, scale_order=order)
                real_x = self.fp8.weight_dequant(*self.fp8.act_quant(x), (1, 128))
                exact = real_x.astype(np.float64) @ real_w.T.astype(np.float64)
                self.assertLess(np.linalg.norm(y - exact) / np.linalg.norm(exact), 2e-6)
                half = self.fp8.gemm(x_codes, x_scales, w_codes, w_scales, scale_order=order, dtype="f16")
                np.testing.assert_array_equal(half, y.astype(np.float16))

    def test_groups(self):
        x, w = self.rng.standard_normal((20, 300), dtype=np.float32), self.rng.standard_normal((3, 140, 300), dtype=np.float32)
        parts = [self.fp8.weight_quant(each) for each in w]
        b, b_scales = np.stack([codes for codes, _ in parts]), np.stack([scales for _, scales in parts])
        codes, scales = self.fp8.act_quant(x)
        y = self.fp8.grouped_gemm(codes, scales, b, b_scales, group_ends=np.array([7, 7, 18], np.int32))
        for i, (first, last) in enumerate(((0, 7), (7, 7), (7, 18))):
            np.testing.assert_array_equal(y[first:last], self.fp8.gemm(codes[first:last], scales[first:last], *parts[i]))
        np.testing.assert_array_equal(y[18:], 0)
        masked = self.fp8.grouped_gemm(codes[:18].reshape(3, 6, 300), scales[:18].reshape(3, 6, 3), b, b_scales, group_rows=np.array([6, 0, 2], np.int32))
        for i, rows in enumerate((6, 0, 2)):
            np.testing.assert_array_equal(masked[i, :rows], self.fp8.gemm(codes[6 * i:6 * i + rows], scales[6 * i:6 * i + rows], *parts[i]))
            np.testing.assert_array_equal(masked[i, rows:], 0)
        ends = np.array([7, 7, 18], np.int32)
        for wrong, words in ((lambda: self.fp8.grouped_gemm(codes, scales, b, b_scales), "neither"),
                             (lambda: self.fp8.grouped_gemm(codes, scales, b, b_scales, group_ends=ends[:2]), r"\(3,\)"),
                             (lambda: self.fp8.grouped_gemm(codes, scales, b, b_scales, group_ends=ends[::-1]), "ascending"),
                             (lambda: self.fp8.grouped_gemm(codes, scales, b, b_scales, group_ends=ends + 10), "at most 20"),
                             (lambda: self.fp8.grouped_gemm(codes, scales, b, b_scales[:2], group_ends=ends), "b_scales")):
            with self.assertRaisesRegex(self.error, words):
                wrong()

    def test_power_of_two_scales(self):
        x = self.rng.standard_normal((4, 256), dtype=np.float32)
        scales = self.fp8.act_quant(x, power_of_two=True)[1]
        plain = self.fp8.act_quant(x)[1]
        np.testing.assert_array_equal(np.frexp(scales)[0], 0.5)
        self.assertTrue(np.all((plain <= scales) & (scales < 2 * plain)))

    def test_fused_steps(self):
        x, up = (self.rng.standard_normal((4, 256), dtype=np.float32) for _ in range(2))
        weight = self.rng.standard_normal(256, dtype=np.float32)
        for got, wanted in ((self.fp8.act_quant(x, norm_weight=weight), x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * weight),
                            (self.fp8.act_quant(x, up=up), x / (1 + np.exp(-x)) * up)):
            real = self.fp8.weight_dequant(*got, (1, 128))
            self.assertLess(np.linalg.norm(real - wanted) / np.linalg.norm(wanted), 0.04)

    @unittest.skipIf(torch is None, "no torch: LOWBIT_TORCH_VENV=FOLDER, see scripts/test.sh")
    def test_torch(self):
        bits = torch.arange(65536, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
        x = bits[bits.float().abs() <= 448]
        x = torch.cat([x, torch.zeros(-len(x) % 127, dtype=torch.bfloat16)]).reshape(-1, 127)
        x = torch.cat([torch.full((len(x), 1), 448, dtype=torch.bfloat16), x], 1)  # scale 1
        codes, scales = self.fp8.act_quant(x)
        self.assertEqual(codes.dtype, torch.float8_e4m3fn)
        self.assertTrue(torch.equal(scales, torch.ones_like(scales)))
        self.assertTrue(torch.equal(codes.view(torch.uint8), x.to(torch.float8_e4m3fn).view(torch.uint8)))
        x = torch.randn(80000, 128) * torch.randn(80000, 1).exp()
        codes, scales = self.fp8.act_quant(x)
        wanted = x.abs().amax(-1, keepdim=True) / 448.0
        self.assertTrue(torch.equal(scales, wanted))
        self.assertTrue(torch.equal(codes.view(torch.uint8), (x / wanted).to(torch.float8_e4m3fn).view(torch.uint8)))
        w = torch.randn(64, 256)
        w_codes, w_scales = self.fp8.weight_quant(w)
        y = self.fp8.gemm(*self.fp8.act_quant(w), w_codes, w_scales, dtype="bf16")
        self.assertEqual(y.dtype, torch.bfloat16)
        self.assertLess(((y.float() - w @ w.T).norm() / (w @ w.T).norm()).item(), 0.05)

    def test_refusals(self):
        x = np.ones((2, 128), np.float32)
        codes, scales = self.fp8.act_quant(x)
        for call, words in ((lambda: self.fp8.act_quant(x.astype(np.float64)), "float64"),
                            (lambda: self.fp8.act_quant(x, block=0), "blocks of 1 x 0"),
                            (lambda: self.fp8.act_quant(x, scale_order="z"), "row or column"),
                            (lambda: self.fp8.act_quant(x, norm_weight=x[0, :4]), "norm_weight"),
                            (lambda: self.fp8.act_quant([1.0]), "a NumPy array"),
                            (lambda: self.fp8.weight_quant(x[0]), "2: outputs"),
                            (lambda: self.fp8.weight_dequant(codes, scales), r"\(2, 1\)"),
                            (lambda: self.fp8.gemm(codes, scales, codes[:, :5], scales), r"\[\.\.\., K\]"),
                            (lambda: self.fp8.gemm(codes, scales[:1], codes, scales), "a_scales"),
                            (lambda: self.fp8.gemm(codes, scales, codes, scales, dtype="f64"), "f32, f16 or bf16"),
                            # Blocks of 1 once they are cut to 64 bits, with more scales than there is room for.
                            (lambda: self.fp8.act_quant(x, block=2**64 + 1), "block_columns: got 18446744073709551617"),
                            (lambda: self.fp8.weight_quant(x, (2**64 + 1, 2**64 + 1)), "block_rows"),
                            (lambda: self.fp8.weight_dequant(codes, scales[:1], (2**64 + 1, 2**64 + 1)), "block_rows")):
            with self.assertRaisesRegex(self.error, words):
                call()
        self.assertEqual(self.fp8.act_quant(np.ones((0, 128), np.float32))[1].shape, (0, 1))
