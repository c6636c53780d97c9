"""Windows of tokens to train on: cut from texts, and sampled from the teacher."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from ..errors import CorruptFile, LowbitError, TextTooShort
from ..llama import heads_of, linear_names, norm_names, rms_norm, rotate, rotation_table
from ..tokens import Tokenizer

HELD_BACK = 16  # windows at the end of the text, for the report; at most an eighth of it
PROMPT = 8  # tokens of text that a sampled window continues


def random(seed: int, *path: int) -> np.random.Generator:
    """A generator that depends on its place alone, so that a run can be continued anywhere."""
    return np.random.default_rng([seed, *path])


class Texts:
    """Token ids of all texts, window by window. `train(rng, count)` cuts windows anywhere; `held` [windows, length] are never cut from."""

    def __init__(self, files, tokenizer: Tokenizer, window: int, vocab: int):
        self.prefix = tokenizer.prefix if tokenizer else []
        self.window, body = window, window - len(self.prefix)
        self.parts, held = [], []
        for file in files:
            ids = _read(file, tokenizer)
            if len(ids) and (ids.min() < 0 or ids.max() >= vocab):
                raise CorruptFile(file, f"token {ids.max()}", f"tokens below {vocab}")
            if len(ids) < body:
                raise TextTooShort(file, f"{len(ids)} tokens", f"at least one window of {window}", "a longer text, or --window")
            keep = min(HELD_BACK, len(ids) // body // 8)
            cut = len(ids) - keep * body
            held += [self._with_prefix(ids[cut + i * body:cut + (i + 1) * body]) for i in range(keep)]
            self.parts.append(ids[:cut])
        self.held = np.stack(held) if held else np.stack([self._with_prefix(self.parts[0][:body])])
        self.starts = np.array([len(p) - body + 1 for p in self.parts])

    def _with_prefix(self, ids):
        return np.concatenate([np.array(self.prefix, np.int64), ids])

    def train(self, rng, count: int) -> np.ndarray:
        """int64 [count, window]."""
        body = self.window - len(self.prefix)
        part = rng.choice(len(self.parts), count, p=self.starts / self.starts.sum())
        begin = (rng.random(count) * self.starts[part]).astype(np.int64)
        return np.stack([self._with_prefix(self.parts[p][b:b + body]) for p, b in zip(part, begin)])


def _read(file, tokenizer):
    if str(file).endswith(".npy"):
        ids = np.load(file)
        if ids.ndim != 1 or ids.dtype.kind not in "ui":
            raise CorruptFile(file, f"{ids.dtype} {list(ids.shape)}", "one row of integers: token ids")
        return ids.astype(np.int64)
    if tokenizer is None:
        raise LowbitError(file, "a text and no tokenizer", "token ids (.npy)")
    return tokenizer.file(file)


def mixed_batch(texts: Texts, samples, share: float, seed: int, step: int, batch: int) -> np.ndarray:
    """int64 [batch, window]: `share` of it text, the rest sampled windows; which ones depends on seed and step alone."""
    rng = random(seed, 1, step)
    count = batch if samples is None or not len(samples) else int(np.floor(share * batch + rng.random()))
    parts = [texts.train(rng, count)] if count else []
    if count < batch:
        # Each pass over the samples takes every one of them once.
        per_pass = max(1, int(len(samples) // max(1.0, (1 - share) * batch)))
        order = random(seed, 2, step // per_pass).permutation(len(samples))
        at = int((step % per_pass) * (1 - share) * batch)
        parts.append(samples[order[(at + np.arange(batch - count)) % len(samples)]].astype(np.int64))
    return np.concatenate(parts)


@torch.no_grad()
def sample(tensor, config, head, first_token, count: int, texts: Texts, seed: int, temperature: tuple, dtype, device, batch: int,
           progress) -> np.ndarray:
    """int32 [count, window]: windows that the teacher writes, each at a temperature drawn evenly from `temperature` (lowest, highest): what a
    small model writes at 1 strays from prose.

    A quarter of them continue a few tokens of the text, a quarter the token that begins a document or a chat (`first_token`; None: as the
    rest), and the rest any token of the vocabulary: what the teacher knows beyond the text. tensor(name): the teacher.
    """
    windows, length, prefix = [], texts.window, len(texts.prefix)
    names = [n for i in range(config.layers) for n in (*norm_names(i), *linear_names(i))]
    weights = {n: tensor(n).to(dtype) for n in (*names, "model.norm.weight", "model.embed_tokens.weight", head)}
    generator = torch.Generator(device).manual_seed(seed)
    rng = random(seed, 3)
    batch = -(-count // -(-count // batch)) if count else 1  # passes of one size: their caches take the same memory
    while sum(map(len, windows)) < count:
        size = min(batch, count - sum(map(len, windows)))
        start = torch.from_numpy(texts.train(rng, size)[:, :prefix + PROMPT]).to(device)
        tokens = torch.zeros(size, length, dtype=torch.int64, device=device)
        tokens[:, :start.shape[1]] = start
        given = torch.full((size, 1), prefix + PROMPT, device=device)
        given[size // 4:] = prefix + 1
        opening = torch.from_numpy(rng.integers(0, config.vocab, size)).to(device)
        if first_token is not None:
            opening[:size // 2] = first_token
        tokens[size // 4:, prefix] = opening[size // 4:]
        heat = torch.from_numpy(rng.uniform(*temperature, (size, 1)).astype(np.float32)).to(device)
        _continue(weights, config, head, tokens, given, heat, dtype, generator)
        windows.append(tokens.to(torch.int32).cpu().numpy())
        progress(f"sampling: {sum(map(len, windows))} of {count} windows")
    return np.concatenate(windows) if windows else np.zeros((0, length), np.int32)


def _continue(weights, config, head, tokens, given, temperature, dtype, generator):
    """Fills tokens [B, T] in place from column given[b] on, one column at a time, with a cache of keys and values. given, temperature: [B, 1]."""
    size, length = tokens.shape
    shape = (config.layers, size, config.kv_heads, length, config.head_dim)
    keys = torch.empty(shape, dtype=dtype, device=tokens.device)
    values = torch.empty_like(keys)
    cos, sin = rotation_table(config, length, tokens.device, dtype)
    for at in range(length - 1):
        x = F.embedding(tokens[:, at:at + 1], weights["model.embed_tokens.weight"])
        for layer in range(config.layers):
            wq, wk, wv, wo, gate, up, down = (weights[n] for n in linear_names(layer))
            first, second = (weights[n] for n in norm_names(layer))
            h = rms_norm(x, first, config.eps)
            q = rotate(heads_of(h, wq, config.head_dim), cos[at:at + 1], sin[at:at + 1])
            keys[layer, :, :, at:at + 1] = rotate(heads_of(h, wk, config.head_dim), cos[at:at + 1], sin[at:at + 1])
            values[layer, :, :, at:at + 1] = heads_of(h, wv, config.head_dim)
            # The query heads of a kv head are rows of one product: no key is read twice.
            grouped = q.reshape(size, config.kv_heads, -1, config.head_dim)
            y = F.scaled_dot_product_attention(grouped, keys[layer, :, :, :at + 1], values[layer, :, :, :at + 1])
            x = x + F.linear(y.reshape(size, 1, -1), wo)
            h = rms_norm(x, second, config.eps)
            x = x + F.linear(F.silu(F.linear(h, gate)) * F.linear(h, up), down)
        logits = F.linear(rms_norm(x[:, 0], weights["model.norm.weight"], config.eps), weights[head])
        # The largest of p / e, e exponential, is a draw from p.
        chance = torch.softmax(logits.float() / temperature, -1)
        draw = chance.div_(torch.empty_like(chance).exponential_(generator=generator)).argmax(-1)
        tokens[:, at + 1] = torch.where(given[:, 0] > at + 1, tokens[:, at + 1], draw)
