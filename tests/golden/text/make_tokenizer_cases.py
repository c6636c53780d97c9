#!/usr/bin/env python3
"""Writes tokenizer_cases.json: small tokenizers of our own, one per kind of pipeline, and what PyPI `tokenizers` makes
of some texts with them. A case leaves out `with_special` where it equals `ids`, and `decoded` where it equals `text`.

needs: pip install tokenizers        usage: make_tokenizer_cases.py   (run it after a change here, commit the JSON)
"""
import json
import pathlib
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).parent

CORPUS = """
It's the tokenizer's job to cut text into pieces, and it isn't hard: we'll count pairs, merge the most frequent one, and
do so again. They've said that you'd see 'the', 'ing' and 'tion' early; I'm sure they're right. In 2024 there were 365
days, 8760 hours and 31536000 seconds. A bit, a byte, a word; a bit less, a bit more. The quick brown fox jumps over the
lazy dog, and the dog does not mind. def main(argc, argv): return argc + argv[0] == 12 and not (argc != 345)
for (int i = 0; i < n; ++i) { sum += values[i] * weights[i]; }   // four spaces    here
Größe, naïve, façade, übermäßig, señor. Привет, мир! Как дела? 你好，世界。东京と大阪。 مرحبا بالعالم नमस्ते
quantized weights, quantized activations, quantized caches: the quantizer quantizes what the quantizer may quantize.
"""

TEXTS = [
    "", " ", "  ", "\n", "\n\n\n", "\t \n \r\n", "a", " a", "a ", "Hello, world!", "  Hello   world  ",
    "It's they've I'M we'LL you'd 'sure 'T", "the quantizer's quantization", "12345 1 22 333 4444 3.14 1,000",
    "x+=1; // done\n\n    return (a != b);\n", "Größe naïve façade", "Привет, мир! 你好，世界。", "مرحبا नमस्ते",
    "🦙🚀 👩‍👩‍👧 ✅", "e\u0301 é \ufb01 ½ ² Ⅷ ①", "\u00a0\u3000\u2003x\u180e\u200b\u0085y", "a\x00b\x1f\x7f", "▁x ▁ y",
    "<s>", "a<s>b</s> c", "<|special|>", "x <|special|> y", "x<mask>y", "x <mask> y", "word", "sword word words word",
    "UPPER word,word.word word_word", "<0x41>", "Ġ Ċ", "'ſ K", "aaaaaaaaaaaaaaaaaaaaaaaaaaaa", "\n a\n  b\n\n c", "word NORM",
]

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def byte_level(pre, normalizer=None, post=None, ignore_merges=False, size=420):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=BYTES, special_tokens=["<s>", "</s>"], show_progress=False)
    tokenizer.train_from_iterator([CORPUS], trainer)
    tokenizer.add_special_tokens([AddedToken("<|special|>", special=True)])
    tokenizer.add_tokens([AddedToken("<mask>", lstrip=True, rstrip=True), AddedToken("word", single_word=True),
                          AddedToken("NORM", normalized=True)])
    if post is not None:
        tokenizer.post_processor = post
    return tokenizer


def bos(*more):
    return processors.TemplateProcessing(single=" ".join(["<s> $A", *more]), pair="<s> $A <s> $B",
                                         special_tokens=[("<s>", 0), ("</s>", 1)])


def sentencepiece(metaspace):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    specials = ["<s>", "</s>", "<unk>"] + [f"<0x{b:02X}>" for b in range(256)]
    prefix = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator([CORPUS], trainers.BpeTrainer(
        vocab_size=560, special_tokens=specials, limit_alphabet=80, show_progress=False))
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = [t for t in data["added_tokens"] if not t["content"].startswith("<0x")]
    tokenizer = Tokenizer.from_str(json.dumps(data))
    if metaspace:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
        tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")])
    else:
        tokenizer.pre_tokenizer = None
        tokenizer.normalizer = prefix
        tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                               decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = bos()
    return tokenizer


def make():
    level = lambda regex: pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)  # noqa: E731
    split = lambda p, behavior="isolated", invert=False: pre_tokenizers.Split(Regex(p), behavior, invert)  # noqa: E731
    sequence = pre_tokenizers.Sequence
    yield "gpt-2", byte_level(level(True))
    yield "prefix space", byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True), size=330)
    yield "smollm", byte_level(sequence([pre_tokenizers.Digits(individual_digits=True), level(True)]))
    yield "llama-3", byte_level(sequence([split(LLAMA3), level(False)]), post=bos(), ignore_merges=True)
    yield "qwen2", byte_level(sequence([split(QWEN2), level(False)]), normalizer=normalizers.NFC())
    yield "nfkc lower", byte_level(sequence([pre_tokenizers.Punctuation(), level(True)]), post=bos("</s>"), size=330,
                                   normalizer=normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase(), normalizers.Strip()]))
    for behavior in ("removed", "merged_with_previous", "merged_with_next", "contiguous"):
        yield f"split {behavior}", byte_level(sequence([split(r"[\s,]", behavior), level(False)]), size=300)
    yield "split inverted", byte_level(sequence([split(r"\w+", "removed", True), level(False)]), size=300)
    yield "llama", sentencepiece(False)
    yield "metaspace", sentencepiece(True)


def main():
    rng = random.Random(3)
    pieces = TEXTS + CORPUS.split()
    texts = TEXTS + ["".join(rng.choice(pieces) + rng.choice(["", " ", "  "]) for _ in range(4)) for _ in range(12)]
    out = []
    for name, tokenizer in make():
        cases = []
        for text in texts:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            case = {"text": text, "ids": ids}
            special = tokenizer.encode(text).ids
            decoded = tokenizer.decode(ids, skip_special_tokens=False)
            if special != ids:
                case["with_special"] = special
            if "NORM" in text and "norm" in decoded:
                case["decoded"] = None  # the library gives the token's normalized text, lowbit its own: not compared
            elif decoded != text:
                case["decoded"] = decoded
            cases.append(case)
        out.append({"name": name, "tokenizer": json.loads(tokenizer.to_str()), "cases": cases})
    (HERE / "tokenizer_cases.json").write_text(json.dumps(out, ensure_ascii=False, separators=(",", ":")).replace("},{\"text\"", "},\n{\"text\"") + "\n")
    print(", ".join(f"{o['name']} ({len(o['tokenizer']['model']['vocab'])})" for o in out))


if __name__ == "__main__":
    main()
