"""run, chat and tokenize."""
import json
import math
import os
import shutil
import signal
import subprocess
import time
import unittest

import cli
from cli import CliTest, environment, make_model, start


class Run(CliTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.int4 = cls.models / "int4"
        subprocess.run([cli.BINARY, "quantize", cls.hf, cls.int4, "--format", "int4", "--quiet"], check=True,
                       stdout=subprocess.DEVNULL)

    def test_json(self):
        report = self.json("run", self.int4, "-p", "the king and", "-n", 8, "--ignore-eos")
        self.assertKeys(report, "text tokens prompt_tokens prefill_tok_s decode_tok_s load_s peak_bytes")
        self.assertEqual(len(report["tokens"]), 8)
        self.assertGreater(report["prompt_tokens"], 1)
        self.assertGreater(report["peak_bytes"], 1 << 20)

    def test_same_seed_same_text(self):
        texts = [self.json("run", self.int4, "-p", "on", "-n", 24, "--seed", s, "--ignore-eos", *o)["tokens"]
                 for s, o in ((1, ()), (1, ()), (2, ()), (1, ("--threads", 1)), (1, ("--threads", 2)))]
        self.assertEqual(texts[0], texts[1])
        self.assertNotEqual(texts[0], texts[2])
        self.assertEqual(texts[0], texts[3])
        self.assertEqual(texts[0], texts[4])

    def test_every_isa_the_same_at_temperature_0(self):
        kernels = self.json("inspect", "--kernels")["kernels"]
        isas = {k["isa"] for k in kernels if k["runs_here"] and k["isa"] != "cuda"}  # no --isa
        for act in ("int8", "f32"):
            texts = {isa: self.greedy(self.int4, "--isa", isa, "--act", act) for isa in isas | {"scalar"}}
            for isa, tokens in texts.items():
                with self.subTest(isa=isa, act=act):
                    self.assertEqual(tokens, texts["scalar"])

    def test_stop_texts(self):
        """Across tokens, not shown, on stdout as in JSON; the tokens before are those of a run without."""
        call = ("run", self.int4, "-p", "the king", "-n", 40, "--temp", 0, "--ignore-eos")
        plain = self.json(*call)
        text = plain["text"]
        pieces = [bytes(p, "utf-8") for p in self.json("tokenize", self.int4, "--decode", ",".join(map(str, plain["tokens"])))["pieces"]]
        # a text that begins in one token and ends in another
        middle = len(b"".join(pieces[:9]).decode(errors="ignore")) - 2
        stop = text[middle:middle + 5]
        end = text.index(stop)
        report = self.json(*call, "--stop", "not there", "--stop", stop)
        self.assertEqual((report["text"], report["stop_reason"], report["stop_text"]), (text[:end], "stop", stop))
        self.assertEqual(report["tokens"], plain["tokens"][:len(report["tokens"])])
        self.assertLess(len(report["tokens"]), 40)
        self.assertEqual(self.lowbit(*call, "--stop", stop, "--quiet").stdout.decode(), text[:end] + "\n")
        report = self.json(*call, "--stop", text[-3:] + "and more")  # kept until the end, and shown then
        self.assertEqual((report["text"], report["stop_reason"], report["stop_text"]), (text, "length", None))
        self.assertRegex(self.refused(*call, "--stop", ""), "stop text")
        said = self.json("chat", self.hf, "--temp", 0, "-n", 30, stdin=b"hello\n")["messages"][1]["content"]
        part = said[len(said) // 2:len(said) // 2 + 4]
        messages = self.json("chat", self.hf, "--temp", 0, "-n", 30, "--stop", part, stdin=b"hello\nmore\n")["messages"]
        self.assertEqual(messages[1]["content"], said[:said.index(part)])
        self.assertEqual(len(messages), 4)

    def test_logprobs(self):
        call = ("run", self.int4, "-p", "the king", "-n", 12, "--temp", 0, "--ignore-eos")
        report = self.json(*call, "--logprobs", 3)
        self.assertEqual([t["token"] for t in report["logprobs"]], report["tokens"])
        for token in report["logprobs"]:
            self.assertEqual(token["top"][0], {"token": token["token"], "logprob": token["logprob"]})
            self.assertEqual(len(token["top"]), 3)
            self.assertGreaterEqual(token["top"][0]["logprob"], token["top"][2]["logprob"])
        first = report["logprobs"][0]  # those of `lowbit logits`
        self.assertAlmostEqual(sum(math.exp(t["logprob"]) for t in self.json(*call[:4], "-n", 1, "--logprobs", "1K")["logprobs"][0]["top"]),
                               1, places=4)
        sampled = self.json("run", self.int4, "-p", "the king", "-n", 1, "--temp", 100, "--top-k", 0, "--top-p", 1, "--min-p", 0,
                            "--logit-bias", f"{first['token']}=-inf", "--logprobs", 1)["logprobs"][0]
        self.assertEqual(sampled["top"], first["top"][:1])  # neither bias nor temperature is in them
        self.assertNotEqual(sampled["token"], first["token"])
        self.assertEqual(self.json(*call, "--logprobs", 0)["logprobs"][0]["top"], [])
        self.assertNotIn("logprobs", self.json(*call))
        self.assertRegex(self.refused(*call, "--logprobs", 1, code=2), "--json")

    def test_bias_masks_and_penalties(self):
        call = ("run", self.int4, "-p", "the king", "-n", 30, "--ignore-eos")
        tokens = self.json(*call, "--temp", 0)["tokens"]
        bias = self.json(*call, "--temp", 0, "--logit-bias", f"{tokens[0]}=-inf", "--logit-bias", "70=1000000")["tokens"]
        self.assertEqual(set(bias), {70})
        without = self.json(*call, "--temp", 0, "--logit-bias", f"{tokens[0]}=-inf")["tokens"]
        self.assertNotIn(tokens[0], without)
        ids = sorted(set(tokens))[:3]
        self.assertLessEqual(set(self.json(*call, "--temp", 9, "--allow-tokens", ",".join(map(str, ids)))["tokens"]), set(ids))
        for penalty in ("--presence-penalty", "--frequency-penalty"):
            self.assertEqual(len(set(self.json(*call, "--temp", 0, penalty, 100)["tokens"])), 30)
        self.assertLess(len(set(self.json(*call, "--temp", 0, "--presence-penalty", 100, "--repeat-window", 2)["tokens"])), 30)
        for bad in ("x=1", "1", "1=x", "1=inf", "-1=2", "1=nan"):
            self.assertIn("--logit-bias", self.refused(*call, "--logit-bias", bad, code=2))
        self.assertIn("logit_bias", self.refused(*call, "--logit-bias", "99999=1"))
        self.assertIn("--allow-tokens", self.refused(*call, "--allow-tokens", "1,x", code=2))
        self.assertIn("may be chosen", self.refused(*call, "--allow-tokens", "7", "--logit-bias", "7=-inf"))
        self.assertIn("token 99999", self.refused(*call, "--allow-tokens", "7,99999"))
        self.assertIn("--allow-tokens", self.refused(*call, "--allow-tokens", "", code=2))

    def test_on_a_gpu(self):
        """The CPU's tokens, sampled ones too; without a GPU an error that says so."""
        call = ("run", self.int4, "-p", "the king", "-n", 24, "--seed", 5, "--exact")
        self.assertIn("--gpu-layers", self.refused(*call, "--gpu-layers", 1, "--device", "cpu"))
        on_cpu = self.json(*call, "--gpu-layers", 0)
        self.assertEqual((on_cpu["device_bytes"], on_cpu["isa"] == "cuda"), (0, False))
        doctor = self.json("doctor")
        if doctor["gpu"] is None:
            for on_gpu in (("--device", "cuda"), ("--device", "cuda:0,cuda:1"), ("--gpu-layers", 1)):
                error = self.refused(*call, *on_gpu)
                self.assertIn("compute capability" if doctor["cuda_built"] else "nvcc", error)
            self.skipTest("no CUDA device of compute capability 8.0 or higher")
        for act in ("int8", "f32"):
            gpu = self.json(*call, "--act", act, "--device", "cuda")
            self.assertEqual(gpu["isa"], "cuda")
            self.assertGreater(gpu["device_bytes"], gpu["kv_used_bytes"])
            tokens = self.json(*call, "--act", act, "--device", "cpu")["tokens"]
            self.assertEqual(gpu["tokens"], tokens)
            for split in (("--gpu-layers", 1), ("--device", "cuda:0,cuda:0")):
                self.assertEqual(self.json(*call, "--act", act, *split)["tokens"], tokens)

    def test_isa_by_environment(self):
        args = ("run", self.int4, "-p", "", "-n", 2)
        self.assertEqual(self.json(*args, env={"LOWBIT_ISA": "scalar"})["isa"], "scalar")
        self.assertEqual(self.json(*args, "--isa", "scalar", env={"LOWBIT_ISA": "amx"})["isa"], "scalar")
        self.assertEqual(self.json(*args, env={"LOWBIT_THREADS": "1"})["threads"], 1)

    def test_model_by_environment(self):
        tokens = self.json("run", "default", "-p", "", "-n", 4, "--temp", 0, env={"LOWBIT_MODEL": str(self.int4)})
        self.assertEqual(tokens["tokens"], self.json("run", self.int4, "-p", "", "-n", 4, "--temp", 0)["tokens"])

    def test_prompt_cache(self):
        """The common beginning of prompt and file is not computed again, and the text stays."""
        cache, prompt = self.dir / "prompt.cache", "the king and the river runs past old stone houses " * 4
        call = ("run", self.int4, "-n", 12, "--ignore-eos", "--kv", "int4", "--kv-residual", 0, "--repeat-penalty", 1.2)
        tokens = self.json("tokenize", self.int4, "-p", prompt)["ids"]
        plain = self.json(*call, "-p", prompt)
        first = self.json(*call, "-p", prompt, "--prompt-cache", cache)
        self.assertEqual((first["tokens"], first["prompt_cached_tokens"], first["prompt_tokens"]), (plain["tokens"], 0, len(tokens)))
        written = cache.read_bytes()
        again = self.json(*call, "-p", prompt, "--prompt-cache", cache)
        self.assertEqual((again["tokens"], again["prompt_cached_tokens"], again["prompt_tokens"]), (plain["tokens"], len(tokens) - 1, 1))
        self.assertEqual(cache.read_bytes(), written)
        other = prompt[:len(prompt) // 2] + "while people talk"  # a part of it
        wanted = self.json(*call, "-p", other)["tokens"]
        half = self.json(*call, "-p", other, "--prompt-cache", cache, "--prompt-cache-ro")
        self.assertEqual((half["tokens"], cache.read_bytes()), (wanted, written))
        self.assertGreater(half["prompt_cached_tokens"], len(tokens) // 3)
        self.assertEqual(self.json(*call, "-p", other, "--prompt-cache", cache)["tokens"], wanted)
        self.assertNotEqual(cache.read_bytes(), written)
        self.assertIn("--kv int4", self.refused("run", self.int4, "-p", prompt, "--prompt-cache", cache))
        self.assertIn("another model", self.refused("run", self.hf, "-p", prompt, "--prompt-cache", cache, "--kv", "int4", "--kv-residual", 0))
        cache.write_bytes(written[:-100])
        self.refused(*call, "-p", prompt, "--prompt-cache", cache)
        self.assertEqual(cache.read_bytes(), written[:-100])
        self.refused(*call, "-p", prompt, "--prompt-cache", self.dir / "none", "--prompt-cache-ro")
        self.refused(*call, "-p", prompt, "--prompt-cache-ro", code=2)

    def test_prompt_from_file(self):
        file = self.dir / "prompt.txt"
        file.write_text("the king and")
        args = ("-n", 8, "--temp", 0, "--ignore-eos")
        wanted = self.json("run", self.int4, "-p", "the king and", *args)["tokens"]
        self.assertEqual(self.json("run", self.int4, "--file", file, *args)["tokens"], wanted)
        self.assertEqual(self.json("run", self.int4, "--file", "-", *args, stdin=b"the king and")["tokens"], wanted)
        self.refused("run", self.int4, "--file", self.dir / "absent")
        self.refused("run", self.int4, "--file", self.dir)

    def test_text_alone_on_stdout(self):
        args = ("run", self.int4, "-p", "a", "-n", 8, "--temp", 0, "--ignore-eos")
        done = self.lowbit(*args)
        self.assertEqual(done.stdout.decode(), self.json(*args)["text"] + "\n")
        self.assertIn(b"tok/s", done.stderr)
        self.assertEqual(self.lowbit(*args, "--quiet").stderr, b"")
        self.assertEqual(self.lowbit(*args, env={"LOWBIT_LOG": "error"}).stderr, b"")
        self.assertIn(b"threads", self.lowbit(*args, env={"LOWBIT_LOG": "debug"}).stderr)

    def test_limits(self):
        self.assertEqual(len(self.json("run", self.int4, "-p", "", "-n", 0)["tokens"]), 0)
        report = self.json("run", self.int4, "-p", "", "-n", "1K", "-c", 32, "--ignore-eos")
        self.assertEqual(report["stop_reason"], "context")
        self.assertLessEqual(len(report["tokens"]), 32)
        self.assertRegex(self.refused("run", self.int4, "-p", "the king and " * 40, "-c", 32), r"prompt: got \d+ tokens, wanted at most 32\.")
        self.refused("run", self.int4, "-p", "", "-c", "1G")

    def test_closed_stdout_is_a_quiet_end(self):
        process = start("run", self.int4, "-p", "", "-n", 200, "--ignore-eos", "--quiet")
        process.stdout.close()
        errors = process.stderr.read()
        self.assertEqual((process.wait(timeout=60), errors), (0, b""))

    def test_closed_descriptors_do_not_become_files(self):
        for closed in ((0, 1, 2), (1,), (2,), (0,)):
            with self.subTest(closed):
                out = self.dir / ("closed" + "".join(map(str, closed)))
                done = subprocess.run([cli.BINARY, "quantize", self.hf, out, "--format", "int4"], env=environment(), timeout=cli.TIMEOUT_S,
                                      preexec_fn=lambda: [os.close(fd) for fd in closed])
                self.assertEqual(done.returncode, 1 if 1 in closed else 0)
                self.assertTrue(self.json("verify", out)["ok"])

    @unittest.skipUnless(os.path.exists("/dev/full"), "no /dev/full on this machine")
    def test_full_stdout_is_an_error(self):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([cli.BINARY, "inspect", "--formats"], stdout=full, stderr=subprocess.PIPE,
                                  env=environment())
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr.decode(), r"\Aerror: stdout: got [^\n]+\n\Z")

    def test_ctrl_c(self):
        process = start("run", self.int4, "-p", "", "-n", "1M", "-c", 200, "--ignore-eos", "--isa", "scalar", "--quiet")
        process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        self.assertIn(process.returncode, (0, 130))  # 0: it had filled its context before


class Chat(CliTest):
    def test_script(self):
        args = ("chat", self.hf, "--temp", 0, "-n", 12, "--system", "be brief")
        script = b"hello\n/stats\n/help\n/nonsense\nand then?\n/reset\nhello\n"
        done = self.lowbit(*args, stdin=script)
        text = done.stdout.decode()
        self.assertIn("/reset", text)
        self.assertRegex(text, r"1 turn; \d+ of \d+ tokens")
        self.assertNotIn("> ", text.splitlines()[0][:2])
        self.assertIn(b"/nonsense", done.stderr)
        report = self.json(*args, stdin=script)
        self.assertEqual([m["role"] for m in report["messages"]], ["system", "user", "assistant"])
        self.assertEqual(report["stats"]["turns"], 3)
        self.assertGreater(report["stats"]["reused_tokens"], 0)

    def test_a_conversation_goes_on_from_its_file(self):
        args, file = ("chat", self.hf, "--temp", 0, "-n", 12), self.dir / "talk"
        whole = self.json(*args, "--system", "be brief", stdin=b"hi\nmore\n")
        self.json(*args, "--system", "be brief", "--session", file, stdin=b"hi\n")
        second = self.json(*args, "--session", file, stdin=b"more\n")
        self.assertEqual(second["messages"], whole["messages"])
        self.assertGreater(second["stats"]["reused_tokens"], 10)
        third = self.json(*args, "--session", file, "--system", "be long", stdin=b"")
        self.assertEqual(third["messages"][1:], whole["messages"][1:])
        self.assertEqual(third["messages"][0]["content"], "be long")
        cache = self.dir / "prompt.cache"
        self.json("run", self.hf, "-p", "hi there", "-n", 1, "--prompt-cache", cache)
        done = self.lowbit(*args, "--session", cache, code=1, stdin=b"hi\n")
        self.assertIn(b"a session without a conversation", done.stderr)

    def test_turn_equals_the_template_by_hand(self):
        answers = [m["content"] for m in self.json("chat", self.hf, "--temp", 0, "-n", 12, stdin=b"hi\nmore\n")["messages"]
                   if m["role"] == "assistant"]
        prompt = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
        by_hand = ("--temp", 0, "-n", 12, "--parse-special")
        first = self.json("run", self.hf, "-p", prompt, *by_hand)["text"]
        self.assertEqual(answers[0], first)
        prompt += first + "<|im_end|>\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"
        # The cache kept the common prefix; the text must be what a fresh start gives.
        self.assertEqual(answers[1], self.json("run", self.hf, "-p", prompt, *by_hand)["text"])

    def test_render_prints_what_the_template_makes(self):
        variables = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()
        wanted = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
        self.assertEqual(self.lowbit("chat", self.hf, "--render", "-", stdin=variables).stdout.decode(), wanted)
        self.assertEqual(self.json("chat", self.hf, "--render", "-", stdin=variables)["text"], wanted)
        beside = self.dir / "beside"  # as transformers 5 writes it; weights are not needed
        beside.mkdir()
        (beside / "tokenizer.json").write_bytes((self.models / "hf" / "tokenizer.json").read_bytes())
        (beside / "chat_template.jinja").write_text("{% for m in messages %}[{{ m.content }}]{% endfor %}")
        self.assertEqual(self.lowbit("chat", beside, "--render", "-", stdin=variables).stdout.decode(), "[hi]")
        for bad in (b"", b"[]", b"{", b"[" * 100000):
            done = self.lowbit("chat", self.hf, "--render", "-", code=1, stdin=bad)
            self.assertRegex(done.stderr.decode(), r"\Aerror: [^\n]+\n\Z")
            self.assertEqual(done.stdout, b"")

    def test_full_context_forgets_the_oldest(self):
        report = self.json("chat", self.hf, "-c", 128, "-n", 24, "--temp", 0, stdin=b"tell me of the man\n" * 8)
        self.assertEqual(report["stats"]["turns"], 8)
        self.assertGreater(report["stats"]["dropped_messages"], 0)

    def test_errors(self):
        config = json.loads((self.models / "hf" / "tokenizer_config.json").read_text())
        plain = make_model(self.dir / "plain")
        del config["chat_template"]
        (self.dir / "plain" / "tokenizer_config.json").write_text(json.dumps(config))
        self.assertIn("lowbit run", self.refused("chat", plain))
        done = self.lowbit("chat", self.hf, "-c", 64, code=1, stdin=b"word " * 400)
        self.assertRegex(done.stderr.decode(), r"\Aerror: message: got \d+ tokens, wanted [^\n]+\n\Z")

    def test_signals_at_a_script(self):
        """While it waits for a line, and in the middle of an answer without end."""
        for stop in (signal.SIGINT, signal.SIGTERM):
            for answering in (False, True):
                if answering and stop == signal.SIGINT:
                    continue  # that stops the answer and not the conversation
                with self.subTest(f"{stop} {answering}"):
                    options = ("-n", "1M", "-c", 256) if answering else ()
                    process = subprocess.Popen([cli.BINARY, "chat", self.hf, "--quiet", *map(str, options)], stdin=subprocess.PIPE,
                                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
                    process.stdin.write(b"hello\n" * (1000 if answering else 1))
                    process.stdin.flush()
                    process.stdout.readline()
                    time.sleep(0.1 if answering else 0.5)
                    process.send_signal(stop)
                    process.communicate(timeout=60)
                    self.assertEqual(process.returncode, 128 + stop)


class Tokenize(CliTest):
    def test_ids_and_back(self):
        text = "the king, and \u00e9t\u00e9 \U0001f600\tend<|im_end|>"
        report = self.json("tokenize", self.hf, "-p", text)
        self.assertEqual(len(report["ids"]), len(report["pieces"]))
        ids = ",".join(map(str, report["ids"]))
        self.assertEqual(self.json("tokenize", self.hf, "--decode", ids)["text"], text)
        self.assertNotIn(2, report["ids"])
        self.assertIn(2, self.json("tokenize", self.hf, "-p", text, "--parse-special")["ids"])
        lines = self.lowbit("tokenize", self.hf, "-p", "the the", "--quiet").stdout.decode().splitlines()
        self.assertEqual(len(lines), len(self.json("tokenize", self.hf, "-p", "the the")["ids"]))

    def test_any_bytes(self):
        file = self.dir / "bytes"
        file.write_bytes(bytes(range(256)))
        report = self.json("tokenize", self.hf, "--file", file)
        done = self.lowbit("tokenize", self.hf, "--decode", ",".join(map(str, report["ids"])))
        self.assertEqual(done.stdout, bytes(range(256)) + b"\n")

    def test_other_sources(self):
        wanted = self.json("tokenize", self.hf, "-p", "the man")["ids"]
        gguf = make_model(self.dir / "m.gguf")
        int4 = self.quantized("int4", "--format", "int4")
        for path in (gguf, int4, self.models / "hf" / "tokenizer.json"):
            self.assertEqual(self.json("tokenize", path, "-p", "the man")["ids"], wanted)
        alone = self.dir / "alone"  # no model beside it
        alone.mkdir()
        self.refused("tokenize", alone, "-p", "x")
        shutil.copy(self.models / "hf" / "tokenizer.json", alone)
        self.assertEqual(self.json("tokenize", alone, "-p", "the man")["ids"], wanted)
        (self.dir / "folder.json").mkdir()
        self.refused("tokenize", self.dir / "folder.json", "-p", "x")
        self.refused("tokenize", self.hf, "--decode", "100000")
        self.refused("tokenize", self.dir / "absent", "-p", "x")


if __name__ == "__main__":
    unittest.main()
