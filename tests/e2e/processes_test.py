"""The command as a process: limits of the system, signals, other CPUs, files that change under it."""
import os
import random
import resource
import shutil
import signal
import subprocess
import time
import unittest
from pathlib import Path

import cli

QEMU = shutil.which("qemu-x86_64") or shutil.which("qemu-x86_64-static")


class Processes(cli.CliTest):
    def test_less_memory_than_threads_want(self):
        if cli.sanitized():
            self.skipTest("a sanitizer wants more address space than any limit here")
        wanted, codes = self.greedy(self.hf, n=4), []
        # less than that ends in the kernel: there is no room to start it
        program = (os.stat(cli.BINARY).st_size >> 20) + 20
        for mebibytes in (program, 40, 60, 80, 100, 150, 200, 300):
            if mebibytes < program:
                continue
            done = subprocess.run([cli.BINARY, "run", self.hf, "-p", "", "-n", "4", "--temp", "0", "--ignore-eos", "--json", "--threads", "32"],
                                  capture_output=True, timeout=60, env=cli.environment(), stdin=subprocess.DEVNULL,
                                  preexec_fn=lambda most=mebibytes << 20: resource.setrlimit(resource.RLIMIT_AS, (most, most)))
            errors = done.stderr.decode(errors="replace")
            codes.append(done.returncode)
            if done.returncode == 127:
                continue  # no room for the program itself: the loader's message
            self.assertIn(done.returncode, (0, 1), (mebibytes, errors))
            if done.returncode == 0:
                self.assertEqual(cli.json.loads(done.stdout)["tokens"], wanted)
            else:
                self.assertRegex(errors, cli.ERROR_LINE)
        self.assertEqual(codes[-1], 0)

    def test_a_second_signal_ends_the_program_at_once(self):
        big = cli.make_model(self.dir / "big", "--dtype", "bf16", "--hidden", "256", "--layers", "4", "--ffn", "688", "--context", "4096")
        prompt = self.dir / "prompt"
        prompt.write_text(cli.text(1000))
        for stop in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # A long prompt is read in one piece: nobody looks at the first signal until it is done.
            process = cli.start("run", big, "--file", prompt, "-c", 4096, "--threads", 1, "--isa", "scalar", "--quiet", "-n", 4000)
            time.sleep(0.7)
            self.assertIsNone(process.poll(), process.stderr.read() if process.poll() is not None else "")
            process.send_signal(stop)
            time.sleep(0.05)
            began = time.monotonic()
            process.send_signal(stop)
            process.communicate(timeout=20)
            self.assertIn(process.returncode, (128 + stop, -stop))
            self.assertLess(time.monotonic() - began, 5)

    def test_a_source_that_shrinks_is_an_error(self):
        big = Path(cli.make_model(self.dir / "big", "--dtype", "bf16", "--hidden", "256", "--layers", "4", "--ffn", "688"))
        file = max(big.glob("*.safetensors"), key=lambda f: f.stat().st_size)
        whole, rng, codes = file.read_bytes(), random.Random(3), set()
        longest_s = 1.5 if cli.sanitized() else 0.12  # some end before
        for verb in 6 * (["quantize", big, self.dir / "out", "--format", "int4", "--quiet"], ["run", big, "-p", "x", "-n", "2", "--quiet"],
                         ["verify", big, "--quiet"]):
            process = cli.start(*verb)
            time.sleep(rng.uniform(0, longest_s))
            os.truncate(file, rng.choice((0, 4096, len(whole) // 2, len(whole) - 1)))
            _, errors = process.communicate(timeout=cli.TIMEOUT_S)
            codes.add(process.returncode)
            self.assertIn(process.returncode, (0, 1), errors)
            if process.returncode:
                self.assertRegex(errors.decode(), r"error: |^$")  # verify tells its findings on stdout
            if verb[0] == "quantize":
                self.assertEqual((self.dir / "out").exists(), process.returncode == 0)
                shutil.rmtree(self.dir / "out", ignore_errors=True)
            file.write_bytes(whole)
        self.assertEqual(codes, {0, 1})

    def test_smaller_cpus(self):
        if QEMU is None:
            self.skipTest("no qemu-x86_64: apt-get install qemu-user")
        if cli.sanitized():
            self.skipTest("sanitizers do not run in an emulator")

        def emulated(cpu, *args, **extra):
            done = subprocess.run([QEMU, "-cpu", cpu, cli.BINARY, *map(str, args), "--json"], capture_output=True, timeout=300,
                                  env=cli.environment(**extra), stdin=subprocess.DEVNULL)
            self.assertEqual(done.returncode, 0, done.stderr[-2000:])
            return cli.json.loads(done.stdout)

        wanted = self.greedy(self.hf, "--act", "f32", n=3)
        for cpu, isa in (("qemu64", "scalar"), ("Nehalem", "scalar"), ("max", "avx2"), ("max,-fma", "scalar"), ("max,-xsave", "scalar")):
            got = emulated(cpu, "run", self.hf, "-p", "", "-n", 3, "--temp", 0, "--ignore-eos", "--act", "f32", "--threads", 1)
            self.assertEqual((got["isa"], got["tokens"]), (isa, wanted), cpu)
        done = subprocess.run([QEMU, "-cpu", "Nehalem", cli.BINARY, "run", self.hf, "-p", "x", "--isa", "avx512"], capture_output=True,
                              timeout=300, env=cli.environment())
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr.decode(), "at most scalar on this CPU")


if __name__ == "__main__":
    unittest.main()
