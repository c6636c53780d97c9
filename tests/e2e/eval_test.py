"""eval: multiple choice by log-likelihood."""
import importlib.util
import json
import math
import struct
import subprocess
import sys
import unittest

from cli import SOURCE, CliTest, environment, make_model

WORDS = ["stone", "river", "bread", "rain", "people", "old houses"]


class Eval(CliTest):
    def write(self, name, lines):
        path = self.dir / name
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    def task(self, *lines, options=()):
        return self.json("eval", self.hf, "--tasks", self.write("task.jsonl", lines), *options)["tasks"][0]

    def question(self, gold, n=0):
        return {"query": f"Question: which word {n}?", "choices": WORDS, "gold": gold}

    def test_one_choice_wins_and_only_one(self):
        right = [self.task(self.question(gold)) for gold in range(len(WORDS))]
        for report in right:
            self.assertKeys(report, "name questions accuracy accuracy_error normalized_accuracy normalized_accuracy_error")
        self.assertEqual(sum(r["accuracy"] for r in right), 1)
        self.assertEqual(sum(r["normalized_accuracy"] for r in right), 1)

    def test_the_context_is_what_is_compared(self):
        contexts = ["The man went to the " + word for word in WORDS[:2]]
        winner = max((0, 1), key=lambda g: self.task(
            {"context_options": contexts, "continuation": "and slept", "gold": g})["accuracy"])
        both = self.task({"context_options": contexts, "continuation": "and slept", "gold": winner},
                         {"context_options": contexts[::-1], "continuation": "and slept", "gold": 1 - winner})
        self.assertEqual(both["accuracy"], 1)

    def test_exact_continuations(self):
        """Right when every token is the likeliest, spaces and all."""
        prompt = "the river runs past"
        ids = self.json("tokenize", self.hf, "-p", prompt)["ids"]
        following = self.json("run", self.hf, "-p", prompt, "-n", 3, "--temp", 0, "--ignore-eos", "--act", "f32")["tokens"]
        pieces = self.json("tokenize", self.hf, "--decode", ",".join(map(str, following)))["text"]
        whole = self.json("tokenize", self.hf, "-p", prompt + pieces)["ids"]
        report = self.task({"context": prompt, "continuation": pieces}, {"context": prompt, "continuation": pieces + " stone"},
                           {"context": prompt, "continuation": " no such words"}, options=("--act", "f32"))
        self.assertEqual(report["questions"], 3)
        self.assertEqual(report["right"], ("1" if whole == ids + following else "0") + "00")
        # The likeliest token alone, which needs no luck in how texts are cut.
        first = max((self.json("logits", self.hf, "-p", prompt, "--act", "f32")["positions"][0]["top"]), key=lambda t: t["logit"])
        self.assertEqual(first["id"], following[0])
        self.refused("eval", self.hf, "--tasks", self.write("bad.jsonl", [{"context": "a", "continuation": ""}]))

    def test_last_words(self):
        """LAMBADA's form: the last word of a text, asked as a continuation with its space."""
        texts = [f"the {WORDS[i % 6]} runs past {WORDS[(i + 1) % 6]}" for i in range(12)]
        parts = [text.rsplit(" ", 1) for text in texts]
        self.assertEqual(self.task(*({"text": text} for text in texts))["right"],
                         self.task(*({"context": a, "continuation": " " + b} for a, b in parts))["right"])
        for text in ("", "word", " word", "word "):
            error = self.refused("eval", self.hf, "--tasks", self.write("bad.jsonl", [{"text": text}]))
            self.assertIn("last word", error)

    def test_whole_sentences(self):
        """BLiMP's form, and the same with an empty query: the sentence alone is scored, nothing is put before it."""
        pairs = [(f"the {WORDS[i % 6]} runs", f"the {WORDS[i % 6]} {WORDS[(i + 1) % 6]}") for i in range(12)]
        blimp = self.task(*({"sentence_good": a, "sentence_bad": b} for a, b in pairs))
        query = self.task(*({"query": "", "choices": [a, b], "gold": 0} for a, b in pairs))
        swapped = self.task(*({"sentence_good": b, "sentence_bad": a} for a, b in pairs))
        asked = self.task(*({"query": " ", "choices": [a, b], "gold": 0} for a, b in pairs))
        self.assertEqual(blimp["right"], query["right"])
        self.assertEqual([a != b for a, b in zip(blimp["right"], swapped["right"])], [True] * 12)
        self.assertNotEqual((blimp["right"], blimp["right_normalized"]), (None, None))
        self.assertEqual(len(asked["right"]), 12)

    def test_logits(self):
        text = "the river runs past old stone"
        ids = self.json("tokenize", self.hf, "-p", text)["ids"]
        report = self.json("logits", self.hf, "-p", text, "--all", "--top", 3, "-o", self.dir / "l.npy", "--act", "f32")
        self.assertEqual((report["tokens"], len(report["positions"])), (ids, len(ids)))
        raw = (self.dir / "l.npy").read_bytes()
        length = struct.unpack_from("<H", raw, 8)[0]
        vocab = report["vocab_size"]
        self.assertEqual(len(raw) - 10 - length, 4 * len(ids) * vocab)
        rows = struct.unpack_from(f"<{len(ids) * vocab}f", raw, 10 + length)
        for i, position in enumerate(report["positions"]):
            row = rows[i * vocab:(i + 1) * vocab]
            self.assertEqual((position["position"], position["after"]), (i, ids[i]))
            self.assertEqual([t["id"] for t in position["top"]], sorted(range(vocab), key=lambda t: (-row[t], t))[:3])
            self.assertAlmostEqual(position["top"][0]["probability"], 1 / sum(math.exp(x - max(row)) for x in row), 4)
        last = self.json("logits", self.hf, "-p", text, "--act", "f32")["positions"]
        self.assertEqual(last[0]["top"][:3], report["positions"][-1]["top"])
        self.refused("logits", self.hf, "-p", text, "-c", 2)

    def test_shares_and_errors(self):
        winner = next(g for g in range(len(WORDS)) if self.task(self.question(g))["accuracy"] == 1)
        lines = [self.question(winner)] * 3 + [self.question((winner + 1) % len(WORDS))]
        report = self.task(*lines)
        self.assertEqual((report["questions"], report["accuracy"]), (4, 0.75))
        self.assertAlmostEqual(report["accuracy_error"], math.sqrt(0.75 * 0.25 / 3))
        self.assertEqual(self.task(*lines, options=("--questions", 3))["accuracy"], 1)

    def test_same_answers_for_any_thread_count_and_isa(self):
        lines = [self.question(n % len(WORDS), n) for n in range(12)]
        reports = [self.task(*lines, options=o) for o in (("--threads", 1), ("--threads", 2), ("--isa", "scalar"))]
        for report in reports:
            report.pop("seconds")
        self.assertEqual(reports[0], reports[1])
        self.assertEqual(reports[0], reports[2])

    def test_two_models_on_the_same_questions(self):
        # Choices of one length: random models would all take the shortest.
        lines = [{"query": " ".join(WORDS[(n * n + i * n) % 6] for i in range(4)), "choices": list("abcd"), "gold": n % 4} for n in range(40)]
        path, model = self.write("task.jsonl", lines), make_model(self.dir / "other", "--seed", "2")
        task = self.json("eval", model, "--tasks", path, "--against", self.hf)["tasks"][0]
        for key, shares, bits in (("difference", "accuracy", "right"), ("normalized_difference", "normalized_accuracy", "right_normalized")):
            d = task[key]
            self.assertGreater(d["only_model"] + d["only_base"], 0)
            self.assertAlmostEqual(d["mean"], (d["only_model"] - d["only_base"]) / 40)
            self.assertAlmostEqual(d["mean"], task[shares] - task["against"][shares])
            pairs = list(zip(task[bits], task["against"][bits], strict=True))
            self.assertEqual((d["only_model"], d["only_base"]), (pairs.count(("1", "0")), pairs.count(("0", "1"))))
            each = [1] * d["only_model"] + [-1] * d["only_base"] + [0] * (40 - d["only_model"] - d["only_base"])
            self.assertAlmostEqual(d["error"], math.sqrt(sum((x - d["mean"])**2 for x in each) / 40 / 39))
        alone = self.json("eval", self.hf, "--tasks", path)["tasks"][0]
        self.assertEqual(alone["accuracy"], task["against"]["accuracy"])
        self.assertNotIn("difference", alone)
        same = self.json("eval", self.hf, "--tasks", path, "--against", self.hf)["tasks"][0]
        self.assertEqual(same["difference"], {"mean": 0, "error": 0, "only_model": 0, "only_base": 0})
        out = self.lowbit("eval", model, "--tasks", path, "--against", self.hf).stdout.decode()
        self.assertRegex(out, r"difference, paired +[-+]\d")

    def test_text_report(self):
        out = self.lowbit("eval", self.hf, "--tasks", self.write("a.jsonl", [self.question(0)])).stdout.decode()
        self.assertRegex(out, r"accuracy")
        self.assertRegex(out, r"\nweights [\d.]+ [kM]?B, KV cache [\d.]+ [kM]?B, peak [\d.]+ MB of memory; \d+ tok/s for a prompt of \d+, \d+ tok/s generated\n$")

    def compared(self, *options, model=None):
        text = self.dir / "text.txt"
        text.write_text(" ".join(WORDS[(i * i + i // 5) % len(WORDS)] for i in range(600)))
        return self.json("eval", model or self.quantized("q", "--format", "int3"), "--against", self.hf, "--text", text, *options)

    def test_long_contexts(self):
        """A cache of 8 bits is nearly f16's, one of 2 bits less so; what is asked is the same for both."""
        model, text = make_model(self.dir / "long", "--context", "1200"), self.dir / "text.txt"
        text.write_text(" ".join(WORDS[(i * i + i // 5) % len(WORDS)] for i in range(1500)))
        call = ("eval", model, "--long", "--text", text, "-c", 1100, "--kv-residual", 0, "--act", "f32")
        reports = {kv: self.json(*call, "--lengths", "1100,700", "--kv", kv) for kv in ("int8", "int2", "fp8", "k4v3")}
        for kv, report in reports.items():
            self.assertKeys(report, "model activation kv kv_bytes base_kv base_kv_bytes drift lengths seconds")
            self.assertEqual((report["kv"], report["base_kv"], report["drift"]["context"]), (kv, "f16", 1100))
            self.assertLess(report["kv_bytes"], report["base_kv_bytes"])
            self.assertEqual([length["length"] for length in report["lengths"]], [700, 1100])
            for length in report["lengths"]:
                for probe in (length["needle"], length["chain"]):
                    self.assertGreater(probe["asked"], 5)
                    self.assertLessEqual(probe["both"], min(probe["base"], probe["model"]))
                written = length["written"][0]
                self.assertGreater(len(written["base"]), 10)
                self.assertEqual(written["alike"] == 48, written["base"] == written["model"])
            self.assertEqual([length["needle"]["base"] for length in report["lengths"]],
                             [length["needle"]["base"] for length in reports["int8"]["lengths"]])
        self.assertLess(4 * reports["int8"]["drift"]["kld_mean"], reports["int2"]["drift"]["kld_mean"])
        out = self.lowbit(*call, "--kv", "int4", "--lengths", 600).stdout.decode()
        self.assertRegex(out, r"of the answers that f16 has right, int4 has:\n")
        self.assertRegex(out, r"\n  f16: .+\n  int4: .+\n")
        kept = self.json(*call, "--kv", "int2", "--kv-keep", "first,last", "--lengths", 1100)
        # of two layers both stay
        self.assertEqual((kept["kv_bytes"], kept["drift"]["kld_mean"]), (kept["base_kv_bytes"], 0))
        old = self.json(*call, "--kv", "int8", "--kv-demote", "256:int2", "--lengths", 1100)
        self.assertLess(old["kv_bytes"], reports["int8"]["kv_bytes"])
        self.assertGreater(old["drift"]["kld_mean"], reports["int8"]["drift"]["kld_mean"])
        self.assertEqual(old["base_kv_bytes"], reports["int8"]["base_kv_bytes"])
        fresh = self.json(*call, "--kv", "int2", "--kv-refresh", 512, "--lengths", 1100)
        self.assertGreater(fresh["kv_bytes"], reports["int2"]["kv_bytes"])  # so many positions more in f16
        self.assertNotEqual(fresh["drift"]["kld_mean"], reports["int2"]["drift"]["kld_mean"])
        for wrong in (("int4", "--kv-demote", "256:int8"), ("int4", "--kv-demote", "int2"), ("int4", "--kv-refresh", 256, "--kv-demote", "100:int2")):
            self.assertIn("--kv-demote", self.refused(*call, "--kv", *wrong))
        self.assertIn("--kv-refresh", self.refused(*call, "--kv", "int4", "--kv-refresh", 64))
        self.refused("eval", model, "--long", code=2)
        self.refused("eval", model, "--long", "--kv", "int4", "--tasks", "ppl", code=2)
        self.refused("eval", model, "--lengths", "600", "--tasks", "ppl", code=2)
        self.assertIn("512 to 1100", self.refused(*call, "--kv", "int4", "--lengths", 300))
        self.assertIn("--kv-keep", self.refused(*call, "--kv", "int4", "--kv-keep", "first,9"))

    def test_divergence_and_drift(self):
        report = self.compared("--tasks", "ppl,kld,drift", "-c", 128, "--sequences", 3)
        self.assertKeys(report, "model activation footprint speed tasks")
        self.assertKeys(report["footprint"], "weight_bytes kv_bytes peak_bytes")
        self.assertKeys(report["speed"], "prefill_tok_s decode_tok_s")
        ppl, kld, drift = report["tasks"]
        self.assertGreater(ppl["ppl"], 1)
        self.assertKeys(drift, "context sequences windows tokens kld_mean kld_error top1 ppl base_ppl slope_per_1000 slope_error buckets histogram examples")
        self.assertEqual((drift["context"], drift["sequences"], drift["tokens"]), (128, 3, 384))
        self.assertGreater(drift["kld_mean"], 0)
        self.assertEqual(sum(drift["histogram"]["counts"]), 384)
        self.assertEqual([b["first"] for b in drift["buckets"]], list(range(0, 128, 8)))
        mean = sum(b["kld"] for b in drift["buckets"]) / 16
        self.assertAlmostEqual(mean, drift["kld_mean"], delta=1e-9)
        divergences = [e["kld"] for e in drift["examples"]]
        self.assertEqual(divergences, sorted(divergences, reverse=True))
        self.assertGreater(divergences[0], drift["kld_mean"])
        self.assertKeys(drift["examples"][0], "position kld before truth base model")
        self.assertEqual(kld["kld_mean"], drift["kld_mean"])  # the same sequences
        # as the option and the key were called
        old = self.compared("--tasks", "ppl", "-c", 128, "--windows", 3, model=self.dir / "q")["tasks"][0]
        self.assertEqual((old["ppl"], old["windows"]), (ppl["ppl"], ppl["sequences"]))

    def test_what_a_model_lost_needs_no_more_than_its_source(self):
        model = self.quantized("q", "--format", "int3")
        report = self.compared(model=model)
        kld, agreement, continuation = report["tasks"]
        self.assertEqual([t["name"] for t in report["tasks"]], ["kld", "agreement", "continuation"])
        self.assertTrue(0 < kld["kld_p50"] < kld["kld_p99"] and kld["kld_mean"] < kld["kld_p99"], kld)
        self.assertLessEqual(kld["kld_p99"], kld["examples"][0]["kld"])
        self.assertKeys(agreement, "against prompts prompt_tokens tokens lengths mean median never examples")
        self.assertEqual(len(agreement["lengths"]), agreement["prompts"])
        self.assertAlmostEqual(agreement["mean"], sum(agreement["lengths"]) / agreement["prompts"])
        self.assertLess(agreement["never"], 1)  # three bits of a random model
        shortest = agreement["examples"][0]
        self.assertNotEqual(shortest["model"], shortest["base"])
        self.assertEqual(continuation["questions"], len(continuation["right"]))
        self.assertKeys(continuation["difference"], "mean error only_model only_base")
        again = self.compared("--tasks", "agreement", "--threads", 1, model=model)["tasks"][0]
        self.assertEqual(again["lengths"], agreement["lengths"])

    def test_the_same_as_a_page(self):
        model, page = self.quantized("q", "--format", "int3"), self.dir / "page.html"
        report = self.compared("--page", page, model=model)
        (self.dir / "eval.json").write_text(json.dumps(report))
        drawn = self.json("report", self.dir / "eval.json", "-o", self.dir / "other.html")
        figures = {figure["name"]: figure["series"][0]["points"] for figure in drawn["figures"]}
        self.assertEqual(set(figures), {"divergence", "positions", "agreement"})
        lengths = report["tasks"][1]["lengths"]
        for tokens, share, _, _ in figures["agreement"]:
            self.assertAlmostEqual(share, 100 * sum(length >= tokens for length in lengths) / len(lengths))
        self.assertEqual(len(figures["positions"]), len(report["tasks"][0]["buckets"]))
        html, other = page.read_text(), (self.dir / "other.html").read_text()
        self.assertEqual(html.replace(">q", ">eval"), other.replace(">q", ">eval"))  # but for the model's name
        for wanted in ("still alike", "By position", "Where continuations part", "the original", f"{report['tasks'][0]['kld_p99']:.5f}"):
            self.assertIn(wanted, html)
        self.refused("eval", model, "--json", "--tasks", "ppl", "--text", self.dir / "text.txt", "-c", 64, "--page", self.dir / "no" / "page.html")

    def test_continuations_agree_as_far_as_they_run_alike(self):
        """The first prompt's length, by `run` from the command line."""
        model = self.quantized("q", "--format", "int3")
        agreement = self.compared("--tasks", "agreement", model=model)["tasks"][0]
        ids = self.json("tokenize", self.hf, "--file", self.dir / "text.txt", "--no-special")["ids"][:agreement["prompt_tokens"]]
        prompt = self.json("tokenize", self.hf, "--decode", ",".join(map(str, ids)))["text"]
        self.assertEqual(self.json("tokenize", self.hf, "-p", prompt, "--no-special")["ids"], ids)
        prompt_file = self.dir / "prompt.txt"
        prompt_file.write_text(prompt)
        one, other = (self.json("run", m, "--file", prompt_file, "-n", agreement["tokens"], "--temp", 0, "--ignore-eos", "--act", act)["tokens"]
                      for m, act in ((model, "int8"), (self.hf, "f32")))
        alike = next((i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), len(one))
        self.assertEqual(agreement["lengths"][0], alike)

    def test_a_model_does_not_differ_from_itself(self):
        agreement = self.compared("--tasks", "agreement", "--act", "f32", model=self.hf)["tasks"][0]
        self.assertEqual(set(agreement["lengths"]), {agreement["tokens"]})
        self.assertEqual((agreement["median"], agreement["never"], agreement["examples"]), (agreement["tokens"], 1, []))
        task = self.compared("--tasks", "kld", "-c", 64, "--act", "f32", model=self.hf)["tasks"][0]
        self.assertLess(abs(task["kld_mean"]), 1e-7)
        self.assertEqual(task["top1"], 1)

    def test_comparisons_refused(self):
        self.refused("eval", self.hf, "--tasks", "drift", code=2)
        short = self.dir / "short"
        short.write_text("a few words")
        self.assertIn("tokens", self.refused("eval", self.hf, "--tasks", "kld", "--against", self.hf, "--text", short, "-c", 64))
        self.refused("eval", self.hf, "--tasks", "kld", "--against", self.dir / "nothing", "--text", short)

    def test_a_report_in_one_page(self):
        folder = self.dir / "run"
        (folder / "sub").mkdir(parents=True)
        text = self.dir / "text.txt"
        text.write_text(" ".join(WORDS[(i * i + i // 5) % len(WORDS)] for i in range(900)))
        made = self.json("quantize", self.hf, self.dir / "q3", "--format", "int3", "--calib", text, "--calib-tokens", "1K")
        (folder / "quantize.json").write_text(json.dumps(made))
        (folder / "eval.json").write_text(json.dumps(self.json("eval", self.dir / "q3", "--against", self.hf, "--text", text, "--tasks", "kld,drift", "-c", 128)))
        (folder / "rivals.json").write_text(json.dumps({"program": "<others>", "rows": [{"type": "X & Y", "bits_per_weight": 4.5, "ratio": 1.2}]}))
        (folder / "q3.loss.json").write_text(json.dumps({"stages": [
            {"method": "blocks", "blocks": [{"block": 0, "first": 0.5, "last": 0.25}, {"block": 1, "first": None, "last": None}]},
            {"method": "full", "curve": [[1, 2.0], [2, 1.5], [3, 1.25]]}]}))
        page = self.dir / "page.html"
        report = self.json("report", folder, self.dir / "q3", "-o", page)
        self.assertEqual(report["comparisons"], 2)
        self.check_figures(report)
        html = page.read_text()
        for wanted in ("<svg", "X &amp; Y", "&lt;others&gt;", "Error per layer", "Drift", "Where the models differ most", "down_proj",
                       "block reconstruction", "KL divergence per token"):
            self.assertIn(wanted, html)
        self.assertNotIn("<script", html)
        self.assertNotIn("http", html.replace("http-equiv", ""))
        for tag in ("svg", "table", "g", "text"):
            self.assertEqual(html.count(f"<{tag} ") + html.count(f"<{tag}>"), html.count(f"</{tag}>"), tag)
        first = page.read_bytes()
        self.json("report", folder, self.dir / "q3", "-o", page)
        self.assertEqual(page.read_bytes(), first)

    def check_figures(self, report):
        """The numbers behind the page, and a PNG of each."""
        figures = {figure["name"]: figure for figure in report["figures"]}
        self.assertEqual(set(figures), {"perplexity", "errors-run", "errors-q3", "divergence", "positions", "drift", "loss-run-blocks", "loss-run-full"})
        self.assertIn([4.5, 1.2, 0, "X & Y"], [point for series in figures["perplexity"]["series"] for point in series["points"]])
        self.assertEqual([s["points"] for s in figures["loss-run-blocks"]["series"]], [[[0, 0.5, 0, ""]], [[0, 0.25, 0, ""]]])
        self.assertEqual(figures["loss-run-full"]["series"][0]["points"], [[1, 2, 0, ""], [2, 1.5, 0, ""], [3, 1.25, 0, ""]])
        heat = figures["errors-run"]
        self.assertEqual((len(heat["cells"]), len(heat["cells"][0]), heat["rows"][-1]), (7, 2, "down_proj"))
        self.assertAlmostEqual(sum(p[1] for p in figures["divergence"]["series"][0]["points"]), 100, delta=1e-6)
        missing = [m for m in ("numpy", "xxhash", "matplotlib") if importlib.util.find_spec(m) is None]
        if missing:
            print(f"no PNG files: Python packages {' and '.join(missing)} are not installed", file=sys.stderr)
            return
        out = self.dir / "pictures"

        def draw(text):
            return subprocess.run([sys.executable, "-m", "lowbit.plots", "-", "-o", out], input=text, capture_output=True, text=True,
                                  env=environment(PYTHONPATH=str(SOURCE / "python")))
        done = draw(json.dumps(report))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual({path.name for path in out.iterdir()}, {name + ".png" for name in figures})
        for path in out.iterdir():
            data = path.read_bytes()
            width, height = struct.unpack(">II", data[16:24])
            self.assertEqual((data[:8], data[12:16]), (b"\x89PNG\r\n\x1a\n", b"IHDR"))
            self.assertGreater(min(width, height), 300)
            self.assertGreater(len(data), 8000)  # something is drawn
        for bad in ("{", "[]", "{}", '{"figures": [{"name": "x", "kind": "cake"}]}', '{"figures": [7]}'):
            failed = draw(bad)
            self.assertEqual(failed.returncode, 1, bad)
            self.assertRegex(failed.stderr, r"^error: [^\n]*\n$")

    def test_reports_refused(self):
        self.refused("report", self.dir / "nothing")
        (self.dir / "bad.json").write_text("{")
        self.assertIn("bad.json", self.refused("report", self.dir / "bad.json"))
        (self.dir / "empty.json").write_text("{}")
        self.refused("report", self.dir / "empty.json")
        self.assertFalse((self.dir / "lowbit-report.html").exists())

    def test_refused(self):
        self.assertRegex(self.refused("eval", self.hf, "--tasks", "nowhere"), "nowhere.*ppl, kld, drift")
        for line in ({"query": "q", "choices": ["a"], "gold": 0}, {"query": "q", "choices": ["a", "b"], "gold": 2},
                     {"query": "q", "choices": ["a", 1], "gold": 0}, {"continuation": "x", "gold": 0}, {}):
            path = self.write("bad.jsonl", [self.question(0), line])
            self.assertIn("bad.jsonl:2", self.refused("eval", self.hf, "--tasks", path))
        (self.dir / "not.jsonl").write_text("not JSON\n")
        self.assertIn("not.jsonl:1", self.refused("eval", self.hf, "--tasks", self.dir / "not.jsonl"))
        (self.dir / "empty.jsonl").write_text("")
        self.refused("eval", self.hf, "--tasks", self.dir / "empty.jsonl")
        long = self.write("long.jsonl", [{"query": "word " * 2000, "choices": ["a", "b"], "gold": 0}])
        self.refused("eval", self.hf, "--tasks", long)
        self.refused("eval", self.hf, code=2)
        self.assertIn("hint: --text", self.refused("eval", self.hf, "--against", self.hf, env={"LOWBIT_DATA": self.dir}))


if __name__ == "__main__":
    unittest.main()
