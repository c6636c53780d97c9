"""kill -9 and Ctrl-C at random moments: a checkpoint is there and whole, or it is not there."""
import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import time
import unittest

from cli import CliTest, interrupt, make_model, start

KILLS = 50


class Interruption(CliTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.big = make_model(cls.models / "big", "--dtype", "bf16", "--hidden", "256", "--layers", "4", "--ffn", "688")

    def quantize(self, out, *options):
        return start("quantize", self.big, out, "--format", "int4", "--threads", 1, "--quiet", *options)

    def seconds_of_one(self):
        began = time.monotonic()
        process = self.quantize(self.dir / "timed")
        process.communicate()
        self.assertEqual(process.returncode, 0)
        shutil.rmtree(self.dir / "timed")
        return time.monotonic() - began

    def test_kill_9(self):
        whole = self.seconds_of_one()
        rng, out, finished = random.Random(11), self.dir / "out", 0
        for _ in range(KILLS):
            process = self.quantize(out)
            # Every third near the end, where files are written and renamed.
            time.sleep(whole * (rng.uniform(0.9, 1.05) if rng.random() < 0.33 else rng.random()))
            process.kill()
            process.communicate()
            if out.exists():
                finished += 1
                self.assertEqual(self.json("verify", out)["ok"], True)
                self.assertTrue(self.greedy(out, n=2))
                shutil.rmtree(out)
        # The remains of the dead do not stop the next run.
        process = self.quantize(out)
        _, errors = process.communicate()
        self.assertEqual((process.returncode, errors), (0, b""))
        self.assertEqual(self.json("verify", out)["ok"], True)
        print(f"{KILLS} kills, {finished} after the checkpoint was there; one run takes {whole:.2f} s")

    def test_kill_9_while_replacing(self):
        out, rng = self.dir / "out", random.Random(13)
        self.lowbit("quantize", self.big, out, "--format", "int8", "--quiet")
        whole = self.seconds_of_one()
        for _ in range(KILLS // 5):
            process = self.quantize(out, "--force")
            time.sleep(whole * rng.uniform(0.8, 1.1))
            process.kill()
            process.communicate()
            self.assertEqual(self.json("verify", out)["ok"], True)

    def test_signals_that_end_programs(self):
        whole = self.seconds_of_one()
        codes = set()
        # Shares of a run, not random ones: the first is well before the end of one that is faster than that measured.
        for share, stop in itertools.product((0.15, 0.3, 0.5, 0.8), (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)):
            out = self.dir / "out"
            process = self.quantize(out)
            time.sleep(whole * share)
            _, errors = interrupt(process, stop)
            # A program that dies of a signal before it could ask for it is 128 + the signal to a shell all the same.
            code = 128 - process.returncode if process.returncode < 0 else process.returncode
            codes.add(code)
            self.assertIn(code, (0, 128 + stop))
            self.assertEqual(errors, b"")
            self.assertEqual(out.exists(), code == 0)
            self.assertEqual(sorted(os.listdir(self.dir)), ["out"] if out.exists() else [], "left something behind")
            shutil.rmtree(out, ignore_errors=True)
        self.assertLessEqual({130, 143, 129}, codes)

    def test_a_signal_behind_the_checkpoint(self):
        """A full pipe holds the program between the checkpoint and its end."""
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, b" " * 512)
        os.set_blocking(writer, True)
        out = self.dir / "out"
        process = start("quantize", self.big, out, "--format", "int4", "--threads", 1, "--json", stdout=writer)
        os.close(writer)
        while not out.exists():
            time.sleep(0.01)
        time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        with open(reader, "rb") as pipe:
            self.assertEqual(json.loads(pipe.read())["target"], str(out))
        process.communicate()
        self.assertEqual(process.returncode, 0)
        self.assertEqual(self.json("verify", out)["ok"], True)

    def test_nohup(self):
        process = start("quantize", self.big, self.dir / "out", "--format", "int4", "--threads", 1, "--quiet",
                        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        time.sleep(0.1)
        interrupt(process, signal.SIGHUP)
        self.assertEqual(process.returncode, 0)


if __name__ == "__main__":
    unittest.main()
