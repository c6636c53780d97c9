"""Quantization inside a training graph: values as they are stored, gradients of the straight-through estimator. Needs
torch."""
import importlib.util
import math
import sys
import unittest

from cli import SOURCE

MISSING = [m for m in ("numpy", "torch") if importlib.util.find_spec(m) is None]


@unittest.skipIf(MISSING, f"Python packages {' and '.join(MISSING)} are not installed")
class FakeQuantization(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        sys.path.insert(0, str(SOURCE / "python"))
        import torch
        torch.set_num_threads(1)

    def quantize(self, w, scale, grid, zero=None, levels=None):
        import torch
        from lowbit.fake_quant import KERNELS, FakeQuantize
        leaves = [torch.tensor(x, requires_grad=True) if x is not None else None for x in ([w], [[scale]], None if zero is None else [[zero]])]
        out = FakeQuantize.apply(*leaves, None if levels is None else torch.tensor(levels), grid, KERNELS)
        out.backward(torch.tensor([[1.0, 10.0, 100.0][:len(w)]]))
        return out[0].tolist(), *(None if x is None else x.grad.flatten().tolist() for x in leaves)

    def test_inside_and_outside_of_an_even_grid(self):
        from lowbit.fake_quant import Grid
        # Levels -2 .. 1 of step 0.5; 0.6 is inside (u = 1.2 < 1.5: level 1), 0.2 -> level 0, -3 far outside -> level
        # -2.
        value, dw, ds, _ = self.quantize([0.6, 0.2, -3.0], 0.5, Grid(-2.0, 1.0, 4))
        self.assertEqual(value, [0.5, 0.0, -1.0])
        self.assertEqual(dw, [1.0, 10.0, 0.0])
        self.assertAlmostEqual(ds[0], (1 - 1.2) + 10 * (0 - 0.4) + 100 * -2, places=4)

    def test_negative_scales_and_offsets(self):
        from lowbit.fake_quant import Grid
        value, dw, _, _ = self.quantize([0.9, -0.45], -0.5, Grid(-2.0, 1.0, 4))
        self.assertEqual((value, dw), ([1.0, -0.5], [1.0, 10.0]))
        value, dw, ds, dz = self.quantize([1.1, 3.0], 0.5, Grid(-2.0, 1.0, 4, False, True), zero=1.0)
        self.assertEqual((value, dw, dz), ([1.0, 1.5], [1.0, 0.0], [10.0]))
        self.assertAlmostEqual(ds[0], (0 - 0.2) + 10 * 1, places=5)

    def test_tables(self):
        from lowbit.fake_quant import Grid
        value, dw, _, _ = self.quantize([0.3, 1.9, 9.0], 1.0, Grid(0.0, 0.0, 4, True), levels=[[-1.0, 0.0, 0.5, 2.0]])
        self.assertEqual((value, dw), ([0.5, 2.0, 2.0], [1.0, 10.0, 0.0]))

    def test_a_table_for_each_row(self):
        import torch
        from lowbit.fake_quant import Grid, limits, nearest_index, nearest_value
        torch.manual_seed(0)
        levels, u, grid = torch.randn(5, 8).sort(-1).values, 3 * torch.randn(5, 64), Grid(0.0, 0.0, 8, True)
        nearest = (u[:, :, None] - levels[:, None]).abs().argmin(-1)
        self.assertTrue(torch.equal(nearest_index(u, grid, levels).long(), nearest))
        self.assertTrue(torch.equal(nearest_value(u, grid, levels), levels.gather(1, nearest)))
        low, high = limits(grid, levels)
        self.assertTrue(bool((low[:, 0] < levels[:, 0]).all() and (high[:, 0] > levels[:, -1]).all()))

    def test_stored_scales(self):
        """A scale in training is the one that the file holds, never 0 or infinite, and its gradient passes."""
        import torch
        from lowbit.fake_quant import round_scale
        scale = torch.tensor([1 / 3, 1e-12, -1e-12, 1e9], requires_grad=True)
        rounded = round_scale(scale, torch.float16)
        self.assertEqual(rounded.tolist(), [float(torch.tensor(1 / 3).half()), 2.0**-24, -(2.0**-24), 65504.0])
        rounded.sum().backward()
        self.assertEqual(scale.grad.tolist(), [1.0] * 4)
        self.assertTrue(math.isfinite(rounded.sum().item()))

    def test_double_scales(self):
        """Codes of 1 to 127 of either sign under a super-scale; the gradient passes."""
        import torch
        from lowbit.fake_quant import round_double
        scale = torch.tensor([0.26, -0.26, 0.001, -0.0, 99.0], requires_grad=True)
        got = round_double(scale, torch.full((5,), 0.125))
        self.assertEqual(got.tolist(), [0.25, -0.25, 0.125, 0.125, 127 * 0.125])
        got.sum().backward()
        self.assertEqual(scale.grad.tolist(), [1.0] * 5)

    def test_kl_gradient(self):
        """The gradient that distillation writes by hand is autograd's."""
        import torch
        from lowbit.recover.distill import kl_and_gradient
        torch.manual_seed(0)
        t, s = torch.randn(5, 8), torch.randn(5, 8, requires_grad=True)
        head, own = torch.randn(20, 8), torch.randn(20, 8, requires_grad=True)
        kl, gradient, of_head = kl_and_gradient(t, s.detach(), head, own.detach(), 0.25, True)
        p, q = (t @ head.T).log_softmax(-1), (s @ own.T).log_softmax(-1)
        wanted = (p.exp() * (p - q)).sum()
        (0.25 * wanted).backward()
        self.assertAlmostEqual(float(kl), float(wanted), places=4)
        self.assertTrue(torch.allclose(gradient, s.grad, atol=1e-5))
        self.assertTrue(torch.allclose(of_head, own.grad, atol=1e-5))
        self.assertIsNone(kl_and_gradient(t, s.detach(), head, own.detach(), 0.25, False)[2])
        s.grad = own.grad = None
        same, gradient, of_head = kl_and_gradient(t, s.detach(), head, own.detach(), 0.25, True, 0.3, 2.0)
        p, q = (t @ head.T).log_softmax(-1), (s @ own.T).log_softmax(-1)
        hot_p, hot_q = (t @ head.T / 2).log_softmax(-1), (s @ own.T / 2).log_softmax(-1)
        (0.25 * (0.7 * (p.exp() * (p - q)).sum() + 0.3 * 4 * (hot_p.exp() * (hot_p - hot_q)).sum())).backward()
        self.assertAlmostEqual(float(same), float(kl), places=5)
        self.assertTrue(torch.allclose(gradient, s.grad, atol=1e-5))
        self.assertTrue(torch.allclose(of_head, own.grad, atol=1e-5))

    def test_sampling_cache_equals_the_forward_pass(self):
        """With one token so likely that nothing else is drawn, sampled sequences are what the whole forward pass
        says."""
        import numpy as np
        import torch
        from lowbit.llama import hidden_states, linear_names, norm_names
        from lowbit.recover.sampling import _continue
        from lowbit.sources import LlamaConfig
        config = LlamaConfig(16, 2, 4, 2, 4, 24, 11, 1e-5, 1e4, 32)
        torch.manual_seed(1)
        shapes = {"q_proj": (16, 16), "k_proj": (8, 16), "v_proj": (8, 16), "o_proj": (16, 16), "gate_proj": (24, 16), "up_proj": (24, 16),
                  "down_proj": (16, 24)}
        weights = {"model.norm.weight": 1 + 0.1 * torch.randn(16), "model.embed_tokens.weight": torch.randn(11, 16),
                   "lm_head.weight": 500 * torch.randn(11, 16)}
        for layer in range(2):
            weights |= {n: torch.randn(shapes[n.split(".")[-2]]) / 4 for n in linear_names(layer)}
            weights |= {n: 1 + 0.1 * torch.randn(16) for n in norm_names(layer)}
        tokens = torch.randint(0, 11, (3, 12))
        counts = [2, 5, 1]
        given = torch.arange(12)[None] < torch.tensor(counts)[:, None]
        start = tokens.clone()
        _continue(weights, config, "lm_head.weight", tokens, given, torch.full((3, 1), 0.5), torch.zeros(3, 1), torch.float32,
                  torch.Generator().manual_seed(0))
        for b, count in enumerate(counts):
            self.assertEqual(tokens[b, :count].tolist(), start[b, :count].tolist())
        with torch.no_grad():
            best = (hidden_states(tokens, config, weights.__getitem__, torch.float32) @ weights["lm_head.weight"].T).argmax(-1)
        for b, count in enumerate(counts):
            self.assertEqual(tokens[b, count:].tolist(), best[b, count - 1:-1].tolist())
        self.assertTrue(np.isfinite(weights["lm_head.weight"].numpy()).all())


if __name__ == "__main__":
    unittest.main()
