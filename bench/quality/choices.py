#!/usr/bin/env python3
"""How far a checkpoint's scores of whole continuations lie from its teacher's, and what it answers, in torch with exact
activations.

  choices.py CHECKPOINT --teacher DIR --sequences FILE.npz [--questions FILE.jsonl...] [--keep FOLDER] [--lowbit BIN]
      [--out FILE.json]

Pseudo choices are made of sequences that the teacher wrote (`python -m lowbit.sample`): the beginning of each, its own
continuation, and those of three other sequences of its kind. All four are scored by their summed log-probability under
both models. Reported are `rms`: the root of the mean squared difference of the scores, centred over the four, in nats;
`near`: the same of the difference of two choices, over pairs that the teacher's scores hold less than five nats apart;
and `agree`: how often the likeliest of the three that do not belong is the same. No question is looked at for them.
Questions are those that `lowbit eval` asks, scored alike; `rms` is that of their choices. What the teacher says is kept
in FOLDER and taken from there.
"""
import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np

from jobs import ROOT, say

sys.path.insert(0, str(ROOT / "python"))

PROMPT, CONTINUATION, OTHERS = (12, 96), (8, 20), 3  # tokens, tokens, sequences
NEAR = 5.0  # nats
ROWS, POSITIONS = 256, 4096  # choices of a pass; positions whose logits are in memory at once
SEED = 7


def pseudo_choices(sequences, kinds) -> list[list[tuple]]:
    """For each sequence four (tokens, how many of them are given); the first is its own continuation."""
    rng, items = np.random.default_rng(SEED), []
    for kind in sorted(set(kinds.tolist())):
        of_kind = sequences[kinds == kind]
        if len(of_kind) <= OTHERS:
            continue
        begin = rng.integers(PROMPT[0], min(PROMPT[1], of_kind.shape[1] - CONTINUATION[1]) + 1, len(of_kind))
        length = rng.integers(CONTINUATION[0], CONTINUATION[1] + 1, len(of_kind))
        for i, sequence in enumerate(of_kind):
            others = rng.choice(len(of_kind) - 1, OTHERS, replace=False)
            whose = [i, *(others + (others >= i)).tolist()]
            items.append([(sequence[:begin[i]].tolist() + of_kind[j, begin[j]:begin[j] + length[j]].tolist(), int(begin[i])) for j in whose])
    return items


def choice_texts(question: dict) -> list[tuple[str, str]]:
    """Contexts and scored continuations, for each choice: choices to one question, or contexts of one continuation."""
    if "query" in question:
        return [(question["query"] + "\nAnswer:", " " + choice) for choice in question["choices"]]
    return [(context, " " + question["continuation"]) for context in question["context_options"]]


def question_choices(questions: list[dict], tokenizer, separator: int) -> list[list[tuple]]:
    """The choices of questions as `lowbit eval` tokenizes them: whole, and scored from where the context alone would
    have had other tokens. separator: a special token."""
    texts = [text for q in questions for text in choice_texts(q)]
    whole, contexts = ([tokenizer.prefix + ids for ids in tokenizer.lines(lines, separator)] for lines in ([a + b for a, b in texts], [a for a, _ in texts]))
    scored = []
    for ids, context in zip(whole, contexts):
        same = next((i for i, (a, b) in enumerate(zip(ids, context)) if a != b), min(len(ids), len(context)))
        scored.append((ids, min(same, len(ids) - 1)))
    parts = iter(scored)
    return [[next(parts) for _ in choice_texts(q)] for q in questions]


def scores(items, config, weights: dict, head: str, device) -> list[np.ndarray]:
    """The summed log-probability of what follows the given tokens, for each choice of each item."""
    import torch
    import torch.nn.functional as F

    from lowbit.llama import hidden_states

    flat = [choice for item in items for choice in item]
    order, result = np.argsort([len(ids) for ids, _ in flat], kind="stable"), np.zeros(len(flat))
    with torch.no_grad():
        for chosen in np.array_split(order, -(-len(order) // ROWS)):  # of about the same length
            some = [flat[i] for i in chosen]
            longest = max(len(ids) for ids, _ in some)
            tokens = torch.tensor([ids + [0] * (longest - len(ids)) for ids, _ in some], device=device)
            wanted = torch.tensor([[given <= t < len(ids) for t in range(1, longest)] for ids, given in some], device=device)
            h = hidden_states(tokens, config, weights.__getitem__, torch.float32)[:, :-1][wanted]
            parts = [F.linear(h_, weights[head]).log_softmax(-1).gather(-1, said[:, None])[:, 0].double()
                     for h_, said in zip(h.split(POSITIONS), tokens[:, 1:][wanted].split(POSITIONS))]
            sums = torch.zeros(len(some), dtype=torch.float64, device=device)
            result[chosen] = sums.index_add_(0, wanted.nonzero()[:, 0], torch.cat(parts)).cpu().numpy()
    return np.split(result, np.cumsum([len(item) for item in items])[:-1])


def rms(teacher, student) -> float:
    errors = [s - t - np.mean(s - t) for t, s in zip(teacher, student)]
    return float(np.sqrt(np.mean(np.concatenate(errors) ** 2)))


def near_rms(teacher, student) -> float:
    errors = [(s[i] - s[j]) - (t[i] - t[j]) for t, s in zip(teacher, student) for i in range(len(t)) for j in range(i) if abs(t[i] - t[j]) < NEAR]
    return float(np.sqrt(np.mean(np.square(errors)))) if errors else 0.0


def agreement(teacher, student) -> float:
    return float(np.mean([np.argmax(t[1:]) == np.argmax(s[1:]) for t, s in zip(teacher, student)]))


def right(questions, of_model, lengths=None) -> str:
    """'0110..' as `lowbit eval` has it; with `lengths` by score per byte."""
    best = [int(np.argmax(s / np.array(n) if lengths else s)) for s, n in zip(of_model, lengths or of_model)]
    return "".join("1" if b == q["gold"] else "0" for b, q in zip(best, questions))


def weights_of(model, device) -> dict:
    import torch
    return {name: torch.from_numpy(np.array(model.tensor(name))).to(device) for name in model.names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("--teacher", required=True)
    parser.add_argument("--sequences", "--windows", required=True, metavar="FILE.npz")  # the second is the old name
    parser.add_argument("--questions", nargs="*", default=[], metavar="FILE.jsonl")
    parser.add_argument("--first", type=int, help="only so many questions of each")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="for the teacher's scores")
    parser.add_argument("--lowbit", default=str(ROOT / "build/release/bin/lowbit"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    o = parser.parse_args()
    import torch

    from lowbit.checkpoint import Checkpoint
    from lowbit.sources import open_model
    from lowbit.tokens import Tokenizer

    begin = time.monotonic()
    device = torch.device(o.device if o.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cuda.matmul.allow_tf32 = False
    teacher, checkpoint = open_model(o.teacher), Checkpoint(o.checkpoint)
    trained = weights_of(checkpoint, device)

    def both(name, items):
        kept = o.keep / f"{name}.npz" if o.keep else None
        if kept and kept.exists():
            of_teacher = np.split(np.load(kept)["scores"], np.cumsum([len(item) for item in items])[:-1])
        else:
            of_teacher = scores(items, teacher.config, weights_of(teacher, device), teacher.head, device)
            if kept:
                o.keep.mkdir(exist_ok=True)
                np.savez(kept, scores=np.concatenate(of_teacher))
        return of_teacher, scores(items, teacher.config, trained, "lm_head.weight" if "lm_head.weight" in trained else "model.embed_tokens.weight", device)

    with np.load(o.sequences) as stored:
        sequences, kinds = stored["sequences" if "sequences" in stored else "windows"], stored["kinds"]
    pairs = both("pseudo", pseudo_choices(sequences, kinds))
    report = {"prompts": len(pairs[0]), "rms": rms(*pairs), "near": near_rms(*pairs), "agree": agreement(*pairs), "tasks": {}}
    say(f"{o.checkpoint}: {len(pairs[0])} pseudo choices, rms {report['rms']:.4f}, near {report['near']:.4f}, agree {report['agree']:.4f}")
    for file in o.questions:
        lines = [json.loads(line) for line in Path(file).read_text().splitlines() if line.strip()][:o.first]
        asked = both(Path(file).stem, question_choices(lines, Tokenizer(o.teacher, o.lowbit), checkpoint.config["eos_token_id"]))
        lengths = [[len(scored.encode()) - 1 for _, scored in choice_texts(q)] for q in lines]
        answers = {name: {"right": right(lines, of), "right_normalized": right(lines, of, lengths)} for name, of in zip(("teacher", "model"), asked)}
        report["tasks"][Path(file).stem] = {"questions": len(lines), "rms": rms(*asked), **answers}
        said = {name: np.mean([c == "1" for c in of["right"]]) for name, of in answers.items()}
        say(f"{o.checkpoint}: {Path(file).stem} {said['model']:.4f}, teacher {said['teacher']:.4f}, rms {report['tasks'][Path(file).stem]['rms']:.4f}")
    report["seconds"] = time.monotonic() - begin
    text = json.dumps(report)
    o.out.write_text(text + "\n") if o.out else print(text)


if __name__ == "__main__":
    main()
