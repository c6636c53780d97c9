"""The Python package's Model against the command line: the same library, tokens and texts."""
import pathlib
import subprocess
import threading
import unittest

import cli

try:
    import numpy as np
    import xxhash  # noqa: F401
except ImportError:
    np = None


@unittest.skipIf(np is None, "no numpy or no xxhash: pip install numpy xxhash")
class Runtime(cli.CliTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cli.load_package()
        import lowbit
        cls.lowbit_package = lowbit
        cls.model = lowbit.Model(cls.hf, threads=1)

    @classmethod
    def tearDownClass(cls):
        if hasattr(cls, "model"):
            cls.model.close()
        super().tearDownClass()

    def test_tokens_are_those_of_the_command_line(self):
        for text in ("old stone houses", "", "bread <|im_end|> rain", "\N{SNOWMAN} \0 z"):
            file = self.dir / "text"
            file.write_text(text)
            for options, arguments in (({}, []), ({"add_special": False}, ["--no-special"]), ({"parse_special": True}, ["--parse-special"])):
                wanted = self.json("tokenize", self.hf, "--file", file, *arguments)["ids"]
                self.assertEqual(self.model.tokenize(text, **options), wanted, text)
        self.assertEqual(self.model.detokenize(self.model.tokenize("old stone houses")), "old stone houses")

    def test_generation_is_the_command_lines(self):
        for options, arguments in (({"temperature": 0}, ["--temp", 0]), ({"seed": 3}, ["--seed", 3]),
                                   ({"top_k": 5, "top_p": 0.5, "min_p": 0.1, "repeat_penalty": 1.3, "temperature": 1.5},
                                    ["--top-k", 5, "--top-p", 0.5, "--min-p", 0.1, "--repeat-penalty", 1.3, "--temp", 1.5])):
            wanted = self.json("run", self.hf, "-p", "the river", "-n", 30, "--ignore-eos", *arguments)["text"]
            heard = []
            got = self.model.generate("the river", max_tokens=30, ignore_eos=True, on_text=heard.append, **options)
            self.assertEqual(got, wanted)
            self.assertEqual("".join(heard), wanted)
            self.assertGreater(len(heard), 1)

    def test_steered_and_explained_generations(self):
        call = ("run", self.hf, "-p", "the river", "-n", 20, "--ignore-eos", "--temp", 0)
        options = {"max_tokens": 20, "ignore_eos": True, "temperature": 0}
        plain = self.json(*call, "--logprobs", 2)
        heard = []
        self.assertEqual(self.model.generate("the river", top_logprobs=2, on_logprobs=heard.append, **options), plain["text"])
        self.assertEqual([(t.token, [i for i, _ in t.top]) for t in heard],
                         [(t["token"], [i["token"] for i in t["top"]]) for t in plain["logprobs"]])
        for got, wanted in zip(heard, plain["logprobs"]):
            self.assertAlmostEqual(got.logprob, wanted["logprob"], places=6)
        stop, first = plain["text"][7:11], plain["tokens"][0]
        for arguments, more in ((["--stop", stop], {"stop": stop}), (["--stop", "no", "--stop", stop], {"stop": ["no", stop]}),
                                (["--logit-bias", f"{first}=-inf"], {"logit_bias": {first: -np.inf}}),
                                (["--allow-tokens", "5,70,300"], {"allowed_tokens": [5, 70, 300]}),
                                (["--presence-penalty", 3, "--frequency-penalty", 0.5, "--repeat-window", 5],
                                 {"presence_penalty": 3, "frequency_penalty": 0.5, "repeat_window": 5})):
            got = self.model.generate("the river", **more, **options)
            self.assertEqual(got, self.json(*call, *arguments)["text"])
            self.assertNotEqual(got, plain["text"])
            with self.model.session() as session:
                self.assertEqual(session.generate(self.model.tokenize("the river"), **more, **options), got)

        def fail(_):
            raise KeyError("heard enough")
        with self.assertRaises(KeyError):
            self.model.generate("the river", on_logprobs=fail, **options)
        for wrong in ({"stop": ""}, {"stop": "a\0"}, {"allowed_tokens": []}, {"logit_bias": {-1: 1}}, {"logit_bias": {10**6: 1}},
                      {"logit_bias": {1: np.nan}}, {"presence_penalty": np.inf}):
            with self.assertRaises(self.lowbit_package.LowbitError):
                self.model.generate("the river", **wrong, **options)
        with self.assertRaises(TypeError):
            self.model.generate("the river", stopp="x")

    def test_the_end_of_a_text_can_be_ignored(self):
        def length(seed, ignore_eos):
            self.model.generate("x", max_tokens=100, temperature=1e3, top_k=0, top_p=1, min_p=0, seed=seed, ignore_eos=ignore_eos)
            return self.model.length
        prompt = len(self.model.tokenize("x"))
        self.assertEqual({length(seed, True) for seed in range(30)}, {prompt + 99})
        self.assertGreater(len({length(seed, False) for seed in range(30)}), 1)

    def test_chat_is_the_command_lines(self):
        lines = "hello\nand then?\n"
        wanted = self.json("chat", self.hf, "--system", "be brief", "--temp", 0, "-n", 8, stdin=lines.encode())["messages"]
        said = [{"role": "system", "content": "be brief"}]
        for line in lines.splitlines():
            said.append({"role": "user", "content": line})
            said.append({"role": "assistant", "content": self.model.chat(said, temperature=0, max_tokens=8)})
        self.assertEqual(said, wanted)
        self.assertNotEqual(self.model.chat_text(said), self.model.chat_text(said, add_generation_prompt=False))
        with self.assertRaises(self.lowbit_package.LowbitError):
            self.model.chat_text([{"role": "user"}, 3])

    def test_logits_continue_a_sequence(self):
        tokens = self.model.tokenize("old stone houses while people talk")
        self.model.truncate()
        whole = self.model.append(tokens)
        self.assertEqual((whole.dtype, whole.shape, self.model.length), (np.float32, (self.model.vocab_size,), len(tokens)))
        self.model.truncate(2)
        for token in tokens[2:]:
            step = self.model.append([token])
        self.assertTrue(np.array_equal(step, whole))
        kept = whole.copy()
        self.model.generate([1], max_tokens=2)
        self.assertTrue(np.array_equal(whole, kept), "logits must not change with the model")

    def test_keep_goes_on_where_the_sequence_is(self):
        first = self.model.generate("the river", max_tokens=4, temperature=0, ignore_eos=True)
        length = self.model.length
        self.model.generate(" runs", max_tokens=4, temperature=0, ignore_eos=True, keep=True)
        self.assertGreater(self.model.length, length)
        self.assertEqual(self.model.generate("the river", max_tokens=4, temperature=0, ignore_eos=True), first)
        self.assertEqual(self.model.length, length)

    def test_what_on_text_raises_reaches_the_caller(self):
        def stop(_):
            raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            self.model.generate("the river", on_text=stop, ignore_eos=True)
        self.assertLess(self.model.length, 20)

    def test_errors_have_the_librarys_words(self):
        lowbit = self.lowbit_package
        with self.assertRaises(lowbit.LowbitError) as caught:
            lowbit.Model("/nonexistent/model")
        self.assertIn("/nonexistent/model", str(caught.exception))
        self.assertEqual(caught.exception.status, "not_found")
        with self.assertRaisesRegex(lowbit.LowbitError, "temperature"):
            self.model.generate("x", temperature=-1)
        with self.assertRaises(lowbit.LowbitError):
            self.model.append([])
        for token in (self.model.vocab_size, -1, 2**32 + 1):
            with self.assertRaisesRegex(lowbit.LowbitError, str(token)):
                self.model.append(np.array([token]))
        with self.assertRaises(lowbit.LowbitError):
            lowbit.Model(self.hf, activation="float17")
        with self.assertRaisesRegex(lowbit.LowbitError, "32 bits"):
            lowbit.Model(self.hf, threads=2**32 + 1)
        with self.assertRaisesRegex(lowbit.LowbitError, "activation: got a zero character"):
            lowbit.Model(self.hf, activation="int8\0-row")
        session, beside = self.model.session(), self.dir / "session"
        for call in (session.save, session.load):  # C would take the name before it
            with self.assertRaisesRegex(lowbit.LowbitError, "path: got a zero character"):
                call(f"{beside}\0-1")
        self.assertFalse(beside.exists())
        with self.assertRaisesRegex(lowbit.LowbitError, "max_tokens"):
            self.model.generate("x", max_tokens=2**64 + 1)
        self.model.truncate()
        self.model.append([5, 6])
        for seed in (-1, 2**64):
            with self.assertRaisesRegex(lowbit.LowbitError, f"seed: got {seed}, wanted .* 0 or more"):
                self.model.generate("x", seed=seed)
        with self.assertRaisesRegex(lowbit.LowbitError, "length"):
            self.model.truncate(2**64)
        self.assertEqual(self.model.length, 2)  # as it was
        with lowbit.Model(self.hf, context=16, threads=1) as model:
            with self.assertRaises(lowbit.LowbitError):
                model.append([1] * 17)
        with self.assertRaisesRegex(lowbit.LowbitError, "after close"):
            model.append([1])
        self.assertEqual((model.length, model.vocab_size), (0, 0))

    def test_two_calls_at_once_are_refused(self):
        lowbit, refused = self.lowbit_package, []

        def meddle(_):
            def other():
                try:
                    self.model.append([1])
                except lowbit.LowbitError as error:
                    refused.append(str(error))
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
            with self.assertRaisesRegex(lowbit.LowbitError, "one call at a time"):
                self.model.close()

        self.model.generate("the river", max_tokens=3, ignore_eos=True, on_text=meddle)
        self.assertTrue(refused and all("one call at a time" in line for line in refused))

    def test_sessions_on_threads_write_what_each_writes_alone(self):
        texts = ["the river", "old stone houses while people talk about bread and rain", "x", "bread"]
        options = [{"max_tokens": 30, "seed": i, "ignore_eos": True} for i in range(8)]
        with self.lowbit_package.Model(self.hf, threads=2) as model:
            wanted = [model.generate(texts[i % 4], **options[i]) for i in range(8)]
            prefix = model.session()
            prefix.append(model.tokenize("the river"))
            forked = [prefix.fork() for _ in range(8)]
            alone = [forked[i].generate([5, 6], **options[i]) for i in range(8)]
            for session in forked:
                session.truncate(prefix.length)
            sessions, got, again, failed = [model.session() for _ in range(8)], [""] * 8, [""] * 8, []
            start = threading.Barrier(16)

            def write(session, prompt, i, texts_of):
                try:
                    start.wait()
                    texts_of[i] = session.generate(prompt, **options[i])
                except BaseException as error:
                    failed.append(error)

            threads = [threading.Thread(target=write, args=(sessions[i], texts[i % 4], i, got)) for i in range(8)]
            threads += [threading.Thread(target=write, args=(forked[i], [5, 6], i, again)) for i in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual((failed, got, again), ([], wanted, alone))
        self.assertEqual(len(set(wanted)), 8)

    def test_a_session_goes_on_forks_and_goes_back(self):
        lowbit, tokens = self.lowbit_package, self.model.tokenize("old stone houses while people talk")
        self.model.truncate()
        whole = self.model.append(tokens)
        model = lowbit.Model(self.hf, threads=1)
        with model.session() as one:
            self.assertEqual(one.length, 0)
            self.assertTrue(np.array_equal(one.append(tokens), whole))
            two = one.fork()
            self.assertFalse(np.array_equal(one.append([3]), two.append([4])))
            one.truncate(2)
            self.assertEqual((one.length, two.length, model.length), (2, len(tokens) + 1, 0))
            self.assertTrue(np.array_equal(one.append(tokens[2:]), whole))
            with self.assertRaisesRegex(lowbit.LowbitError, "fork"):
                one.__reduce_ex__(2)
            file = self.dir / "session"
            one.save(file)
            again = model.session()
            again.load(str(file))
            self.assertEqual((again.tokens, again.length, one.tokens), (tokens, len(tokens), tokens))
            self.assertTrue(np.array_equal(again.append([3]), one.append([3])))
            file.write_bytes(file.read_bytes()[:-1])
            with self.assertRaisesRegex(lowbit.LowbitError, "session"):
                again.load(file)
            self.assertEqual(again.length, len(tokens) + 1)
        with self.assertRaisesRegex(lowbit.LowbitError, "session: got a call after close"):
            one.append([1])
        self.assertEqual(one.length, 0)
        wanted = self.model.generate("the river", max_tokens=5, temperature=0, ignore_eos=True)
        three, greedy = model.session(), {"max_tokens": 5, "temperature": 0, "ignore_eos": True}
        self.assertEqual(three.generate("the river", **greedy), wanted)
        length = three.length
        three.generate(" runs", **greedy)
        self.assertGreater(three.length, length)  # it goes on
        model.close()
        with self.assertRaisesRegex(lowbit.LowbitError, "after close"):
            model.session()
        # no open model is needed, not even for a text
        self.assertEqual(two.fork().generate("x", max_tokens=1) is not None, True)
        self.assertEqual(model.vocab_size, 0)

    def test_sessions_append_together_what_each_appends_alone(self):
        lowbit, texts = self.lowbit_package, [[5, 6, 7], [9], [3, 4, 5, 6, 7, 8]]
        alone = [self.model.session().append(tokens) for tokens in texts]
        sessions = [self.model.session() for _ in texts]
        self.assertTrue(np.array_equal(lowbit.append_together(zip(sessions, texts)), np.stack(alone)))
        self.assertEqual([s.length for s in sessions], [3, 1, 6])
        for wrong, why in [([(sessions[0], [1]), (sessions[0], [2])], "twice"), ([(sessions[0], [1]), (sessions[1], [])], "token"),
                           ([(sessions[0], [1]), (sessions[1], [10**6])], "token")]:
            with self.assertRaisesRegex(lowbit.LowbitError, why):
                lowbit.append_together(wrong)
        self.assertEqual([s.length for s in sessions], [3, 1, 6])
        self.assertEqual(lowbit.append_together([]).size, 0)
        other = lowbit.Model(self.hf, threads=1)
        with self.assertRaisesRegex(lowbit.LowbitError, "another model"):
            lowbit.append_together([(sessions[0], [1]), (other.session(), [1])])

    def test_a_session_without_memory_is_told_and_may_wait(self):
        lowbit = self.lowbit_package
        with lowbit.Model(self.hf, threads=1, context=64, kv_positions=64) as model:
            one, two = model.session(), model.session()
            one.append([1, 2])
            with self.assertRaises(lowbit.LowbitError) as caught:
                two.append([1, 2])
            self.assertEqual((caught.exception.status, two.length), ("out_of_memory", 0))
            one.append([3])
            for seconds in (-1, float("nan")):
                with self.assertRaisesRegex(lowbit.LowbitError, "seconds"):
                    two.wait_for_pages(seconds)
            two.wait_for_pages(60)
            threading.Timer(0.05, one.close).start()
            two.append([1, 2])
            self.assertEqual(two.length, 2)
            with self.assertRaisesRegex(lowbit.LowbitError, "kv_positions"):
                lowbit.Model(self.hf, kv_positions=-1)

    def test_a_quantized_cache(self):
        """One that is cut back far is as one that never went there, and what fails on the way loses nothing."""
        lowbit, text = self.lowbit_package, [2 + 7 * i % 200 for i in range(900)]
        path = cli.make_model(self.dir / "long", "--context", "1024")
        options = dict(threads=1, context=1024, kv_positions=18 * 64, kv="int4")
        with lowbit.Model(path, **options) as model, lowbit.Model(path, threads=1, context=1024) as exact:
            one, two = model.session(), model.session()
            whole = one.append(text)
            self.assertFalse(np.array_equal(whole, exact.append(text)))
            one.truncate(150)
            self.assertTrue(np.array_equal(one.append(text[150:]), whole))
            two.append(text[:450])  # 16 of 18 f16 pages are in use
            with self.assertRaises(lowbit.LowbitError) as caught:
                one.truncate(500)
            self.assertEqual((caught.exception.status, one.length), ("out_of_memory", 900))
            following = one.append([5])
            two.truncate()
            one.truncate(500)
            self.assertTrue(np.array_equal(one.append([*text[500:], 5]), following))
        options = dict(threads=1, context=1024, kv="int4", kv_residual=64, kv_refresh=256, kv_demote="256:int2")
        with lowbit.Model(path, **options) as model:
            one, two = model.session(), model.session()
            whole = one.append(text)
            for i in range(0, 900, 60):
                pieces = two.append(text[i:i + 60])
            self.assertTrue(np.array_equal(pieces, whole))
            one.truncate(500)  # before a refresh
            self.assertTrue(np.array_equal(one.append(text[500:]), whole))
        for wrong in (dict(kv="int5"), dict(kv="int4", kv_residual=-1), dict(kv="q4_0"), dict(kv_refresh=256), dict(kv="int4", kv_demote="256"),
                      dict(kv="int4", kv_refresh=-256), dict(kv="int4", kv_demote="256:int8")):
            with self.assertRaises(lowbit.LowbitError):
                lowbit.Model(path, **wrong)

    def test_two_calls_with_a_session_are_refused_and_texts_are_not(self):
        lowbit, session, seen = self.lowbit_package, self.model.session(), []

        def meddle(_):
            for call in (lambda: session.append([1]), session.fork, session.close):
                with self.assertRaisesRegex(lowbit.LowbitError, "session: .*one call at a time.*fork"):
                    call()
            thread = threading.Thread(target=lambda: seen.append(self.model.tokenize("the river")))
            thread.start()
            thread.join()
            with self.model.session() as other:
                seen.append(other.generate("the river", max_tokens=2))

        session.generate("the river", max_tokens=2, ignore_eos=True, on_text=meddle)
        self.assertEqual(seen[0], self.model.tokenize("the river"))
        self.assertGreaterEqual(len(seen), 4)

    def test_the_example_of_sessions_in_c(self):
        program = pathlib.Path(cli.BINARY).parent / "example_sessions"
        if not program.exists():
            self.skipTest(f"no {program}")
        done = subprocess.run([program, self.hf, "3", "20", "the river"], capture_output=True, timeout=cli.TIMEOUT_S, env=cli.environment())
        self.assertEqual(done.returncode, 0, done.stderr)
        texts = [self.json("run", self.hf, "-p", "the river", "-n", 20, "--ignore-eos", "--seed", seed)["text"] for seed in range(3)]
        self.assertEqual(done.stdout.decode(errors="replace"), "".join(f"{seed}: {text}\n" for seed, text in enumerate(texts)))
        self.assertEqual(subprocess.run([program, self.hf, "0"], capture_output=True).returncode, 2)

    def test_layers_without_their_ending(self):
        checkpoint = self.lowbit_package.Checkpoint(self.quantized("int4", "--format", "int4"))
        name = next(iter(checkpoint.layers))
        for asked, hint in ((name.removesuffix(".weight"), f"did you mean '{name}'"), ("no.such.layer", "Checkpoint.layers$")):
            with self.assertRaisesRegex(self.lowbit_package.LowbitError, hint):
                checkpoint.weight(asked)


if __name__ == "__main__":
    unittest.main()
