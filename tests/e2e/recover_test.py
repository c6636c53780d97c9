"""python -m lowbit.recover: what it trains, what it writes, what it refuses. Needs torch."""
import contextlib
import importlib.util
import io
import json
import os
import subprocess
import sys
import unittest

import cli
from cli import SOURCE, TIMEOUT_S, CliTest, all_but_generation, environment, files_below, make_model

MISSING = [m for m in ("numpy", "xxhash", "torch") if importlib.util.find_spec(m) is None]
QUICK = ("--tokens", "4K", "--sample", "1K", "--sequence-length", "64", "--batch", "4", "--block-steps", "6", "--block-sequences", "16",
         "--threads", "1", "--device", "cpu", "--quiet")


@unittest.skipIf(MISSING, f"Python packages {' and '.join(MISSING)} are not installed")
class RecoverCase(CliTest):
    """A text to train on, and how to call lowbit.recover and check what it writes."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        sys.path.insert(0, str(SOURCE / "python"))
        cls.text = cls.models / "text.txt"
        cls.text.write_text(cli.text(3000))

    def recover(self, start, *options, code=0, teacher=None, text=None, process=False):
        """Runs it, in this process or as the module of a new one; gives stderr or, with --json, the report."""
        arguments = [start, "--teacher", teacher or self.hf, "--data", text or self.text, "--lowbit", cli.BINARY, *QUICK, *options]
        arguments = list(map(str, arguments))
        if process:
            path = os.pathsep.join([str(SOURCE / "python"), os.environ.get("PYTHONPATH", "")])
            done = subprocess.run([sys.executable, "-m", "lowbit.recover", *arguments], capture_output=True, text=True, timeout=TIMEOUT_S,
                                  env=environment(PYTHONPATH=path, OMP_NUM_THREADS="1"))
            got, out, errors = done.returncode, done.stdout, done.stderr
        else:
            from lowbit.recover.__main__ import main
            streams = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
                try:
                    got = main(arguments)
                except SystemExit as left:  # argparse
                    got = left.code
            out, errors = (stream.getvalue() for stream in streams)
        self.assertEqual(got, code, out[-500:] + errors[-2000:])
        return json.loads(out) if "--json" in options else errors

    def refused(self, *arguments, **keywords):
        error = self.recover(*arguments, code=1, **keywords)
        self.assertRegex(error, cli.ERROR_LINE)
        self.assertNotIn("Traceback", error)
        return error

    def check_decoded(self, out):
        """lowbit decodes the file to what the Python reader does, and computes the perplexity that torch does."""
        import numpy as np
        import torch
        from lowbit import Checkpoint
        from lowbit.llama import hidden_states
        from lowbit.safetensors_file import SafetensorsFile
        from lowbit.sources import LlamaConfig
        self.assertEqual(self.json("verify", out)["problems"], [])
        checkpoint = Checkpoint(out)
        dump = cli.BINARY.parent / "lowbit_io_dump"
        subprocess.run([dump, self.dir / "dump", out], check=True)
        expected = SafetensorsFile(self.dir / "dump/expected.safetensors")
        self.assertEqual(sorted(expected.names), checkpoint.names)
        for name in expected.names:
            self.assertTrue(np.array_equal(expected.array(name), checkpoint.tensor(name)), name)
        report = self.json("ppl", out, "-f", self.text, "-c", 64, "--chunks", 4, "--act", "f32")
        ids = self.json("tokenize", out, "--file", self.text)["ids"]
        tokens = torch.tensor(ids[:4 * 64]).view(4, 64)
        weights = {n: torch.from_numpy(np.array(checkpoint.tensor(n))) for n in checkpoint.names}
        with torch.no_grad():
            h = hidden_states(tokens, LlamaConfig.parse(checkpoint.config, out), weights.__getitem__, torch.float32)
            scores = (h @ weights["model.embed_tokens.weight"].T).log_softmax(-1)[:, 32:63]
            ppl = float(torch.exp(-scores.gather(-1, tokens[:, 33:, None]).mean()))
        self.assertAlmostEqual(report["ppl"] / ppl, 1, delta=2e-3)  # the runtime's cache of keys and values is f16


class Recover(RecoverCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        (cls.models / "mlp.txt").write_text("mlp trellis3 scale=double fit=lsq\n")
        cls.start = {}
        for options in ("int3 --group 32", "ternary-packed --group 48", "int2 --group 32 --zero", "codebook2", "int3 --scale double", "trellis2 --fit lsq",
                        "trellis2 --scale double --fit lsq", f"codebook2 --fit lsq --recipe {cls.models / 'mlp.txt'}"):
            out = cls.models / options.split()[0] / str(len(cls.start))
            out.parent.mkdir(exist_ok=True)
            subprocess.run([cli.BINARY, "quantize", cls.hf, out, "--quiet", "--format", *options.split()], check=True,
                           stdout=subprocess.DEVNULL, env=environment())
            cls.start[options.partition(" --recipe")[0].replace(" --group 32", "").replace(" --group 48", "")] = out

    def token_file(self, ids):
        import numpy as np
        np.save(self.dir / "ids.npy", np.array(ids))
        return self.dir / "ids.npy"

    def test_a_rotated_checkpoint_is_not_compared_block_by_block(self):
        """As `quantize --rotate` leaves it: other weights, and a note of the rotation."""
        import numpy as np
        from lowbit import Checkpoint, write_checkpoint
        c = Checkpoint(self.start["int3"])
        tensors = {n: c.weight(n) if n in c.layers else c.dense(n) for n in c.names}
        name = "model.embed_tokens.weight"
        tensors[name] = ("F32", np.ascontiguousarray(c.tensor(name)[:, ::-1]))
        write_checkpoint(self.dir / "rotated", c.config, tensors, fit={"rotation": {"seed": 0}, "source_sha256": c.fit["source_sha256"]},
                         side_files={"tokenizer.json": (c.path / "tokenizer.json").read_text()})
        self.assertIn("rotated", self.refused(self.dir / "rotated", "-o", self.dir / "x"))
        self.recover(self.dir / "rotated", "-o", self.dir / "x", "--method", "full", "--force")
        self.assertEqual(self.json("verify", self.dir / "x")["problems"], [])

    def test_blocks_and_full_lower_the_divergence(self):
        out = self.dir / "out"
        report = self.recover(self.start["int3"], "-o", out, "--json", "--tokens", "32K", "--lr", "1e-3", "--keep-stages", process=True)
        self.assertEqual([s["method"] for s in report["stages"]], ["blocks", "full"])
        self.assertLess(report["after"]["kl"], 0.8 * report["before"]["kl"])
        curve = report["stages"][1]["curve"]
        self.assertLess(curve[-1][1], curve[0][1])
        self.check_decoded(out)
        self.assertEqual(json.loads((self.dir / "out.loss.json").read_text())["after"], report["after"])
        self.assertFalse((self.dir / "out.state").exists())
        if importlib.util.find_spec("matplotlib"):
            self.assertEqual((self.dir / "out.loss.png").read_bytes()[:8], b"\x89PNG\r\n\x1a\n")
        config = json.loads((out / "config.json").read_text())["quantization_config"]
        before = json.loads((self.start["int3"] / "config.json").read_text())["quantization_config"]
        self.assertEqual((config["config_groups"], config["layers"]), (before["config_groups"], before["layers"]))
        self.assertEqual(config["fit"]["source_sha256"], before["fit"]["source_sha256"])
        self.assertEqual(config["fit"]["recovery"]["method"], ["blocks", "full"])
        # what --keep-stages wrote
        self.recover(self.start["int3"], "-o", self.dir / "alone", "--method", "blocks", "--force")
        self.assertEqual(*(all_but_generation(self.dir / name / "model.safetensors") for name in ("alone", "out-blocks")))

    def test_blocks_on_sampled_sequences(self):
        text, sampled = (self.recover(self.start["int3"], "-o", self.dir / name, "--json", "--method", "blocks", "--sample", "8K", "--force",
                                      "--block-text-share", share) for name, share in (("text", "1"), ("sampled", "0.25")))
        self.assertEqual(text["stages"][0]["tokens"], sampled["stages"][0]["tokens"])
        self.assertNotIn("sampling", text)
        self.assertEqual(sampled["sampling"]["tokens"], 8000 // 64 * 64)
        kinds = ["any", "begin", "chat", "opening", "text"]
        self.assertEqual((sorted(sampled["sampling"]["sequences"]), sorted(sampled["after"]["kinds"])), (kinds, kinds))
        for part in ("before", "after"):
            parts = [sampled[part]["kl"], *sampled[part]["kinds"].values()]
            self.assertAlmostEqual(sampled[part]["kl_mean"], sum(parts) / 6)
        self.assertEqual((text["after"]["kinds"], text["after"]["kl_mean"]), ({}, text["after"]["kl"]))
        self.assertNotEqual(text["stages"][0]["blocks"][0]["first"], sampled["stages"][0]["blocks"][0]["first"])
        self.recover(self.start["int3"], "-o", self.dir / "x", "--sample-temperature", "1,0.5", code=2)
        self.recover(self.start["int3"], "-o", self.dir / "x", "--block-text-share", "2", code=2)
        self.recover(self.start["int3"], "-o", self.dir / "x", "--sample-mix", "poems=1", code=2)
        self.assertIn("none.txt", self.refused(self.start["int3"], "-o", self.dir / "x", "--method", "full", "--sample-openings", self.dir / "none.txt"))
        (self.dir / "broken.npz").write_bytes(b"no zip")
        self.assertIn("broken.npz", self.refused(self.start["int3"], "-o", self.dir / "x", "--method", "full", "--samples", self.dir / "broken.npz"))

    def test_decay_keeps_weights_near_the_teacher_s(self):
        free, drawn = (self.recover(self.start["int3"], "-o", self.dir / "x", "--force", "--json", "--method", "full", "--lr", "2e-2", "--latent-shrink", "1",
                                    "--sample", "0", "--decay", decay) for decay in ("0", "10"))
        self.assertLess(drawn["weight_error"], 0.95 * free["weight_error"])
        self.recover(self.start["int3"], "-o", self.dir / "x", "--decay", "-1", code=2)

    def test_sequences_that_swap_spans(self):
        """Every second span of two sequences changes sides, each from its own position on; nothing else does."""
        import numpy as np
        from lowbit.recover.data import SPAN, swap_spans, mixed_batch, random
        a, b = np.arange(512), 1000 + np.arange(512)
        swap_spans(a, b, random(0))
        self.assertTrue((a % 1000 == np.arange(512)).all() and (a + b == 1000 + 2 * np.arange(512)).all())
        edges = np.flatnonzero(np.diff(a >= 1000)) + 1
        self.assertTrue(a[0] == 0 and SPAN[0] <= edges[0] and SPAN[0] <= np.diff(edges).min() and np.diff(edges).max() <= SPAN[1])
        samples = np.repeat(np.arange(64)[:, None], 512, 1)
        for part, mixed in ((0.0, 0), (0.5, 4), (1.0, 8)):
            batch = mixed_batch(None, samples, 0.0, 0, 3, 8, part)
            self.assertEqual(sum(len(set(row)) > 1 for row in batch.tolist()), mixed)

    def test_training_on_swapped_spans(self):
        plain, mixed = (self.recover(self.start["int3"], "-o", self.dir / "x", "--force", "--json", "--method", "full", "--swap-spans", share) for share in ("0", "1"))
        self.assertEqual(mixed["stages"][0]["tokens"], plain["stages"][0]["tokens"])
        self.assertNotEqual(mixed["after"]["kl"], plain["after"]["kl"])
        self.assertLess(mixed["after"]["kl"], mixed["before"]["kl"])
        self.recover(self.start["int3"], "-o", self.dir / "y", "--swap-spans", "2", code=2)

    def test_the_gradient_of_every_part_of_the_loss(self):
        import torch
        from lowbit.recover.distill import kl_and_gradient
        generator = torch.Generator().manual_seed(0)
        h, wanted, head = (torch.randn(rows, 12, generator=generator) for rows in (16, 16, 40))
        h[8:] = wanted[8:] + 0.05 * h[8:]  # a score that is nearly the teacher's
        h.requires_grad_()
        said = torch.tensor([3, 0, 39, 7, 7, 1, -1, 20, *range(8, 16)])
        for soft, heat, score in ((0, 1, 0), (0.5, 2, 0), (0.5, 4, 0.2), (1, 4, 0), (0, 1, 3)):
            a, b = wanted @ head.T, h @ head.T

            def kl(t):
                return torch.nn.functional.kl_div((b / t).log_softmax(-1), (a / t).softmax(-1), reduction="sum")

            one_hot = torch.nn.functional.one_hot(said.clamp(min=0), 40) * (said >= 0)[:, None]
            errors = ((b.log_softmax(-1) - a.log_softmax(-1)) * one_hot).view(2, 8, 40).sum((1, 2))
            # where Huber's loss is linear, and where it is square
            self.assertTrue(bool((errors.abs() > 8).any() and (errors.abs() < 8).any()))
            loss = (1 - soft) * kl(1) + soft * heat**2 * kl(heat) + score * torch.nn.functional.huber_loss(errors, torch.zeros(2), reduction="sum", delta=8.0)
            gradient, = torch.autograd.grad(0.1 * loss, h)
            plain, got, _ = kl_and_gradient(wanted, h.detach(), head, head, 0.1, False, soft, heat, score, said)
            self.assertAlmostEqual(float(plain), float(kl(1).detach()), places=4)
            self.assertLess(float((got - gradient).norm() / gradient.norm()), 1e-5)

    def test_training_on_scores(self):
        plain, scored = (self.recover(self.start["int3"], "-o", self.dir / "x", "--force", "--json", "--method", "full", "--score-weight", weight) for weight in ("0", "1"))
        self.assertNotEqual(scored["after"]["kl"], plain["after"]["kl"])
        self.assertLess(scored["after"]["kl"], scored["before"]["kl"])
        self.assertIn("multiple of 8", self.refused(self.start["int3"], "-o", self.dir / "y", "--score-weight", "1", "--sequence-length", "60"))
        self.recover(self.start["int3"], "-o", self.dir / "y", "--score-weight", "-1", code=2)

    def test_sequences_held_out_apart(self):
        samples, held = self.dir / "samples.npz", self.dir / "held.npz"
        for file, mix in ((samples, "any=1"), (held, "begin=1,chat=1")):
            self.recover(self.start["int3"], "-o", self.dir / "x", "--force", "--sample-mix", mix, "--samples", file)
        apart = self.recover(self.start["int3"], "-o", self.dir / "x", "--force", "--json", "--samples", samples, "--held", held)
        self.assertEqual((sorted(apart["before"]["kinds"]), sorted(apart["after"]["kinds"])), (["begin", "chat"],) * 2)
        self.assertIn("other.npz", self.refused(self.start["int3"], "-o", self.dir / "y", "--samples", samples, "--held", self.dir / "other.npz"))

    def test_every_kind_of_format(self):
        for name, start in self.start.items():
            with self.subTest(name):
                out = self.dir / name.replace(" ", "")
                self.recover(start, "-o", out, "--method", "full", "--force")
                self.check_decoded(out)
                self.assertNotEqual(all_but_generation(out / "model.safetensors"), all_but_generation(start / "model.safetensors"))

    def test_double_scales_are_trained_in_blocks(self):
        """By whole codes under super-scales that stay; distillation leaves them."""
        import numpy as np
        from lowbit import Checkpoint
        start, name, got = self.start["int3 --scale double"], "model.layers.0.mlp.up_proj.weight", {}
        for method, options in (("blocks", ("--block-lr-scales", "1e-2")), ("full", ("--lr-scales", "1e-2"))):
            self.recover(start, "-o", self.dir / method, "--method", method, *options, "--force", "--sample", "0")
            got[method] = Checkpoint(self.dir / method).weight(name)
        self.check_decoded(self.dir / "blocks")
        before = Checkpoint(start).weight(name).scale_array()
        unit = np.repeat(got["full"].super_scales.astype(np.float32), 16, axis=1)[:, :before.shape[1]]
        self.assertTrue(np.array_equal(got["blocks"].super_scales, got["full"].super_scales))
        self.assertLessEqual(float(np.abs((got["full"].scale_array() - before) / unit).max()), 0.51)
        self.assertGreater(float(np.mean(np.abs((got["blocks"].scale_array() - before) / unit) > 1)), 0.3)

    def test_scales_keeps_the_codes_and_lora_changes_them(self):
        from lowbit import Checkpoint
        import numpy as np
        before = Checkpoint(self.start["int3"])
        for method, same in (("scales", True), ("lora", False)):
            out = self.dir / method
            self.recover(self.start["int3"], "-o", out, "--method", method, "--lr", "3e-3", "--force", "--sample", "0")
            after = Checkpoint(out)
            self.check_decoded(out)
            equal = [np.array_equal(before.weight(n).codes, after.weight(n).codes) for n in before.layers if "proj" in n]
            self.assertEqual(all(equal), same, method)
            self.assertTrue(any(not np.array_equal(before.weight(n).scales, after.weight(n).scales) for n in before.layers))

    def test_codes_on_a_trellis_stay(self):
        """Whatever the method; their scales are trained, and the other layers' codes."""
        from lowbit import Checkpoint
        import numpy as np
        for start in ("trellis2 --fit lsq", "trellis2 --scale double --fit lsq", "codebook2 --fit lsq"):
            for method in ("blocks", "full", "lora", "scales"):
                with self.subTest(start, method=method):
                    out = self.dir / method
                    self.recover(self.start[start], "-o", out, "--method", method, "--lr", "1e-2", "--lr-scales", "1e-2", "--block-lr", "1e-2", "--block-lr-scales", "1e-2",
                                 "--force")
                    before, after = Checkpoint(self.start[start]), Checkpoint(out)
                    for name in (n for n in before.layers if "proj" in n):
                        a, b = before.weight(name), after.weight(name)
                        same = "trellis" in a.spec.format or method == "scales"
                        self.assertEqual(np.array_equal(a.codes, b.codes), same, name)
                        self.assertFalse(np.array_equal(a.scales, b.scales), name)
            self.check_decoded(out)

    def test_what_is_trained_is_what_is_written(self):
        """For every format, at the start and after a stage: also where scales are rounded anew under larger
        super-scales."""
        import numpy as np
        import torch
        from lowbit import Checkpoint
        from lowbit.llama import linear_names
        from lowbit.recover.student import Student, Trainable
        from lowbit.sources import open_model
        teacher = open_model(self.hf)
        for name, start in self.start.items():
            for method in ("full", "scales"):
                student = Student(Checkpoint(start), teacher, torch.device("cpu"))
                for stage in (None, method):
                    if stage:
                        trainable = Trainable(student, [n for i in range(student.config.layers) for n in linear_names(i)], student.norms, stage)
                        with torch.no_grad():
                            for parameter in (p for group in trainable.groups(lambda grid: 1.0, 1.0, 1.0) for p in group["params"]):
                                parameter.mul_(1 + 0.02 * torch.rand(parameter.shape))
                        trainable.store()
                    written = student.tensors_to_write()
                    for layer in student.layers:
                        self.assertTrue(np.array_equal(student.tensor(layer).numpy(), written[layer].dequantize()), (name, stage, layer))

    def test_rates_of_mixed_levels(self):
        from lowbit.fake_quant import Grid
        from lowbit.recover.distill import rates
        two, three = (Grid(0.0, 0.0, count, True) for count in (4, 8))
        self.assertEqual([rates([two, three], None)(grid) for grid in (two, three)], [7e-4, 4e-4])
        for grids, lr, wanted in (([two, three], 1.4e-3, (1.4e-3, 8e-4)), ([three], 6e-4, (1.05e-3, 6e-4))):
            for grid, rate in zip((two, three), wanted):
                self.assertAlmostEqual(rates(grids, lr)(grid), rate, places=9)
        self.assertEqual([rates([two, three], None, 2.0)(grid) for grid in (two, three)], [1.4e-3, 8e-4])

    def test_scales_and_norms_have_rates_of_their_own(self):
        import numpy as np
        from lowbit import Checkpoint
        before, name = Checkpoint(self.start["int3"]), "model.layers.0.mlp.up_proj.weight"
        for still, moved in (("norms", "scales"), ("scales", "norms")):
            self.recover(self.start["int3"], "-o", self.dir / still, "--method", "scales", f"--lr-{still}", "0", f"--lr-{moved}", "3e-3", "--force",
                         "--sample", "0")
            after = Checkpoint(self.dir / still)
            same = {"scales": np.array_equal(before.weight(name).scales, after.weight(name).scales),
                    "norms": np.array_equal(before.tensor("model.norm.weight"), after.tensor("model.norm.weight"))}
            self.assertEqual(same, {still: True, moved: False})

    def test_the_embedding_is_trained_where_asked(self):
        """Its codes alone change, the file's other parts as without, and what is written is what the runtime
        decodes."""
        import numpy as np
        from lowbit import Checkpoint
        name, checkpoints, reports = "model.embed_tokens.weight", [Checkpoint(self.start["int3"])], []
        for part, options in (("kept", ()), ("trained", ("--train-embedding", "--lr-embedding", "3e-3"))):
            reports.append(self.recover(self.start["int3"], "-o", self.dir / part, "--json", "--method", "full", "--tokens", "32K", "--lr", "1e-3",
                                        "--force", *options))
            checkpoints.append(Checkpoint(self.dir / part))
        self.check_decoded(self.dir / "trained")
        before, kept, trained = (c.weight(name) for c in checkpoints)
        self.assertTrue(np.array_equal(before.codes, kept.codes))
        self.assertFalse(np.array_equal(before.codes, trained.codes))
        self.assertTrue(np.array_equal(before.scales, trained.scales))
        self.assertLess(reports[1]["after"]["kl_mean"], reports[0]["after"]["kl_mean"])

    def test_the_gradient_of_a_trained_table(self):
        """Of embedding and head in one, against what differentiating the divergence gives."""
        import torch
        from lowbit.llama import hidden_states
        from lowbit.recover.distill import Distillation, Kernels
        from lowbit.recover.student import Student, Trainable
        from lowbit import Checkpoint
        from lowbit.llama import linear_names
        from lowbit.sources import open_model
        import numpy as np
        model, device = open_model(self.hf), torch.device("cpu")
        student = Student(Checkpoint(self.start["int3"]), model, device, embedding=True)
        teacher = {n: torch.from_numpy(np.array(model.tensor(n))) for n in model.names}
        names = [n for i in range(student.config.layers) for n in linear_names(i)] + student.tables
        self.assertEqual(student.tables, ["model.embed_tokens.weight"])
        trainable = Trainable(student, names, student.norms)
        work = Distillation(trainable, teacher, model.head, torch.float32, Kernels(False, print))
        tokens = torch.from_numpy(np.random.default_rng(0).integers(0, student.config.vocab, (3, 40)))
        bank = next(b for b in trainable.banks if b.layers[0].name == model.head)
        loss = work.compute(tokens)
        got, bank.latent.grad = bank.latent.grad.clone(), None
        weights = trainable.tensors(torch.float32)
        h = hidden_states(tokens, student.config, weights.__getitem__, torch.float32)
        wanted = hidden_states(tokens, student.config, teacher.__getitem__, torch.float32) @ teacher[model.head].T
        wanted, scores = wanted.log_softmax(-1), (h @ weights[model.head].T).log_softmax(-1)
        kl = (wanted.exp() * (wanted - scores)).sum() / tokens.numel()
        kl.backward()
        self.assertAlmostEqual(float(loss), float(kl), places=5)
        self.assertLess(float((got - bank.latent.grad).norm() / bank.latent.grad.norm()), 1e-4)

    def test_same_bytes_also_when_stopped_and_continued(self):
        once, twice, stopped = (self.dir / n for n in ("once", "twice", "stopped"))
        self.recover(self.start["int3"], "-o", once)
        self.recover(self.start["int3"], "-o", twice)
        self.assertEqual(files_below(once), files_below(twice))
        for steps in (1, 8):  # in the blocks, then in the distillation
            self.recover(self.start["int3"], "-o", stopped, "--stop-after", str(steps), code=130)
            self.assertFalse(stopped.exists())
        self.recover(self.start["int3"], "-o", stopped)
        self.assertEqual(files_below(once), files_below(stopped))
        self.recover(self.start["int3"], "-o", stopped, "--force", "--seed", "1")
        self.assertNotEqual(files_below(once), files_below(stopped))

    def test_shrunk_weights_keep_their_codes(self):
        """Before distillation latent weights move towards their levels: none changes its code, and none is left beside
        a border."""
        import torch
        from lowbit import Checkpoint
        from lowbit.fake_quant import position
        from lowbit.recover.student import Student
        from lowbit.sources import open_model
        for name in ("int3", "codebook2", "int2 --zero"):
            for layer in Student(Checkpoint(self.start[name]), open_model(self.hf), torch.device("cpu")).layers.values():
                before = layer.to_weight().codes
                layer.shrink_latent(0.5)
                self.assertTrue((layer.to_weight().codes == before).all())
                if layer.levels is None and layer.zero is None:
                    u = (position(layer.latent, layer.stored_scale(), None, layer.grid) - layer.grid.first) / layer.grid.step
                    inside = (u > 0) & (u < layer.grid.count - 1)
                    self.assertLess(float((u - u.round()).abs()[inside].max()), 0.26)

    def test_teachers(self):
        gguf = make_model(self.dir / "teacher.gguf")
        imported = self.dir / "imported"
        self.lowbit("import", self.hf, imported, "--quiet")
        self.recover(self.start["int3"], "-o", self.dir / "hf")
        self.recover(self.start["int3"], "-o", self.dir / "imp", teacher=imported)
        weights = all_but_generation(self.dir / "hf/model.safetensors")  # the teacher's path is in config.json
        self.assertEqual(weights, all_but_generation(self.dir / "imp/model.safetensors"))
        if importlib.util.find_spec("gguf"):
            self.recover(self.start["int3"], "-o", self.dir / "gguf", teacher=gguf)
            self.assertEqual(weights, all_but_generation(self.dir / "gguf/model.safetensors"))
        other = make_model(self.dir / "other", "--seed", "2")
        self.assertIn("embedding", self.refused(self.start["int3"], "-o", self.dir / "x", teacher=other))
        deeper = make_model(self.dir / "deeper", "--layers", "3")
        self.assertIn("layers 3", self.refused(self.start["int3"], "-o", self.dir / "x", teacher=deeper))
        self.assertFalse((self.dir / "x").exists())

    def test_refused(self):
        out = self.dir / "x"
        short = self.dir / "short.txt"
        short.write_text("too short")
        self.assertIn("sequence", self.refused(self.start["int3"], "-o", out, text=short))
        self.assertIn("missing.txt", self.refused(self.start["int3"], "-o", out, text=self.dir / "missing.txt"))
        self.assertIn("config.json", self.refused(self.dir, "-o", out))
        self.assertIn("lowbit", self.refused(self.hf, "-o", out))
        self.assertIn("already there", self.refused(self.start["int3"], "-o", self.start["int3"]))
        self.recover(self.start["int3"], "-o", out, "--method", "magic", code=2)
        self.recover(self.start["int3"], "-o", out, "--tokens", "many", code=2)
        self.recover(self.start["int3"], "-o", out, "--batch", "0", code=2)
        self.assertIn("missing.npy", self.refused(self.start["int3"], "-o", out, text=self.dir / "missing.npy"))
        self.assertIn("tokens below", self.refused(self.start["int3"], "-o", out, text=self.token_file([0, 5000] * 100)))
        self.assertIn("--sequence-length", self.refused(self.start["int3"], "-o", out, "--sequence-length", "8"))
        self.assertFalse(out.exists())

    def test_divergence_stops(self):
        error = self.refused(self.start["int3"], "-o", self.dir / "x", "--method", "full", "--lr", "3e4", "--lr-scales", "1e4",
                             "--tokens", "16K")
        self.assertIn("step", error)
        self.assertIn("--lr", error)
        self.assertFalse((self.dir / "x").exists())


if __name__ == "__main__":
    unittest.main()
