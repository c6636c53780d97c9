"""python -m lowbit.recover from what `quantize --preset` makes: mixes of formats by layer. Needs torch."""
import unittest

import recover_test


class RecoverPresets(recover_test.RecoverCase):
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
