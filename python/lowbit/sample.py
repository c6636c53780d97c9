"""python -m lowbit.sample: text that a model writes itself, for `quantize --calib` and for `lowbit.recover
--samples`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from .errors import LowbitError
from .recover.arguments import add_sampling, old_name, say_renamed, size
from .small_files import read_text

IDS = 8192  # decoded at a time


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m lowbit.sample", description="Writes sequences that a model samples: as a text, without the special "
                                "tokens, or as token ids (.npz).")
    p.add_argument("model", help="Hugging Face directory or checkpoint (`lowbit import` makes one of a GGUF file)")
    p.add_argument("-o", "--out", required=True, metavar="OUT.txt|OUT.npz")
    p.add_argument("--tokens", type=size, default="64K", help="how many [64K]")
    p.add_argument("--data", nargs="+", default=[], metavar="FILE", help="texts that sequences of the kinds `text` and `rewritten` are made from; none: no such sequences")
    p.add_argument("--sequence-length", type=int, default=512, help="tokens of a sequence [512]")
    old_name(p, "--window", "--sequence-length", type=int)
    add_sampling(p)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:<i> [auto]")
    p.add_argument("--threads", type=int, help="threads on a CPU")
    p.add_argument("--lowbit", metavar="PROGRAM", help="the lowbit command line, for its tokenizer [from PATH]")
    p.add_argument("--force", action="store_true", help="replace OUT")
    p.add_argument("--quiet", action="store_true")
    return p


def written(sequences, folder, tokenizer) -> str:
    """The sequences as text, a blank line between two; special tokens stand for line breaks."""
    import numpy as np

    file = Path(folder) / "tokenizer.json"
    try:
        added = json.loads(read_text(file)).get("added_tokens") or []
        special = [token["id"] for token in added if token.get("special")]
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        raise LowbitError(file, "no list of added tokens", "one, to leave special tokens out", "write .npz")
    line_break = tokenizer.ids("\n")
    parts = []
    for some in np.array_split(sequences, max(1, -(-sequences.size // IDS))):
        ids = [i for sequence in some for token in [*sequence.tolist(), None]
               for i in (line_break * 2 if token is None else line_break if token in special else [token])]
        parts.append(tokenizer.text(ids))
    return "".join(parts)


def run(options) -> None:
    import numpy as np
    import torch

    from .recover.data import Texts
    from .recover.sampling import BATCH, beginnings_of, sample
    from .sources import open_model
    from .tokens import Tokenizer

    out = Path(options.out)
    if out.suffix not in (".txt", ".npz"):
        raise LowbitError(out, f"'{out.suffix}'", "a name that ends with .txt or .npz")
    if out.exists() and not options.force:
        raise LowbitError(out, "a file that is already there", "a name that is free", "--force")
    if not Path(options.model).is_dir():
        raise LowbitError(options.model, "no directory", "a Hugging Face directory or a checkpoint", "`lowbit import` makes one of a GGUF file")
    device = torch.device(options.device if options.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu")
    if options.threads:
        torch.set_num_threads(options.threads)
    model, tokenizer = open_model(options.model), Tokenizer(options.model, options.lowbit)
    config, sequence_length = model.config, min(options.sequence_length, model.config.context)
    texts = Texts(options.data, tokenizer, sequence_length, config.vocab) if options.data else None
    beginnings = beginnings_of(options.sample_mix, options.model, texts, tokenizer.prefix, config.vocab, options.lowbit, options.sample_openings,
                               options.sample_words)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32

    def tensor(name):
        return torch.from_numpy(np.array(model.tensor(name))).to(device)

    def note(text):
        if not options.quiet:
            print(text, file=sys.stderr, flush=True)

    sampled = sample(tensor, config, model.head, max(1, options.tokens // sequence_length), beginnings, sequence_length, options.seed, options.sample_temperature,
                     options.sample_min_p, dtype, device, BATCH[device.type], note)
    if out.suffix == ".npz":
        sampled.save(out)
    else:
        temporary = out.with_name(out.name + ".tmp")
        temporary.write_text(written(sampled.sequences, options.model, tokenizer), encoding="utf-8")
        temporary.replace(out)


def main(arguments=None) -> int:
    command = parser()
    options = command.parse_args(arguments)
    say_renamed(options)
    if options.sequence_length < 16:
        command.error("wanted a --sequence-length of at least 16")
    try:
        run(options)
    except ImportError as error:
        print(f"error: python: got no package {error.name}, wanted it, to sample. hint: pip install {error.name}", file=sys.stderr)
        return 1
    except (LowbitError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
