"""Sequences of tokens that the teacher writes itself: what to begin them with, and the writing."""

from __future__ import annotations

import contextlib
import json
import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from ..errors import CorruptFile, LowbitError
from ..llama import heads_of, linear_names, norm_names, rms_norm, rotate, rotation_table
from ..small_files import read_text
from ..tokens import Tokenizer
from .arguments import KINDS
from .data import PROMPT, random
from .questions import BEFORE, BETWEEN, Questions, pack_questions
from .questions import FORMS as ASKING_FORMS
from .words import FORMS, Words, pack, read_words, special_tokens, vocabulary_of, vocabulary_words

HELD_OUT = 16  # sequences of each kind, for the report; at most an eighth of them
BATCH = {"cuda": 4096, "cpu": 64}  # sequences of a pass
SPAN = (16, 128)  # tokens, of a rewritten sequence
USER = "> "
OPENINGS = Path(__file__).with_name("openings.txt")


class Samples:
    """sequences int32 [count, sequence_length] with the kind of each; `train` and `held` ({kind: sequences}) are made
    of them, the last of each kind held out."""

    def __init__(self, sequences, kinds):
        self.sequences, self.kinds = sequences, np.asarray(kinds)
        kept, self.held = np.ones(len(sequences), bool), {}
        for kind in KINDS:
            at = np.flatnonzero(self.kinds == kind)
            last = at[len(at) - min(HELD_OUT, len(at) // 8):]
            if len(last):
                kept[last], self.held[kind] = False, sequences[last].astype(np.int64)
        self.train = sequences[kept]

    def hold(self, others: Samples) -> None:
        """Holds out all sequences of `others` in place of its own, which are trained on."""
        self.train = self.sequences
        self.held = {kind: others.sequences[others.kinds == kind].astype(np.int64) for kind in KINDS if (others.kinds == kind).any()}

    @classmethod
    def load(cls, file: Path, sequence_length: int, count: int | None = None):
        """The first `count` sequences, or all. None when the file is not there, or has sequences of another length or
        fewer than `count`."""
        if not file.exists():
            return None
        try:
            with np.load(file, allow_pickle=False) as stored:
                # the older name
                sequences, kinds = stored["sequences" if "sequences" in stored else "windows"], stored["kinds"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise CorruptFile(file, str(error) or type(error).__name__, "sampled sequences, as --samples keeps them")
        whole = sequences.ndim == 2 and sequences.dtype == np.int32 and kinds.shape == sequences.shape[:1]
        return cls(sequences[:count], kinds[:count]) if whole and sequences.shape[1] == sequence_length and len(sequences) >= (count or 1) else None

    def save(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_name(file.name + ".tmp.npz")
        np.savez(temporary, sequences=self.sequences, kinds=self.kinds)
        temporary.replace(file)


class Beginnings:
    """The first tokens of each kind of sequence; a kind that this model or run has nothing for is left out of `mix`
    ({kind: share}).

    text: a few tokens of the texts; begin: the token that begins a document or chat; chat: all that the model's own
    template puts before a user's first word, so that the model writes the user's part too; opening: one of a list; any:
    any token of the vocabulary. `prefix` (BOS, or nothing) comes before begin and any; the others have all that they
    need. rewritten: a sequence of the texts in which the model writes every second span anew. word: passages about a
    word each, packed (words.py); question: questions about a word each, packed (questions.py).
    """

    def __init__(self, mix: dict, texts, prefix, vocab: int, first_token=None, chat=(), openings=(), words: Words | None = None,
                 questions: Questions | None = None):
        self.texts, self.prefix, self.vocab, self.first_token = texts, list(prefix), vocab, first_token
        self.chat, self.openings, self.words, self.questions = list(chat), [list(o) for o in openings], words, questions
        there = {"text": texts is not None, "rewritten": texts is not None, "begin": first_token is not None, "chat": bool(self.chat),
                 "opening": bool(self.openings), "any": True, "word": words is not None, "question": questions is not None}
        self.mix = {kind: share for kind, share in mix.items() if share > 0 and there[kind]}
        if not self.mix:
            raise LowbitError("--sample-mix", f"nothing of {', '.join(mix)} that this model has", "shares of " + ", ".join(KINDS))

    def kinds(self, count: int, rng) -> np.ndarray:
        """The kind of each of `count` sequences, by the shares, in random order."""
        shares = np.array(list(self.mix.values()), np.float64)
        edges = np.round(np.cumsum(shares) / shares.sum() * count).astype(int)
        return rng.permutation(np.repeat(np.array(list(self.mix)), np.diff(edges, prepend=0)))

    def given(self, kind: str, rng, sequence_length: int):
        """Tokens int64 [sequence_length], and which of them the model is given; the others it writes."""
        ids, given = np.zeros(sequence_length, np.int64), np.zeros(sequence_length, bool)
        if kind == "rewritten":
            ids[:], at, own = self.texts.train(rng, 1)[0], 0, True
            while at < sequence_length:
                length = int(rng.integers(SPAN[0], SPAN[1] + 1))
                given[at:at + length], at, own = own, at + length, not own
        else:
            begun = self.ids(kind, rng)[:sequence_length - 1]
            ids[:len(begun)], given[:len(begun)] = begun, True
        return ids, given

    def ids(self, kind: str, rng) -> list[int]:
        if kind == "text":
            return self.texts.train(rng, 1)[0, :len(self.prefix) + PROMPT].tolist()
        if kind == "chat":
            return self.chat
        if kind == "opening":
            return self.openings[int(rng.integers(len(self.openings)))]
        return self.prefix + [self.first_token if kind == "begin" else int(rng.integers(self.vocab))]


def read_openings(file) -> list[str]:
    """Lines of a text; \\n in a line stands for a line break. Lines after "> " are what a user of a chat begins
    with."""
    try:
        lines = read_text(file).splitlines()
    except UnicodeDecodeError:
        raise CorruptFile(file, "bytes that are not UTF-8", "openings, one to a line")
    lines = [line.replace("\\n", "\n") for line in lines if line.strip()]
    if not lines:
        raise CorruptFile(file, "no line", "openings, one to a line")
    return lines


def _json_object(file) -> dict:
    try:
        read = json.loads(read_text(file))
    except (OSError, ValueError):
        return {}
    return read if isinstance(read, dict) else {}


def _chat_config(folder) -> dict:
    """tokenizer_config.json, with the template that stands beside it as a file (transformers 5) in its place."""
    config, beside = _json_object(folder / "tokenizer_config.json"), folder / "chat_template.jinja"
    try:
        return {**config, "chat_template": read_text(beside)} if beside.is_file() else config
    except (OSError, ValueError):
        return config


def chat_turn(config: dict) -> tuple[str, str] | None:
    """The texts that the template of a tokenizer_config.json puts before the first words of a user, and from behind
    them to the first word of the answer. None: no template, or none that shows it."""
    template, mark = config.get("chat_template"), "\x02"
    if not isinstance(template, str):
        return None
    tokens = {k: v.get("content") if isinstance(v, dict) else v for k, v in config.items() if k in ("bos_token", "eos_token")}
    try:
        from jinja2.sandbox import ImmutableSandboxedEnvironment  # torch needs jinja2 too
        text = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(template).render(
            messages=[{"role": "user", "content": mark}], add_generation_prompt=True, **tokens)
    except Exception:  # a template may do anything
        return None
    before, found, after = text.partition(mark)
    return (before, after) if found and before else None


def beginnings_of(mix: dict, folder, texts, prefix, vocab: int, program, openings, words=None) -> Beginnings:
    """The beginnings that a model directory has. `openings`, `words`: files, None for the package's own list and the
    words of the vocabulary; without the program `lowbit` (for its tokenizer) there are no chats, openings and words,
    unless a file was named: then it is an error."""
    folder = Path(folder)
    config, described = _json_object(folder / "config.json"), _json_object(folder / "tokenizer.json")

    def token(key):
        value = config.get(key)
        value = value[0] if isinstance(value, list) and value else value
        return value if isinstance(value, int) and 0 <= value < vocab else None

    def begun(file):
        """(said by a user, text) of each line; without a chat template nobody says anything."""
        return [(line.startswith(USER) and bool(chat[0]), line.removeprefix(USER)) for line in read_openings(file)]

    chat, lines, about, questions, first = ([], []), [], None, None, token("bos_token_id")
    try:
        tokenizer = Tokenizer(folder, program)
        turn = chat_turn(_chat_config(folder))
        chat = tuple(map(tokenizer.ids, turn)) if turn else chat
        separator = token("eos_token_id") if token("eos_token_id") is not None else first

        def ids(texts):
            return tokenizer.lines(texts, separator) if separator is not None else [tokenizer.ids(text) for text in texts]

        given = begun(openings or OPENINGS)
        lines = [(chat[0] if said else list(prefix)) + i for (said, _), i in zip(given, ids([line for _, line in given])) if i]
        listed = read_words(words) if words else vocabulary_words(described)
        if listed and separator is not None:
            about, asked = (Words(listed, begun(forms), chat, prefix, ids, special_tokens(described), separator) for forms in (FORMS, ASKING_FORMS))
            if "?" in (vocabulary := vocabulary_of(described)):
                questions = Questions(asked, vocabulary, *ids([BEFORE, BETWEEN]))
    except LowbitError:
        if openings or words:
            raise
    return Beginnings(mix, texts, prefix, vocab, first, chat[0], lines, about, questions)


@torch.no_grad()
def sample(tensor, config, head, count: int, beginnings: Beginnings, sequence_length: int, seed: int, temperature: tuple, min_p: tuple, dtype, device,
           batch: int, progress) -> Samples:
    """`count` sequences that the teacher writes, each at a temperature and a least probability (in parts of the
    likeliest token's) drawn evenly from `temperature` and `min_p` (lowest, highest). tensor(name): the teacher."""
    sequences = np.zeros((count, sequence_length), np.int32)
    names = [n for i in range(config.layers) for n in (*norm_names(i), *linear_names(i))]
    weights = {n: tensor(n).to(dtype) for n in (*names, "model.norm.weight", "model.embed_tokens.weight", head)}
    generator = torch.Generator(device).manual_seed(seed)
    rng = random(seed, 3)
    kinds = beginnings.kinds(count, rng)

    def write(begins, given, min_p):
        """Tokens [B, T] that begin as given, in passes that take the memory of `batch` sequences at most."""
        passes = -(-begins.size // (batch * sequence_length))
        out = []
        for some, which in zip(np.array_split(begins, passes), np.array_split(given, passes)):
            tokens, fixed = torch.from_numpy(some).to(device), torch.from_numpy(which).to(device)
            heat, least = (torch.from_numpy(rng.uniform(*span, (len(some), 1)).astype(np.float32)).to(device) for span in (temperature, min_p))
            _continue(weights, config, head, tokens, fixed, heat, least, dtype, generator)
            out.append(tokens.to(torch.int32).cpu().numpy())
            progress(f"sampling: {sum(map(np.size, out))} of {begins.size} tokens")
        return np.concatenate(out)

    packed = {"word": (pack, beginnings.words), "question": (pack_questions, beginnings.questions)}
    others = np.flatnonzero(~np.isin(kinds, list(packed)))
    if len(others):
        sequences[others] = write(*map(np.stack, zip(*(beginnings.given(kind, rng, sequence_length) for kind in kinds[others]))), min_p)
    for kind, (packer, source) in packed.items():
        if len(of_kind := np.flatnonzero(kinds == kind)):
            sequences[of_kind] = packer(source, len(of_kind), sequence_length, rng, write)
    return Samples(sequences, kinds)


def _attention_kernels(device):
    """Without cuDNN's, which plans anew for every length of the cache: half a minute for the first sequence."""
    if device.type != "cuda":
        return contextlib.nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel
    return sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])


def _continue(weights, config, head, tokens, given, temperature, min_p, dtype, generator):
    """Fills tokens [B, T] in place where they are not given [B, T], one column at a time, with a cache of keys and
    values. temperature, min_p: [B, 1]."""
    size, length = tokens.shape
    shape = (config.layers, size, config.kv_heads, length, config.head_dim)
    keys = torch.empty(shape, dtype=dtype, device=tokens.device)
    values = torch.empty_like(keys)
    cos, sin = rotation_table(config, length, tokens.device, dtype)
    with _attention_kernels(tokens.device):
        for at in range(length - 1):
            x = F.embedding(tokens[:, at:at + 1], weights["model.embed_tokens.weight"])
            for layer in range(config.layers):
                x = _step(weights, config, x, layer, at, keys[layer], values[layer], cos, sin)
            logits = F.linear(rms_norm(x[:, 0], weights["model.norm.weight"], config.eps), weights[head])
            # The largest of p / e, e exponential, is a draw from p.
            chance = torch.softmax(logits.float() / temperature, -1)
            chance *= chance >= min_p * chance.amax(-1, keepdim=True)
            draw = chance.div_(torch.empty_like(chance).exponential_(generator=generator)).argmax(-1)
            tokens[:, at + 1] = torch.where(given[:, at + 1], tokens[:, at + 1], draw)


def _step(weights, config, x, layer: int, at: int, keys, values, cos, sin):
    """One block on x [B, 1, hidden] at position `at`; its keys and values [B, kv heads, T, head_dim] are added to the
    cache."""
    size = len(x)
    wq, wk, wv, wo, gate, up, down = (weights[n] for n in linear_names(layer))
    first, second = (weights[n] for n in norm_names(layer))
    h = rms_norm(x, first, config.eps)
    q = rotate(heads_of(h, wq, config.head_dim), cos[at:at + 1], sin[at:at + 1])
    keys[:, :, at:at + 1] = rotate(heads_of(h, wk, config.head_dim), cos[at:at + 1], sin[at:at + 1])
    values[:, :, at:at + 1] = heads_of(h, wv, config.head_dim)
    # The query heads of a kv head are rows of one product: no key is read twice.
    grouped = q.reshape(size, config.kv_heads, -1, config.head_dim)
    y = F.scaled_dot_product_attention(grouped, keys[:, :, :at + 1], values[:, :, :at + 1])
    x = x + F.linear(y.reshape(size, 1, -1), wo)
    h = rms_norm(x, second, config.eps)
    return x + F.linear(F.silu(F.linear(h, gate)) * F.linear(h, up), down)
