"""lowbit.torch: operators that torch.compile and CUDA graphs see through, and a linear layer. On a GPU, where there is
one, against the CPU."""
import subprocess
import tempfile
import unittest
from pathlib import Path

import cli

try:
    import numpy as np
    import torch
    import xxhash  # noqa: F401
except ImportError:
    torch = None

GPU = torch is not None and torch.cuda.is_available()
DEVICES = ["cpu", "cuda"] if GPU else ["cpu"]


def norm_error(got, wanted):
    return ((got.double() - wanted.double()).norm() / wanted.double().norm()).item()


@unittest.skipIf(torch is None, "no torch: LOWBIT_TORCH_VENV=FOLDER, see scripts/test.sh")
class TorchOperators(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cli.load_package()
        import lowbit
        import lowbit.torch
        from lowbit import fp8, operators
        cls.lowbit, cls.ops, cls.fp8, cls.operators, cls.error = lowbit, lowbit.torch, fp8, operators, lowbit.LowbitError
        torch.manual_seed(3)

    def products(self, device):
        """Each operator with arguments of its own."""
        def on(t):
            return t.to(device)
        o = self.ops
        x = torch.randn(3, 5, 256, dtype=torch.bfloat16)
        codes, s = self.operators.quantize_activations_int8(x)
        w2, ws = torch.randint(0, 256, (48, 64), dtype=torch.uint8), torch.tensor([0.5, 2.0])
        bits, means = self.operators.binarize_activations(x)
        w1, w4 = torch.randint(0, 256, (40, 32), dtype=torch.uint8), torch.randint(0, 256, (40, 128), dtype=torch.uint8)
        a, sa = self.fp8.act_quant(x)
        b, sb = self.fp8.weight_quant(torch.randn(40, 256))
        return {
            "quantize": (lambda: o.quantize_activations_int8(on(x), torch.bfloat16), 0),
            "bitlinear": (lambda: o.bitlinear_int8xint2(on(codes), on(w2), on(s), on(ws), row_ends=[16, 48]), 0),
            "tiles": (lambda: o.bitlinear_int8xint2(on(codes), on(w2), on(s), on(ws), row_ends=[16, 48], weight_order="tiles", s_multiplies=True,
                                                    dtype=torch.float32), 0),
            "binarize": (lambda: o.binarize_activations(on(x)), 0),
            "bits": (lambda: o.binary_matmul(on(bits), on(w1), 256, on(means), dtype=torch.float16), 0),
            "quantized_mm": (lambda: o.quantized_mm(on(x), on(w4), 4, 0.5, on(torch.rand(40, 2)) * 0 + 0.25), 1e-2),
            "row ranges": (lambda: o.quantized_mm(on(x), on(w4), 4, 0.5, on(torch.tensor([0.1, 0.7])), row_ends=[10, 40]), 1e-2),
            "act_quant": (lambda: o.act_quant_fp8(on(x)), 0),
            "weight_quant": (lambda: o.weight_quant_fp8(on(x[0])), 0),
            "weight_dequant": (lambda: o.weight_dequant_fp8(on(b), on(sb)), 0),
            "groups": (lambda: o.fp8_grouped_gemm(on(a).reshape(15, 256), on(sa).reshape(15, 2), on(torch.stack([b, b, b])), on(torch.stack([sb, sb / 2, sb])),
                                                  on(torch.tensor([4, 4, 13], dtype=torch.int32))), 1e-2),
            "masked": (lambda: o.fp8_grouped_gemm(on(a), on(sa), on(torch.stack([b, b, b])), on(torch.stack([sb, sb / 2, sb])), None,
                                                  on(torch.tensor([5, 0, 2], dtype=torch.int32))), 1e-2),
            "gemm": (lambda: o.fp8_gemm(on(a), on(sa), on(b), on(sb)), 1e-2),
        }

    @unittest.skipUnless(GPU, "no CUDA device")
    def test_a_gpu_gives_the_cpus_results(self):
        torch.manual_seed(7)
        here = {name: call() for name, (call, _) in self.products("cpu").items()}
        torch.manual_seed(7)
        for name, (call, tolerance) in self.products("cuda").items():
            with self.subTest(name):
                got, wanted = call(), here[name]
                for g, w in zip(got, wanted) if isinstance(got, tuple) else ((got, wanted),):
                    self.assertEqual((g.device.type, g.dtype, g.shape), ("cuda", w.dtype, w.shape))
                    if tolerance:
                        self.assertLess(norm_error(g.cpu(), w), tolerance)
                    else:
                        self.assertTrue(torch.equal(g.cpu().view(torch.uint8), w.view(torch.uint8)))

    @unittest.skipUnless(GPU, "no CUDA device")
    def test_streams_graphs_and_rows_apart(self):
        wide = torch.randn(6, 700, device="cuda", dtype=torch.bfloat16)
        x = wide[:, 100:356]
        layer = self.ops.Linear.from_float(torch.nn.Linear(256, 96).cuda(), "ternary")
        wanted = layer(x.contiguous())
        self.assertTrue(torch.equal(layer(x), wanted))
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)  # what another stream computes would be done first
            late = x + 1
            got = layer(late)
        stream.synchronize()
        self.assertTrue(torch.equal(got, layer(x + 1)))
        for format in ("ternary", "int4", "fp8", "binary"):
            layer = self.ops.Linear.from_float(torch.nn.Linear(256, 96).cuda(), format)
            held = x.clone()
            layer(held)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = layer(held)
            held.copy_(x * 3)
            graph.replay()
            self.assertTrue(torch.equal(y, layer(x * 3)), format)

    @unittest.skipUnless(GPU, "no CUDA device")
    def test_refusals_on_a_gpu(self):
        x, w, one = torch.zeros(2, 64, dtype=torch.int8, device="cuda"), torch.zeros(16, 16, dtype=torch.uint8), torch.ones(1, device="cuda")
        s = torch.ones(2, device="cuda")
        call = self.operators.bitlinear_int8xint2
        for wrong, words in ((lambda: call(x, w, s, one), r"weight: got Tensor on cpu, wanted a torch tensor on cuda:0. hint: x.to\('cuda:0'\)"),
                             (lambda: call(x, w.cuda().T.contiguous().T, s, one), r"weight: got strides \(1, 16\) .*hint: x.contiguous\(\)"),
                             (lambda: call(x.float(), w.cuda(), s, one), "x: got torch.float32, wanted torch.int8"),
                             (lambda: call(x, w.cuda()[:, :15].contiguous(), s, one), r"weight: got shape \(16, 15\), wanted \(N, 16\)"),
                             (lambda: call(x, w.cuda(), s, torch.ones(2, device="cuda"), row_ends=[16, 16]), "row_ends: got"),
                             (lambda: self.operators.int2_to_tiles(w.cuda()), "one on the CPU"),
                             (lambda: call(np.zeros((2, 64), np.int8), w.cuda(), s, one), "a NumPy array")):
            with self.assertRaisesRegex(self.error, words):
                wrong()

    @unittest.skipUnless(GPU, "no CUDA device")
    def test_other_libraries_arrays(self):
        try:
            import cupy
        except ImportError:
            self.skipTest("no cupy")
        x = torch.randn(4, 128)
        codes, s = self.operators.quantize_activations_int8(cupy.from_dlpack(x.cuda()))
        self.assertIsInstance(codes, cupy.ndarray)
        self.assertTrue(torch.equal(torch.from_dlpack(codes).cpu(), self.operators.quantize_activations_int8(x)[0]))

    def test_arrays_by_dlpack(self):
        class Foreign:
            """An array of a library that this one does not know."""
            def __init__(self, x):
                self.x = x

            def __dlpack__(self, **keywords):
                return self.x.__dlpack__(**keywords)

            def __dlpack_device__(self):
                return self.x.__dlpack_device__()

        x = np.random.default_rng(1).standard_normal((4, 96)).astype(np.float32)
        for got, wanted in zip(self.operators.binarize_activations(Foreign(x)), self.operators.binarize_activations(x)):
            np.testing.assert_array_equal(np.from_dlpack(got), wanted)

    def test_one_row_has_no_distance_to_the_next(self):
        from lowbit.arrays import Arrays
        wide = torch.zeros(3, 97)
        # 97 would keep it from kernels for aligned rows
        self.assertEqual(Arrays(wide).rows("x", wide[:1, :96])[1:], (1, 96, 96))
        self.assertEqual(Arrays(wide).rows("x", wide[:, :96])[1:], (3, 96, 97))

    def test_operators_are_registered(self):
        for device in DEVICES:
            x = torch.randn(4, 128, dtype=torch.bfloat16, device=device)
            codes, s = self.ops.quantize_activations_int8(x)
            w = torch.randint(0, 256, (32, 32), dtype=torch.uint8, device=device)
            ws, scales = torch.ones(1, device=device), torch.rand(32, 2, device=device)
            a, sa = self.ops.act_quant_fp8(x)
            b, sb = self.ops.weight_quant_fp8(x)
            bits, means = self.ops.binarize_activations(x)
            t = torch.ops.lowbit
            for op, args in ((t.quantize_activations_int8, (x, torch.bfloat16)), (t.bitlinear_int8xint2, (codes, w, s, ws)),
                             (t.binarize_activations, (x,)), (t.binary_matmul, (bits, w[:, :16].contiguous(), 128, means)),
                             (t.quantized_mm, (x, w, 2, 1.0, scales)), (t.act_quant_fp8, (x,)), (t.weight_quant_fp8, (x,)),
                             (t.weight_dequant_fp8, (b, sb)), (t.fp8_gemm, (a, sa, b, sb))):
                with self.subTest(str(op), device=device):
                    eight = any(torch.is_tensor(a) and a.dtype == torch.float8_e4m3fn for a in args) or "quant_fp8" in str(op)
                    # torch cannot compare tensors of FP8
                    tests = ("test_faketensor",) if eight else ("test_schema", "test_faketensor")
                    torch.library.opcheck(op.default, args, test_utils=tests)

    def test_linear(self):
        for device in DEVICES:
            linear = torch.nn.Linear(300, 70).to(device)
            x = torch.randn(2, 9, 300, device=device)
            wanted = linear(x)
            for format, most in (("int8", 0.01), ("int4", 0.12), ("int2", 0.8), ("binary", 0.7), ("fp8", 0.05), ("ternary", 0.6)):
                with self.subTest(format, device=device):
                    layer = self.ops.Linear.from_float(linear, format)
                    y = layer(x)
                    self.assertEqual((y.dtype, y.shape, y.device), (wanted.dtype, wanted.shape, wanted.device))
                    self.assertLess(norm_error(y, wanted), most)
                    self.assertLess(norm_error(layer(x.bfloat16()).float(), y), 0.06 if format == "ternary" else 0.02)
                    self.assertEqual((layer.half().scales.dtype, layer.codes.dtype), (torch.float32, torch.uint8))
                    again = self.ops.Linear(format, (70, 300), torch.empty_like(layer.codes), torch.empty_like(layer.scales),
                                            torch.empty_like(layer.bias), layer.group)
                    again.load_state_dict(layer.state_dict())
                    self.assertTrue(torch.equal(again(x), y))
        with self.assertRaises(self.error):
            self.ops.Linear.from_float(linear, "int3")

    def test_linear_of_a_checkpoint(self):
        if not Path(cli.BINARY).exists():
            self.skipTest("no binary")
        with tempfile.TemporaryDirectory() as folder:
            source = cli.make_model(f"{folder}/model")
            for number, options in enumerate((["int4", "--group", "48"], ["ternary", "--group", "tensor"], ["fp8", "--group", "128x128"],
                                              ["int8", "--group", "row"], ["int3", "--group", "64"])):
                target = f"{folder}/{number}"
                subprocess.run([cli.BINARY, "quantize", source, target, "--format", *options], check=True, capture_output=True)
                checkpoint = self.lowbit.Checkpoint(target)
                name = next(n for n in checkpoint.layers if "down_proj" in n)
                weight = checkpoint.weight(name)
                if options[0] == "int3":
                    with self.assertRaisesRegex(self.lowbit.errors.Unsupported, "int3 g64"):
                        self.ops.Linear.from_checkpoint(target, name)
                    continue
                x = torch.randn(3, weight.shape[1])
                y = self.ops.Linear.from_checkpoint(target, name)(x)
                wanted = x @ torch.from_numpy(weight.dequantize()).T
                self.assertLess(norm_error(y, wanted), {"fp8": 0.04, "ternary": 0.02}.get(options[0], 1e-5), options)

    @unittest.skipUnless(GPU, "no CUDA device: torch.compile takes a C++ compiler and a minute on a CPU")
    def test_compiled(self):
        layer = torch.nn.Sequential(self.ops.Linear.from_float(torch.nn.Linear(256, 512).cuda(), "ternary"), torch.nn.SiLU(),
                                    self.ops.Linear.from_float(torch.nn.Linear(512, 64).cuda(), "fp8"))
        x = torch.randn(4, 256, device="cuda", dtype=torch.bfloat16)
        compiled = torch.compile(layer, fullgraph=True)
        self.assertLess(norm_error(compiled(x), layer(x)), 0.05)


if __name__ == "__main__":
    unittest.main()
