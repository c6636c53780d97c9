"""Help, versions and the mistakes a command line can hold: exit 2 and one line."""
import json
import random
import re
import shlex
import unittest
import zipfile

from cli import VERBS, CliTest, gru_files, make_model, text


class Help(CliTest):
    def test_program(self):
        text = self.lowbit("--help").stdout.decode()
        for verb in VERBS:
            self.assertIn(verb.split()[0], text)
        self.assertEqual(self.lowbit("help").stdout.decode(), text)
        self.assertRegex(self.lowbit("--version").stdout.decode(), r"\Alowbit \d+\.\d+\.\d+\n\Z")

    def test_every_verb(self):
        for verb in VERBS:
            with self.subTest(verb):
                done = self.lowbit(*verb.split(), "--help")
                text = done.stdout.decode()
                for option in ("--json", "--quiet", "--threads", "--device", "--isa", "--version"):
                    self.assertIn(option, text)
                self.assertEqual(done.stderr, b"")
                self.lowbit(*verb.split(), "--version")
                self.assertEqual(self.lowbit("help", *verb.split()).stdout, done.stdout)

    def test_fits_a_terminal(self):
        for verb in ["", "bench", "gru", *VERBS]:
            for line in self.lowbit(*verb.split(), "--help").stdout.decode().splitlines():
                with self.subTest(verb):
                    self.assertLessEqual(len(line), 80, line)
                    self.assertEqual(line, line.rstrip())

    def test_examples_work(self):
        """The examples of every verb, one after the other in one folder."""
        net, x = gru_files(random.Random(1))
        with zipfile.ZipFile(self.dir / "net.npz", "w") as file:
            for name, data in net.items():
                file.writestr(name, data)
        (self.dir / "x.npy").write_bytes(x)
        (self.dir / "text.txt").write_text(text(1500))
        (self.dir / "eval").mkdir()
        question = {"query": "Which is bread?", "choices": ["bread", "rain"], "gold": 0}
        (self.dir / "eval" / "arc_easy.jsonl").write_text(json.dumps(question) + "\n")
        env = {"LOWBIT_MODEL": make_model(self.dir / "model", "--context", "512"), "LOWBIT_DATA": str(self.dir)}
        for verb in VERBS:
            lines = self.lowbit(*verb.split(), "--help").stdout.decode().partition("\nExample")[2].replace("\\\n", "").splitlines()[1:]
            self.assertTrue(lines, f"{verb} has no example")
            for line in lines:
                with self.subTest(line):
                    words = shlex.split(line)
                    self.assertEqual(words[:len(verb.split()) + 1], ["lowbit", *verb.split()])
                    self.lowbit(*words[1:], env=env, cwd=self.dir)

    def test_options_of_interface(self):
        wanted = {
            "import": "SRC OUT --force", "verify": "PATH", "doctor": "",
            "quantize": "SRC OUT --preset --format --group --calib --calib-tokens --recipe --keep --target-bpw --rotate --force --help-all",
            "inspect": "PATH --formats --all --format --kernels",
            "run": "MODEL -p -n --act --temp --top-k --top-p --min-p --repeat-penalty --seed -c --file --ignore-eos --trace --kv-keep --kv-demote --kv-refresh --prompt-cache --prompt-cache-ro",
            "trace": "TRACE --top --tolerance",
            "chat": "MODEL --system --session", "tokenize": "MODEL -p --file --decode", "logits": "MODEL -p --file --top --all --output --act -c",
            "eval": "MODEL --tasks --questions -c --act --long --lengths --kv",
            "ppl": "MODEL -f -c --act --chunks --method --save-logits --against",
            "bench matmul": "--format --group -M -N -K --act --cold --warm --vs", "bench model": "MODEL -p -n --kv --kv-demote --kv-refresh",
            "bench attention": "-c --heads --kv-heads --head-dim --kv --kv-residual", "bench memory": "--bytes", "bench gru": "-T -N -C -H --preset --weight-bits --vs", "bench fp8": "-M -N -K --groups --warm --seconds --vs", "report": "DIR --output",
            "gru calibrate": "NET --data --h0 --method --percentile --select --output",
            "gru quantize": "NET --ranges --encodings --preset --bits --data --output",
            "gru tune": "NET --ranges --data --preset --bits --passes --output",
            "gru search": "NET --ranges --input --floor --preset --bits --output", "gru encodings": "MODEL --schema --output",
            "gru run": "MODEL --input --output --float --net --trace --h0 --lengths --final --batch-first",
            "gru verify": "MODEL --input --net",
        }
        for verb, options in wanted.items():
            text = self.lowbit(*verb.split(), "--help").stdout.decode()
            for option in options.split():
                with self.subTest(f"{verb} {option}"):
                    self.assertIn(option, text)


    def test_help_all(self):
        """Options that few need stand in --help-all alone, which has the rest too."""
        brief, full = (self.lowbit("quantize", option).stdout.decode() for option in ("--help", "--help-all"))
        options = [set(re.findall(r"^  (?:-\w,)?(--[\w-]+)", text, re.M)) for text in (brief, full)]
        self.assertLessEqual(options[0], options[1])
        self.assertEqual(options[1] - options[0], {"--fit", "--scale", "--zero", "--hadamard", "--smooth", "--embedding", "--head", "--seed"})
        for text in (brief, full):
            self.assertNotIn("\n\n\n", text)
            self.assertIn("\n\nCommon options:\n", text)
            for line in text.splitlines():
                self.assertLessEqual(len(line), 80, line)
        self.refused("inspect", "--all", code=2)


class Usage(CliTest):
    def test_wrong_command_lines(self):
        m = self.hf
        for line in ("", "no-such-verb", "run", f"run {m}", f"run {m} -p", f"run {m} -p x --file y", "quantize a",
                     "quantize a b", f"quantize {m} b --format int4 extra", "inspect", "tokenize x", "bench",
                     "bench nothing", "ppl x", "verify", "trace", "trace a b c", "trace a --top 3", "trace a --tolerance 1", "doctor --no-such-option", f"tokenize {m} -p x --file y",
                     "bench matmul --format int4 --cold --warm"):
            with self.subTest(line):
                self.refused(*line.split(), code=2)

    def test_what_was_meant(self):
        """The word that is wrong and what it may have been, whatever stands around it."""
        for line, got, wanted in (("quantise a b", "'quantise'", "did you mean `quantize`?"),
                                  ("bench mtmul", "'mtmul'", "did you mean `matmul`?"),
                                  ("quantize a b --fromat int4", "'--fromat'", "did you mean `--format`?"),
                                  ("quantize a b --fromat=int4", "'--fromat'", "did you mean `--format`?"),
                                  ("quantize a b -format int4", "'-format'", "did you mean `--format`?"),
                                  ("run a --top_k 3 -p x", "'--top_k'", "did you mean `--top-k`?"),
                                  ("run -m a -p x", "'-m'", "here it is `MODEL`;"), ("quantize -m a b", "'-m'", "here it is `SRC`;"),
                                  ("run a -p x --n-predict 4", "'--n-predict'", "here it is `--tokens`;"),
                                  # which has no such option
                                  ("tokenize a --n-predict 4", "'--n-predict'", "hint: see"),
                                  ("quantize a b --bits 4", "'--bits'", "here it is `--format`;"),
                                  ("quantize a b --format Q4_K_M", '"Q4_K_M"', "did you mean `int4`?"),
                                  ("quantize a b --format INT3", '"INT3"', "did you mean `int3`?"),
                                  ("quantize a b --format fp16", '"fp16"', "did you mean `f16`?"),
                                  ("quantize a b --format int5", '"int5"', "trellis3. hint: `lowbit inspect"),
                                  ("quantize a b --format best", '"best"', "trellis3. hint: `lowbit inspect"),
                                  ("run a -p x -q", "'-q'", "one of its options. hint: see"),
                                  ("run a b -p x", "also 'b'", "MODEL and options"), ("doctor a b", "also 'b'", "MODEL and options"),
                                  ("bench memory a", "also 'a'", "options only"),
                                  ("--json run a -p x", "'--json' before the verb", "options behind it"),
                                  ("--threads 2 doctor", "'--threads' before the verb", "options behind it"),
                                  ("run a -p", "--prompt without a value", "wanted one"),
                                  ("run a -p x --temp=", "--temp without a value", "wanted one"),
                                  ("run a -p x -n 3 -n 4", "--tokens twice", "it once"),
                                  ("run a -p x --file y", "--prompt and --file", "one of them"),
                                  ("quantize a b", "no format", "--preset P, --format F or --target-bpw X"),
                                  ("quantize a b --format int4 --target-bpw 3", "several of --preset, --format and --target-bpw", "--preset P, --format F or"),
                                  ("quantize a b --format int4 --preset best", "several of --preset, --format and --target-bpw", "--preset P, --format F or"),
                                  ("quantize a b --preset tiny", '"tiny"', "best, balanced, small"),
                                  ("quantize a b --preset best --group 32", "--preset and --group", "one of them"),
                                  ("eval a", "no --tasks", "--against SOURCE"),
                                  ("eval a --tasks ppl,kld", "no --against", "--against MODEL"),
                                  ("gru quantize a -o b", "no ranges", "gru calibrate")):
            with self.subTest(line):
                error = self.refused(*line.split(), code=2)
                self.assertIn(f": got {got}", error)
                self.assertIn(wanted, error)

    def test_wrong_verbs_are_named(self):
        for line, got, wanted in (("no-such-verb", "'no-such-verb'", "quantize"), ("bench nothing", "'nothing'", "matmul, model"),
                                  ("gru", "no verb", "calibrate, quantize")):
            with self.subTest(line):
                error = self.refused(*line.split(), code=2)
                self.assertIn(f"got {got}, wanted one of ", error)
                self.assertIn(wanted, error)

    def test_wrong_values(self):
        m, q = self.hf, f"quantize {self.hf} {self.dir}/out --format"
        for line, named in ((f"{q} int9", "--format"), (f"{q} int2-planes", "--format"), (f"{q} int4 --group 7x", "--group"),
                            (f"{q} int4 --scale f17", "--scale"), (f"{q} int4 --fit best", "--fit"),
                            (f"{q} int4 --embedding nothing", "--embedding"), (f"{q} int4 --threads 0", "--threads"),
                            (f"{q} int4 --threads many", "--threads"), (f"{q} int4 --device tpu", "--device"),
                            (f"run {m} -p x --device cuda:0,tpu", "--device"), (f"run {m} -p x --gpu-layers -1", "--gpu-layers"),
                            (f"{q} int4 --isa sse9", "--isa"), (f"{q} int4 --seed -1", "--seed"),
                            (f"run {m} -p x -n -5", "--tokens"), (f"run {m} -p x -n 5T", "--tokens"),
                            (f"run {m} -p x --temp nan", "--temp"), (f"run {m} -p x --top-p 1.5", "--top-p"),
                            (f"run {m} -p x --act int5", "--act"), (f"ppl {m} -f x -c 1", "--context"),
                            (f"ppl {m} -f x --method mine", "--method"), ("inspect --format int9", "--format"),
                            ("bench matmul --format int4 --group tensor", "--group"),
                            ("bench matmul --format int4 --vs sse9", "--vs"), ("bench memory --bytes 1K", "--bytes"),
                            (f"tokenize {m} --decode 1,x", "--decode"), (f"tokenize {m} --decode 1,,2", "--decode"),
                            (f"ppl {m} -f x --chunks 0", "--chunks"), ("trace a b --top 0", "--top"), ("trace a b --tolerance nan", "--tolerance")):
            with self.subTest(line):
                error = self.refused(*line.split(), code=2)
                self.assertRegex(error, rf"\Aerror: [^:]*{named}: got ['\"][^'\"]*['\"], wanted ")
        self.assertFalse((self.dir / "out").exists())

    def test_wrong_environment(self):
        self.assertIn("LOWBIT_LOG", self.refused("doctor", code=2, env={"LOWBIT_LOG": "loud"}))
        for name, value in (("LOWBIT_ISA", "sse9"), ("LOWBIT_THREADS", "many"), ("LOWBIT_DEVICE", "tpu")):
            with self.subTest(name):
                self.assertIn(name, self.refused("run", self.hf, "-p", "x", env={name: value}))

    def test_errors_of_json_calls_go_to_stderr(self):
        self.refused("run", "--json", self.dir / "absent", "-p", "x")
        self.refused("run", "--json", code=2)


if __name__ == "__main__":
    unittest.main()
