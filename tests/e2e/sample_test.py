"""python -m lowbit.sample and what lowbit.recover makes of sampled sequences. Needs torch."""
import contextlib
import importlib.util
import io
import sys
import unittest

import cli
from cli import SOURCE, CliTest

MISSING = [m for m in ("numpy", "torch", "jinja2") if importlib.util.find_spec(m) is None]


@unittest.skipIf(MISSING, f"Python packages {' and '.join(MISSING)} are not installed")
class Sample(CliTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        sys.path.insert(0, str(SOURCE / "python"))
        cls.text = cls.models / "text.txt"
        cls.text.write_text(cli.text(1500))

    def sample(self, *options, code=0, model=None):
        from lowbit.sample import main
        arguments = [model or self.hf, "--lowbit", cli.BINARY, "--device", "cpu", "--threads", "1", "--sequence-length", "32", "--tokens", "1024", "--quiet"]
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            try:
                got = main(list(map(str, [*arguments, *options])))
            except SystemExit as left:  # argparse
                got = left.code
        self.assertEqual(got, code, errors.getvalue()[-2000:])
        return errors.getvalue()

    def sequences(self, *options, name="out.npz"):
        import numpy as np
        self.sample("-o", self.dir / name, "--force", *options)
        with np.load(self.dir / name) as stored:
            return stored["sequences"], stored["kinds"]

    def ids(self, text):
        return self.json("tokenize", self.hf, "-p", text, "--no-special", "--parse-special")["ids"]

    def test_sequences_begin_as_the_mix_says(self):
        openings = self.dir / "openings.txt"
        openings.write_text("the old river\n\nbread:\\n- rain\n> rain\n")
        mix = "text=1,begin=2,chat=1,opening=3,any=1"
        sequences, kinds = self.sequences("--sample-mix", mix, "--sample-openings", openings, "--data", self.text)
        self.assertEqual((sequences.shape, str(sequences.dtype)), ((32, 32), "int32"))
        self.assertEqual({k: int((kinds == k).sum()) for k in set(kinds.tolist())}, {"text": 4, "begin": 8, "chat": 4, "opening": 12, "any": 4})
        text, seen = self.ids(self.text.read_text()), set()
        turn = self.ids("<|im_start|>user\n")
        lines = [self.ids("the old river"), self.ids("bread:\n- rain"), turn + self.ids("rain")]
        for sequence, kind in zip(sequences.tolist(), kinds):
            if kind == "begin":
                self.assertEqual(sequence[0], 1)
            elif kind == "opening":
                seen.add(next(i for i, line in enumerate(lines) if sequence[:len(line)] == line))
            elif kind == "text":
                self.assertTrue(any(text[i:i + 8] == sequence[:8] for i in range(len(text))))
            elif kind == "chat":
                self.assertEqual(sequence[:len(turn)], turn)
        self.assertEqual(seen, {0, 1, 2})
        self.assertGreater(len({tuple(w) for w in sequences.tolist()}), 28)

    def test_rewritten_sequences_are_text_but_for_every_second_span(self):
        sequences, kinds = self.sequences("--sample-mix", "rewritten=1,any=1", "--data", self.text, "--sequence-length", "128", "--tokens", "4096")
        self.assertEqual((sequences.shape[1], int((kinds == "rewritten").sum())), (128, 16))
        text, returns = self.ids(self.text.read_text()), 0
        for sequence in sequences[kinds == "rewritten"].tolist():
            at = [i for i in range(len(text) - 127) if text[i:i + 16] == sequence[:16]]
            same = max(([a == b for a, b in zip(sequence, text[i:])] for i in at), key=sum)
            first = same.index(False) if False in same else 128
            self.assertGreaterEqual(first, 16)
            # A model with random weights does not write on as the text goes on: where it does for 16 tokens, it is the
            # text.
            returns += any(all(same[i:i + 16]) for i in range(first, 112))
        self.assertGreater(returns, 2)
        from lowbit.recover.sampling import beginnings_of
        self.assertEqual(beginnings_of({"rewritten": 1.0, "any": 1.0}, self.hf, None, [], 300, cli.BINARY, None).mix, {"any": 1.0})

    def test_words_of_a_vocabulary(self):
        from lowbit.recover.words import FORMS, WORD, special_tokens, vocabulary_of, vocabulary_words
        tokens = ["Ġthe", "Ġthem", "ĠThem", "ĠParis", "ĠNASA", "▁bread", "river", "Ġcafé", "Ġr2d2x", "Ġ    ", "Ġ<|im_end|>"]
        tokenizer = {"model": {"vocab": {token: i for i, token in enumerate(tokens)}}, "added_tokens": [{"id": 7, "special": True}, {"id": 8, "special": False}]}
        self.assertEqual(vocabulary_words(tokenizer), ["NASA", "Paris", "bread", "them"])
        self.assertEqual(special_tokens(tokenizer), {7})
        for nothing in ({}, {"model": None}, {"model": {"vocab": [["Ġwords", -1.0]]}}):
            self.assertEqual((vocabulary_words(nothing), vocabulary_of(nothing), special_tokens(nothing)), ([], {}, set()))
        lines = FORMS.read_text().splitlines()
        self.assertTrue(all(line.count(WORD) == 1 and line == line.strip() for line in lines) and len(set(lines)) == len(lines))
        self.assertFalse([line for line in lines if "Question" in line or "Answer" in line])

    def test_passages_are_packed(self):
        """Inputs of the teacher and the use of its texts, with a teacher that ends a passage with token 2 after some
        'a's."""
        import numpy as np
        from lowbit.recover.words import MIN_P, Words, pack

        def ids(lines):
            return [list(line.encode()) for line in lines]

        turn = ([1, 50, 51, 1, 60], [2, 61])  # a system prompt, then the user's turn
        words = ["ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen", "ibis"]
        about = Words(words, [(True, "WORD?"), (False, "WORD is")], turn, [], ids, {0}, 2)
        rng = np.random.default_rng(0)
        said = [bytes(i for i in part if i > 61).decode().lower() for part in about.draw(rng, 18)]
        for nine in (said[:9], said[9:]):  # all before any comes again
            self.assertEqual(sorted(next(word for word in words if text.startswith(word)) for text in nine), words)
        passes = []

        def write(begins, given, min_p):
            passes.append((begins.shape, min_p))
            out = np.where(given, begins, ord("a"))
            for row, known in zip(out, given):
                length = int(known.sum())
                if length % 2:  # the others are cut
                    row[length + 4] = 2
            return out

        sequences = pack(about, 5, 100, rng, write)
        self.assertEqual((sequences.shape, str(sequences.dtype)), ((5, 100), "int32"))
        self.assertTrue(all(shape[1] == 100 and min_p == MIN_P for shape, min_p in passes))
        for sequence in sequences.tolist():
            first = sequence.index(2) if 2 in sequence else 100
            # a system prompt stands at the sequence's beginning alone
            self.assertLessEqual(sequence[first:].count(50), 0)

    def test_questions_are_packed(self):
        """A teacher of letters: it asks about a word after some talk, and answers with the letter that the question
        begins with, or with nothing."""
        import numpy as np
        from lowbit.errors import LowbitError
        from lowbit.recover.questions import FORMS, Questions, pack_questions
        from lowbit.recover.words import WORD, Words

        lines = FORMS.read_text().splitlines()
        self.assertTrue(all(line.count(WORD) == 1 for line in lines) and len(set(lines)) == len(lines))
        vocabulary = {chr(i): i for i in range(32, 127)} | {"Ċ": 10, "Ġw": 200, '?"': 201}

        def ids(lines):
            return [list(line.encode()) for line in lines]

        asked = Words([letter * 4 for letter in "abcdefgh"], [(False, "on WORD:")], ([], []), [7], ids, {0}, 2)
        questions = Questions(asked, vocabulary, *ids(["Q:", "\nA:"]))
        self.assertEqual(questions.question([9, *b"Ask. why so?"], 1), list(b" why so?"))
        self.assertEqual(questions.question([9, *b"no:why", 201], 1), [200, *b"hy?"])
        for nothing in (b"never", b"a. b?", b"x?", b"a" * 40 + b"?"):  # none, or too short or too long
            self.assertIsNone(questions.question(list(nothing), 0), nothing)
        self.assertEqual([bytes(questions.answer(list(b"Q:x?\nA:an ant\nQ:"), 7, most)) for most in (4, 16)], [b"an a", b"an ant"])

        def write(begins, given, min_p):
            out = np.where(given, begins, ord("x"))
            for row, known in zip(out, given):
                length, text = int(known.sum()), bytes(row[:int(known.sum())].tolist())
                if text.endswith(b"A:"):
                    row[length:length + 4] = [10, 10, 10, 10] if text[4:5] == b"h" else [text[4], text[4], 10, 10]
                else:
                    said = b"Well. %sck it?" % text[4:5]
                    row[length:length + len(said)] = list(said)
            return out

        sequences = pack_questions(questions, 6, 90, np.random.default_rng(0), write)
        self.assertEqual((sequences.shape, str(sequences.dtype)), ((6, 90), "int32"))
        passages = bytes(sequences.ravel().tolist()).split(bytes([2]))[:-1]
        pairs = [(p[4:5], p.partition(b"\nA:")[2]) for p in passages]
        for passage, (letter, answer) in zip(passages, pairs):
            self.assertTrue(passage.startswith(b"\x07Q: %sck it?\nA:" % letter), passage)
            self.assertTrue(len(answer) == 2 and answer[:1] == answer[1:] != b"h", passage)
        own = sum(answer[:1] == letter for letter, answer in pairs)
        self.assertTrue(0.2 < own / len(pairs) < 0.7, own / len(pairs))
        self.assertIn(b"h", [letter for letter, _ in pairs])  # no answer of its own, but others'

        def talk(said):
            def write(begins, given, min_p):
                out = np.where(given, begins, 10)
                for row, known in zip(out, given):
                    length = int(known.sum())
                    if row[length - 1] == ord(":") and row[length - 2] != ord("A"):
                        row[length:length + len(said)] = list(said)
                return out
            return write

        for nothing in (b"no. no.", b" why so?"):  # it asks nothing; it asks and does not answer
            with self.assertRaisesRegex(LowbitError, "no question with an answer"):
                pack_questions(questions, 1, 90, np.random.default_rng(0), talk(nothing))

    def test_word_sequences(self):
        words = self.dir / "words.txt"
        words.write_text("river\n\nstone\n bread \n")
        sequences, kinds = self.sequences("--sample-mix", "word=1,any=1", "--sample-words", words, "--sequence-length", "64", "--tokens", "2048")
        self.assertEqual((sequences.shape, int((kinds == "word").sum())), ((32, 64), 16))
        turn, answer = self.ids("<|im_start|>user\n"), self.ids("<|im_end|>\n<|im_start|>assistant\n")
        begun = [turn + self.ids(form.replace("WORD", word)) + answer for word in ("river", "stone", "bread")
                 for form in ("What is WORD?", "Explain WORD.", "Tell me about WORD.", "Why is WORD important?", "How does WORD work?")]
        begun += [self.ids(form) for word in ("River", "Stone", "Bread") for form in (f"{word} is", f"{word} means", f"The {word.lower()}", f"All about {word.lower()}\n\n")]
        for sequence in sequences[kinds == "word"].tolist():
            self.assertTrue(any(sequence[:len(ids)] == ids for ids in begun), sequence)
        # a vocabulary without words
        self.assertEqual(set(self.sequences("--sample-mix", "word=1,any=1")[1].tolist()), {"any"})
        # a vocabulary without "?"
        self.assertIn("nothing of question", self.sample("-o", self.dir / "x.npz", "--sample-mix", "question=1", code=1))
        words.write_text("\n")
        self.assertIn("words.txt", self.sample("-o", self.dir / "x.npz", "--sample-words", words, code=1))
        self.assertIn("none.txt", self.sample("-o", self.dir / "x.npz", "--sample-words", self.dir / "none.txt", code=1))

    def test_the_package_s_openings(self):
        from lowbit.recover.sampling import OPENINGS, read_openings
        lines = read_openings(OPENINGS)
        self.assertGreater(len(lines), 100)
        self.assertEqual(len(set(lines)), len(lines))
        self.assertFalse([line for line in lines if "Question" in line or "Answer" in line or line != line.rstrip()])
        from lowbit.tokens import Tokenizer
        ids = Tokenizer(self.hf, cli.BINARY).lines(lines, 2)
        self.assertEqual(ids[:3] + ids[-2:], [self.ids(line) for line in lines[:3] + lines[-2:]])

    def test_the_same_seed_gives_the_same_sequences(self):
        first, second, other = (self.sequences("--seed", seed, "--sample-mix", "any=1", name=name)[0]
                                for seed, name in ((3, "a.npz"), (3, "b.npz"), (4, "c.npz")))
        self.assertTrue((first == second).all())
        self.assertFalse((first == other).all())

    def test_unlikely_tokens_are_never_drawn(self):
        """With the least probability at the likeliest's, what is drawn is what greedy decoding gives."""
        sequences, _ = self.sequences("--sample-mix", "begin=1", "--sample-min-p", "1")
        self.assertEqual(len({tuple(w) for w in sequences.tolist()}), 1)
        free, _ = self.sequences("--sample-mix", "begin=1")
        self.assertGreater(len({tuple(w) for w in free.tolist()}), 20)
        self.sample("-o", self.dir / "x.npz", "--sample-min-p", "1.5", code=2)

    def test_a_text_to_calibrate_on(self):
        out = self.dir / "out.txt"
        self.sample("-o", out, "--tokens", "8K", "--sample-mix", "begin=1,chat=1,opening=1", "--sample-temperature", "0.5,1")
        text = out.read_text()
        pieces = self.json("tokenize", self.hf, "--decode", "0,1,2")["text"]
        for special in (self.json("tokenize", self.hf, "--decode", str(i))["text"] for i in range(3)):
            self.assertIn(special, pieces)
            self.assertNotIn(special, text)
        self.assertGreater(len(text), 4000)
        report = self.json("quantize", self.hf, self.dir / "int4", "--format", "int4", "--group", 32, "--calib", out, "--calib-tokens", "2K")
        self.assertIsNotNone(report["held_out"])
        self.assertIn("already there", self.sample("-o", out, code=1))

    def test_a_model_without_a_chat_template(self):
        import shutil
        bare = self.dir / "bare"
        shutil.copytree(self.hf, bare)
        (bare / "tokenizer_config.json").write_text("{}")
        from lowbit.recover.sampling import beginnings_of
        there = beginnings_of({"chat": 1.0, "begin": 1.0, "text": 1.0}, bare, None, [], 300, cli.BINARY, None)
        self.assertEqual(there.mix, {"begin": 1.0})
        self.assertIn("--sample-mix", self.sample("-o", self.dir / "x.npz", "--sample-mix", "chat=1", model=bare, code=1))

    def test_sequences_are_held_out_of_each_kind(self):
        import numpy as np
        from lowbit.recover.sampling import Samples
        kinds = np.array(["any"] * 8 + ["chat"] * 40 + ["text"] * 7)
        sequences = np.arange(55, dtype=np.int32)[:, None].repeat(4, 1)
        samples = Samples(sequences, kinds)
        self.assertEqual({k: w[:, 0].tolist() for k, w in samples.held.items()}, {"any": [7], "chat": [43, 44, 45, 46, 47]})
        self.assertEqual(sorted(samples.train[:, 0].tolist() + [7, 43, 44, 45, 46, 47]), list(range(55)))
        samples.hold(Samples(sequences[:3], ["chat", "any", "chat"]))
        self.assertEqual({k: w[:, 0].tolist() for k, w in samples.held.items()}, {"any": [1], "chat": [0, 2]})
        self.assertTrue((samples.train == sequences).all())
        samples.save(self.dir / "s.npz")
        self.assertTrue((Samples.load(self.dir / "s.npz", 4, 55).sequences == sequences).all())
        self.assertIsNone(Samples.load(self.dir / "s.npz", 8, 55))
        self.assertIsNone(Samples.load(self.dir / "s.npz", 4, 56))
        self.assertIsNone(Samples.load(self.dir / "none.npz", 4, 1))
        from lowbit.errors import CorruptFile
        np.save(self.dir / "plain.npy", sequences)
        (self.dir / "cut.npz").write_bytes((self.dir / "s.npz").read_bytes()[:-50])
        np.savez(self.dir / "other.npz", tokens=sequences)
        for name in ("plain.npy", "cut.npz", "other.npz"):
            self.assertRaises(CorruptFile, Samples.load, self.dir / name, 4, 1)

    def test_refused(self):
        out = self.dir / "x.npz"
        for mix in ("chat", "poems=1", "chat=-1", "chat=0", "any=nan"):
            self.sample("-o", out, "--sample-mix", mix, code=2)
        self.sample("-o", out, "--sequence-length", "4", code=2)
        empty = self.dir / "empty.txt"
        empty.write_text("\n \n")
        self.assertIn("empty.txt", self.sample("-o", out, "--sample-openings", empty, code=1))
        self.assertIn("missing.txt", self.sample("-o", out, "--sample-openings", self.dir / "missing.txt", code=1))
        self.assertIn(".bin", self.sample("-o", self.dir / "x.bin", code=1))
        self.assertIn("lowbit import", self.sample("-o", out, model=self.text, code=1))
        self.assertFalse(out.exists())


if __name__ == "__main__":
    unittest.main()
