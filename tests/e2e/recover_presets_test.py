"""python -m lowbit.recover from what `quantize --preset` makes: mixes of formats by layer. Needs torch."""
import unittest

import recover_test
from cli import files_below


class RecoverPresets(recover_test.RecoverCase):
    def test_layers_on_a_trellis_begin_anew_in_tables(self):
        """In as many bits, groups and scales of the same kind; those that the pattern leaves stay on the trellis."""
        import numpy as np
        from lowbit import Checkpoint
        start, out = self.dir / "start", self.dir / "tables"
        for options in ("trellis2", "trellis3 --scale double --group 32"):
            self.lowbit("quantize", self.hf, start, "--quiet", "--force", "--fit", "lsq", "--format", *options.split())
            report = self.recover(start, "-o", out, "--json", "--tokens", "32K", "--lr-times", "1.5", "--to-tables", r"mlp\.(up|down)_proj", "--force")
            self.check_decoded(out)
            self.assertLess(report["after"]["kl_mean"], report["before"]["kl_mean"])
            before, after = Checkpoint(start), Checkpoint(out)
            for name, was in before.layers.items():
                now, chosen = after.layers[name], "up_proj" in name or "down_proj" in name
                self.assertEqual(now.format, was.format.replace("trellis", "codebook") if chosen else was.format, name)
                self.assertEqual((now.group_size, now.scale_dtype), (was.group_size, was.scale_dtype))
                if chosen:
                    self.assertLessEqual(after.weight(name).nbytes, before.weight(name).nbytes)
            self.assertEqual(after.fit["recovery"]["to_tables"], r"mlp\.(up|down)_proj")
        # without a text, by least squares
        ids = self.dir / "ids.npy"
        np.save(ids, np.array(self.json("tokenize", self.hf, "--file", self.text)["ids"]))
        self.recover(start, "-o", out, "--to-tables", ".", "--force", text=ids)
        self.assertFalse([name for name, spec in Checkpoint(out).layers.items() if "trellis" in spec.format])
        # what is measured before is the checkpoint as it was given
        plain = self.recover(start, "-o", out, "--json", "--force")
        self.assertEqual(plain["before"], report["before"])
        self.recover(start, "-o", out, "--to-tables", "(", code=2)
        self.assertIn("none.txt", self.refused(start, "-o", self.dir / "x", "--to-tables", ".", text=self.dir / "none.txt"))

    def test_no_tables_where_layers_are_not_the_teacher_s(self):
        start = self.dir / "start"
        self.lowbit("quantize", self.hf, start, "--quiet", "--fit", "lsq", "--format", "trellis2", "--rotate")
        self.assertIn("rotated", self.refused(start, "-o", self.dir / "out", "--to-tables", ".", "--method", "full"))

    def test_stopped_and_continued_in_tables(self):
        start, options = self.dir / "start", ("--to-tables", ".", "--sample", "0", "--force")
        self.lowbit("quantize", self.hf, start, "--quiet", "--fit", "lsq", "--format", "trellis2")
        self.recover(start, "-o", self.dir / "once", *options)
        for steps in (1, 8):  # in the blocks, then in the distillation
            self.recover(start, "-o", self.dir / "stopped", *options, "--stop-after", str(steps), code=130)
        self.recover(start, "-o", self.dir / "stopped", *options)
        self.assertEqual(files_below(self.dir / "once"), files_below(self.dir / "stopped"))

    def test_scales_of_fine_grids_take_small_steps(self):
        """As large in parts of a scale as those of 16 levels: int8's scales are 17 times smaller."""
        import torch
        from lowbit import Checkpoint
        from lowbit.llama import linear_names
        from lowbit.recover.student import Student, Trainable
        from lowbit.sources import open_model
        got = {}
        for fmt in ("int3", "int4", "int8"):
            start = self.dir / fmt
            self.lowbit("quantize", self.hf, start, "--format", fmt, "--quiet")
            student = Student(Checkpoint(start), open_model(self.hf), torch.device("cpu"))
            trainable = Trainable(student, linear_names(0), [])
            got[fmt] = [group["lr"] for group in trainable.groups(lambda grid: 1.0, 1e-4, 1.0) if group["lr"] != 1.0]
        self.assertEqual(got["int3"], [1e-4])
        self.assertEqual(got["int4"], [1e-4])
        self.assertAlmostEqual(got["int8"][0], 1e-4 / 17, places=9)

    def test_from_what_each_preset_makes(self):
        """A mix of formats by layer, trained as it is: the formats stay, and it answers more as the source does."""
        from lowbit import Checkpoint
        for preset in ("best", "balanced", "small"):
            with self.subTest(preset):
                start, out = self.dir / preset, self.dir / f"{preset}-trained"
                self.lowbit("quantize", self.hf, start, "--preset", preset, "--calib-tokens", "2K", "--quiet")
                report = self.recover(start, "-o", out, "--json", "--tokens", "32K", "--lr-scales", "2e-4", "--train-embedding")
                self.check_decoded(out)
                self.assertLess(report["after"]["kl_mean"], report["before"]["kl_mean"])
                before, after = Checkpoint(start), Checkpoint(out)
                self.assertEqual((after.layers, after.fit["preset"]), (before.layers, preset))
