"""Allocations and thread creations that fail, one after the other (tests/faults): an error or a success, never a hang
or a crash.

LOWBIT_FAULTS sets how many places of each command are tried; the first ones always, the rest spread over all there are.
"""
import os
import random
import shutil
import subprocess
import unittest
from pathlib import Path

import cli

TRIES = int(os.environ.get("LOWBIT_FAULTS", "60"))
HANG_S = 60


class Faults(cli.CliTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.faults = Path(cli.BINARY).parents[1] / "lib/liblowbit_faults.so"
        if not cls.faults.exists():
            raise unittest.SkipTest(f"no {cls.faults}")
        binary = Path(cli.BINARY).read_bytes()
        if b"__asan_init" in binary or b"__tsan_init" in binary:
            raise unittest.SkipTest("a sanitizer has an allocator of its own")

    def once(self, kind, at, stays, args):
        count = self.dir / "count"
        env = cli.environment(LD_PRELOAD=str(self.faults), LOWBIT_FAULT_KIND=kind, LOWBIT_FAULT_AT=str(at), LOWBIT_FAULT_COUNT=str(count),
                              LOWBIT_FAULT_ON="1" if stays else "0")
        done = subprocess.run([cli.BINARY, *map(str, args)], capture_output=True, timeout=HANG_S, env=env, stdin=subprocess.DEVNULL)
        return done, int(count.read_text()) if count.exists() else None

    def everywhere(self, kind, args, out=None, last=0):
        """Tries places spread over the command, and the `last` ones; how many calls there are, and how many of the
        tries were errors. What is left behind is whole: the bytes of the command without a fault. A success leaves it,
        an error at the very end may."""
        done, calls = self.once(kind, 0, False, args)
        self.assertEqual(done.returncode, 0, done.stderr)
        whole = self.written(out)
        self.clear(out)
        rng, tried = random.Random(5), set(range(1, min(calls, TRIES // 3) + 1))
        while len(tried) < min(calls, TRIES):
            tried.add(rng.randint(1, calls))
        tried.update(range(max(1, calls - last), calls + 1))
        errors, wrong = 0, []
        for at in sorted(tried):
            for stays in (False, True):
                what = f"{kind} {at} of {calls}{' and the large ones behind it' if stays else ''}"
                try:
                    done, _ = self.once(kind, at, stays, args)
                except subprocess.TimeoutExpired:
                    wrong.append(f"{what}: hangs")
                    continue
                text = done.stderr.decode(errors="replace")
                errors += done.returncode != 0
                if done.returncode not in (0, 1):
                    wrong.append(f"{what}: exit {done.returncode}: {text[-300:]}")
                elif done.returncode == 1 and "error: " not in text:
                    wrong.append(f"{what}: no error line: {text[-300:]}")
                if out and (done.returncode == 0 or out.exists()) and not self.is_whole(kind, out, whole):
                    wrong.append(f"{what}: other files")
                self.clear(out)
        self.assertEqual(wrong, [], f"{len(wrong)} of {2 * len(tried)}")
        print(f"{args[0]}: {kind} {calls} calls, {2 * len(tried)} tries, {errors} errors")
        return calls, errors

    def is_whole(self, kind, out, whole):
        if kind == "cuda" and out.is_dir():  # that its bytes stay the same after a fault no card has shown yet
            return self.lowbit("verify", out, "--quiet").returncode == 0
        return out.exists() and self.written(out) == whole

    @staticmethod
    def written(out):
        return out and (cli.files_below(out) if out.is_dir() else out.read_bytes())

    @staticmethod
    def clear(out):
        if out:
            shutil.rmtree(out) if out.is_dir() else out.unlink(missing_ok=True)

    def network(self):
        folder = self.dir / "gru"
        folder.mkdir()
        files, x = cli.gru_files(random.Random(3))
        for name, data in files.items():
            (folder / name).write_bytes(data)
        (self.dir / "x.npy").write_bytes(x)
        ranges, model = self.dir / "r.json", self.dir / "net.lbgru"
        self.lowbit("gru", "calibrate", folder, "--data", self.dir / "x.npy", "-o", ranges, "--quiet")
        self.lowbit("gru", "quantize", folder, "--ranges", ranges, "-o", model, "--quiet")
        return ["gru", "run", model, "--input", self.dir / "x.npy", "-o", self.dir / "y.npy", "--quiet"]

    def run_command(self):
        return ["run", self.hf, "-p", "the river", "-n", "4", "--temp", "0", "--threads", "3", "--quiet"]

    def quantize_command(self):
        return ["quantize", self.hf, self.dir / "out", "--format", "int4", "--threads", "3", "--quiet"]

    def test_memory_for_run(self):
        self.assertGreater(self.everywhere("malloc", self.run_command())[1], 0)

    def test_memory_for_quantize(self):
        """Its end too, where configurations are written: trees of JSON ended the process there."""
        self.assertGreater(self.everywhere("malloc", self.quantize_command(), self.dir / "out", last=2 * TRIES)[1], 0)

    def test_memory_for_gru_run(self):
        self.assertGreater(self.everywhere("malloc", self.network(), self.dir / "y.npy")[1], 0)

    def test_threads(self):
        """A pool goes on with fewer threads: none of these is an error."""
        for args, out in ((self.run_command(), None), (self.quantize_command(), self.dir / "out")):
            calls, errors = self.everywhere("thread", args, out)
            self.assertGreater(calls, 0)
            self.assertEqual(errors, 0)

    def test_device_memory(self):
        """Allocations on a GPU, and of memory that it reads."""
        if self.json("doctor")["gpu"] is None:
            self.skipTest("no GPU")
        text = self.dir / "text"
        text.write_text(cli.text(600))
        calibrated = [*self.quantize_command(), "--calib", text, "--calib-tokens", "128"]
        for args, out in ((self.run_command(), None), (calibrated, self.dir / "out"), (self.network(), self.dir / "y.npy")):
            calls, errors = self.everywhere("cuda", [*args, "--device", "cuda"], out)
            self.assertGreater(calls, 0)
            self.assertGreater(errors, 0)


if __name__ == "__main__":
    unittest.main()
