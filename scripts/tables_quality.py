"""Tables of quality for print_tables.py: perplexity by format, calibration, recovery by training, questions. Each takes
a report of bench/results/."""

import json
import statistics
from pathlib import Path

from tables_speed import optional

ROOT = Path(__file__).resolve().parent.parent

def quality(report: dict) -> str:
    lines = ["| format | fit | bits/weight | PPL | ratio | KLD | top-1 | TinyStories, ratio |", "|---|---|---|---|---|---|---|---|"]
    for r in report["rows"]:
        fit = ", ".join(part for part in (r["fit"], r.get("options", "").replace(",", ", ").replace("=", " ")) if part)
        lines.append(f"| {r['format']} | {fit} | {r['bits_per_weight']:.2f} | {r['ppl']:.2f} | {r['ratio']:.3f} | {optional(r['kld_mean'], 3)} | "
                     f"{optional(r['top1'], 3)} | {r['tiny_ratio']:.2f} |")
    return "\n".join(lines) + (f"\n\n{report['model']}; {report['calibration']}, {report['tokens']} tokens; {report['chunks']} chunks of 512, "
                               f"base {report['base']['ppl']:.4f} (TinyStories {report['base']['tiny_ppl']:.4f}).")


def recovery(report: dict) -> str:
    lines = ["| format | bits/weight | stages | tokens | of text | settled | samples | PPL | ratio | KLD | top-1 | TinyStories, ratio |",
             "|---|---|---|---|---|---|---|---|---|---|---|---|"]

    def line(r: dict, stages: str, after: dict, of_distillation: tuple) -> str:
        scales = (", scales double" if r.get("scale") == "double" else "") + (f", recipe {r['recipe']}" if "recipe" in r else "")
        return (f"| {r['format']} g{r['group']}{scales} | {r['bits_per_weight']:.2f} | {stages} | {' | '.join(of_distillation)} | {after['ppl']:.2f} | "
                f"{after['ratio']:.3f} | {optional(after['kld_mean'], 3)} | {optional(after['top1'], 3)} | {after['tiny_ratio']:.2f} |")

    for r in report["rows"]:
        options = dict(option.partition("=")[::2] for option in r["options"])
        stages = [stage["method"] + (f" ({stage['steps']} steps)" if stage["method"] == "blocks" else "") for stage in r["recovery"]["stages"]]
        nothing = ("-",) * 4
        if "blocks" in r:
            lines.append(line(r, stages[0], r["blocks"], nothing))
        share = float(options.get("block-text-share", 1))
        if share < 1:
            stages[0] += f", {'half' if share == 0.5 else f'{100 * (1 - share):.0f} %'} of them sampled sequences"
        if "train-embedding" in options:
            stages[-1] += " with the embedding"
        trained = (r["tokens"], f"{100 * float(options.get('text-share', 0.3)):.0f} %", "no" if options.get("settle") == "1" else "yes",
                   ("chats, openings" + "".join(f", {kind}" for kind, mark in (("rewritten", "rewritten="), ("words", "word="), ("questions", "question=")) if mark in r["sampling"]))
                   if "sampling" in r else f"any token, T {options.get('sample-temperature', '1').replace(',', ' to ')}")
        lines.append(line(r, ", ".join(stages), r["recovered"], trained if r["tokens"] != "0M" else nothing))
    return "\n".join(lines) + (f"\n\n{report['model']} on {report['device']}; {report['chunks']} chunks of 512, base {report['base']['ppl']:.4f} "
                              f"(TinyStories {report['base']['tiny_ppl']:.4f}).")


def size_of(row: dict) -> int:
    """A quarter of a bit; below two bits there is one size."""
    return round(4 * row["bits_per_weight"]) if row["bits_per_weight"] > 2 else 0


def best_of_sizes(report: dict) -> list[dict]:
    """Of each size the distilled row whose two ratios have the least product, the largest size first."""
    trained = {}
    for r in report["rows"]:
        if r["tokens"] != "0M":
            trained.setdefault(size_of(r), []).append(r)
    return [min(trained[size], key=lambda r: r["recovered"]["ratio"] * r["recovered"]["tiny_ratio"]) for size in sorted(trained, reverse=True)]


def recovered(report: dict) -> str:
    """Of each size in short: its best row, and the least ratio that blocks alone reached in its format."""
    lines = ["| bits/weight | format | perplexity, ratio: quantized by blocks | and distilled | on TinyStories |", "|---|---|---|---|---|"]
    blocks = {}
    for r in report["rows"]:
        ratios = blocks.setdefault((size_of(r), r["format"]), [])
        if "blocks" in r:
            ratios.append(r["blocks"]["ratio"])
        if r["tokens"] == "0M":
            ratios.append(r["recovered"]["ratio"])
    for best in best_of_sizes(report):
        name = "mixed" if best["format"].startswith("bpw") else best["format"] + ", three bits where they count" * ("recipe" in best)
        alone = min(blocks[size_of(best), best["format"]], default=None)
        lines.append(f"| {best['bits_per_weight']:.2f} | {name} | {optional(alone, 3)} | {best['recovered']['ratio']:.3f} | {best['recovered']['tiny_ratio']:.2f} |")
    return "\n".join(lines) + (f"\n\n{report['model']}; WikiText-2 test, {report['chunks']} chunks of 512; bits of linear layers, scales included; the distilled row of "
                              "each size is the one whose two ratios have the least product.")


def best(report: dict) -> str:
    """What weights alone give, and what training does, with about four, three and two bits: the README's table."""
    ladder = json.loads((ROOT / "bench/results/quality.json").read_text())
    lines = ["| bits/weight | format | how | perplexity / the original's | on TinyStories |", "|---|---|---|---|---|"]
    line = lambda r, how, after: lines.append(f"| {r['bits_per_weight']:.2f} | {'mixed' if r['format'].startswith('bpw') else r['format']} | {how} | {after['ratio']:.3f} | {after['tiny_ratio']:.2f} |")
    for step in ("int4:lsq", "int3:lsq"):
        row = next(r for r in ladder["rows"] if r["step"] == step)
        line(row, "weights alone, seconds", row)
    for row in best_of_sizes(report):
        line(row, "trained, minutes on a GPU" + ", three bits where they count" * ("recipe" in row), row["recovered"])
    return "\n".join(lines) + f"\n\n{report['model']}; WikiText-2 test, {report['chunks']} chunks of 512; bits of linear layers, scales included."


def preset_name(row: dict) -> str:
    return f"`{row['preset']}{' --calib TEXT' if 'calib' in row else ''}`"


def presets(report: dict) -> str:
    """The three presets beside llama.cpp's types: what each loses, and how long it takes."""
    rival = json.loads((ROOT / "bench/results/presets_llama_cpp.json").read_text())
    speed = json.loads((ROOT / "bench/results/presets_speed.json").read_text())
    of = {r["name"]: r for r in speed["rows"]}
    blank = {"prefill_tok_s": None, "decode_tok_s": None, "peak_megabytes": None}
    lines = ["| `--preset` | bits/weight | size, MB | perplexity / the original's | divergence | same likeliest token | on TinyStories | seconds | prompt, tok/s | tok/s | memory, MB |", "|---" * 11 + "|"]
    for r in report["rows"] + rival["rows"]:
        name = preset_name(r) if "preset" in r else f"llama.cpp {r['type']}"
        run = blank if "calib" in r else of[r.get("preset") or r["type"]]
        lines.append(f"| {name} | {r['bits_per_weight']:.2f} | {r['megabytes']:.0f} | {r['ratio']:.3f} | {r['kld_mean']:.3f} | {100 * r['top1']:.0f} % | "
                     f"{optional(r.get('tiny_ratio'), 3)} | {optional(r.get('seconds'), 0)} | "
                     f"{optional(run['prefill_tok_s'], 0)} | {optional(run['decode_tok_s'], 0)} | {optional(run['peak_megabytes'], 0)} |")
    return "\n".join(lines) + (f"\n\n{report['model']}; WikiText-2 test, 100 chunks of 512; bits of linear layers, scales included; presets made on {report['machine']}. "
                              "Without `--calib` they have no text but the model's own; TEXT is WikiText-2's training part, and so is the text of llama.cpp's importance matrices. "
                              f"Speed and memory: {speed['machine']}, {speed['threads']} threads, 128 tokens and 64 more.")


def presets_choices(report: dict) -> str:
    """What each preset loses of a set of questions."""
    lines = ["| `--preset` | right by length, % | points lost | right, % | points lost |", "|---" * 5 + "|"]
    percent = lambda of, key: f"{100 * of[key]:.1f}"
    lost = lambda of: f"{-100 * of['mean']:.1f} ± {100 * of['error']:.1f}"
    first = report["rows"][0]["against"]
    lines.append(f"| the original | {percent(first, 'normalized_accuracy')} | - | {percent(first, 'accuracy')} | - |")
    for r in report["rows"]:
        lines.append(f"| {preset_name(r)} | {percent(r, 'normalized_accuracy')} | {lost(r['normalized_difference'])} | {percent(r, 'accuracy')} | "
                     f"{lost(r['difference'])} |")
    return "\n".join(lines) + f"\n\n{report['model']}; {report['task']}; {report['machine']}."


def recovery_presets(report: dict) -> str:
    """What training gives back of what each preset lost: before, then after."""
    made, asked = ({r["preset"]: r for r in json.loads((ROOT / f"bench/results/{name}.json").read_text())["rows"] if "calib" not in r}
                   for name in ("presets", "presets_choices"))
    lines = ["| `--preset` | seed | batch | tokens | bits/weight | WikiText-2 | TinyStories | divergence | same likeliest token | questions lost, points |", "|---" * 10 + "|"]
    for r in report["rows"]:
        start, lost = made[r["preset"]], r["difference"]
        lines.append(f"| `{r['preset']}` | {r['seed']} | {r['batch']} | {r['tokens'] / 1e6:.0f}M | {r['bits_per_weight']:.2f} | {start['ratio']:.3f} → {r['ratio']:.3f} | "
                     f"{start['tiny_ratio']:.3f} → {r['tiny_ratio']:.3f} | {start['kld_mean']:.3f} → {r['kld_mean']:.3f} | {100 * start['top1']:.0f} → {100 * r['top1']:.0f} % | "
                     f"{-100 * asked[r['preset']]['difference']['mean']:.1f} → {round(-100 * lost['mean'], 1) + 0.0:.1f} ± {100 * lost['error']:.1f} |")
    return "\n".join(lines) + (f"\n\n{report['model']}; WikiText-2 test, 100 chunks of 512, perplexity over the original's, as on TinyStories (60 chunks; all 94 before training); "
                              f"arc_easy, 2,376 questions; trained on {report['machine']}.")


def calibration(report: dict) -> str:
    lines = ["| model | device | threads | tokens | measuring, s | fitting, s | quantized blocks, s | all, s |", "|---|---|---|---|---|---|---|---|"]
    for part in report["reports"]:
        for r in part["rows"]:
            lines.append(f"| {part['model']} | {r['device'].upper()} | {r['threads']} | {r['tokens']} | {r['measure']:.1f} | {r['fit']:.1f} | {r['advance']:.1f} | "
                         f"{r['seconds']:.1f} |")
    first = report["reports"][0]
    return "\n".join(lines) + f"\n\n{first['cpu']}; {first['gpu']}. int4; rows of one model and as many tokens wrote the same bytes."


def activations(report: dict) -> str:
    acts = ["f32", "int8", "int8-row", "int8-clip", "int4"]
    lines = ["| weights | " + " | ".join(acts) + " |", "|---" * (len(acts) + 1) + "|"]
    for row in report["rows"]:
        if not row["ppl"]:
            continue
        base = row["ppl"].get("f32")
        cost = lambda ratio: f" ({100 * (ratio - 1):+.2f} %)" if ratio < 2 else f" ({ratio:.0f} times)"
        cells = [f"{row['ppl'][a]:.2f}" + (cost(row["ppl"][a] / base) if base and a != "f32" else "") if a in row["ppl"] else "-" for a in acts]
        lines.append(f"| {row['name']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + f"\n\n{report['model']}, WikiText-2 test, {report['chunks']} chunks of 512."


def paired(task: dict, base: dict, key: str) -> str:
    """Difference of two models' answers to the same questions, with the standard error of the mean of the
    differences."""
    if key not in task or key not in base or task is base:
        return "-"
    n = len(base[key])
    gained, lost = (sum(pair == wanted for pair in zip(task[key], base[key], strict=True)) for wanted in (("1", "0"), ("0", "1")))
    mean = (gained - lost) / n
    return f"{100 * mean:+.1f} ± {100 * (((gained + lost) / n - mean**2) / (n - 1))**0.5:.1f}"


def tasks(report: dict) -> str:
    lines = ["| model | x | arc_easy, % | points to the original | by length, % | points to the original | winogrande, % |", "|---|---|---|---|---|---|---|"]
    percent = lambda task, key: f"{100 * task[key]:.1f} ± {100 * task[key + '_error']:.1f}" if task else "-"
    base = next(row for row in report["rows"] if row["tasks"].get("arc_easy", {}).get("activation") == "f32")["tasks"]
    for row in report["rows"]:
        if "arc_easy" in row["tasks"]:
            arc, grande = row["tasks"]["arc_easy"], row["tasks"].get("winogrande")
            lines.append(f"| {row['name']} | {arc['activation']} | {percent(arc, 'accuracy')} | {paired(arc, base['arc_easy'], 'right')} | "
                         f"{percent(arc, 'normalized_accuracy')} | {paired(arc, base['arc_easy'], 'right_normalized')} | {percent(grande, 'accuracy')} |")
    return "\n".join(lines) + (f"\n\n{report['model']}; {base['arc_easy']['questions']} and 1267 questions, no examples given; differences question by "
                              f"question.")


def original_answers() -> dict:
    """arc_easy of the file's own weights."""
    report = json.loads((ROOT / "bench/results/tasks.json").read_text())
    return next(row for row in report["rows"] if row["tasks"].get("arc_easy", {}).get("activation") == "f32")["tasks"]["arc_easy"]


def changed(task: dict, base: dict) -> str:
    """Questions that were answered rightly by one of two models alone."""
    return f"{100 * sum(a != b for a, b in zip(task['right'], base['right'], strict=True)) / len(base['right']):.1f} %"


def answers(row: dict, base: dict) -> str:
    """arc_easy of a row: points, questions changed, points by length."""
    if "tasks" in row:
        task = row["tasks"]["arc_easy"]
        return f"{paired(task, base, 'right')} | {changed(task, base)} | {paired(task, base, 'right_normalized')}"
    return f"{100 * (row['accuracy'] - base['accuracy']):+.1f} | - | -" if "accuracy" in row else "- | - | -"


def mixes(report: dict) -> str:
    """Rows that differ in what they were trained on, all compared on the same held-out sequences."""
    kinds = ("chat", "rewritten", "word")
    lines = ["| format | start | mixture | text in blocks, batches | at T 2 | decay | seed | " + " | ".join(f"held-out: {kind}" for kind in ("text", *kinds))
             + " | WikiText-2, ratio | TinyStories | arc_easy, points | changed | by length |", "|---" * (12 + len(kinds) + 1) + "|"]
    base = original_answers()
    for r in report["mixes"]:
        options = dict(option.partition("=")[::2] for option in r["options"])
        soft, decay, seed = (options.get(name, default) for name, default in (("soft-share", "-"), ("decay", "-"), ("seed", "0")))
        text = ", ".join(f"{100 * float(options.get(name, default)):.0f} %" for name, default in (("block-text-share", 1), ("text-share", 0.3)))
        held = " | ".join(f"{value:.4f}" for value in (r["after"]["kl"], *(r["after"]["kinds"][kind] for kind in kinds)))
        measured = " | ".join(f"{r['recovered'][key]:.3f}" if "recovered" in r else "-" for key in ("ratio", "tiny_ratio"))
        lines.append(f"| {r['format']} g{r['group']} | {r['fit']} | {r['mix']} | {text} | {soft} | {decay} | {seed} | {held} | {measured} | {answers(r, base)} |")
    return "\n".join(lines) + (f"\n\n{report['model']} on {report['device']}, 14M tokens after 200 steps of blocks; KL divergence on held-out sequences, 32 of each "
                              "kind (16 of the text).")


def mean(values: list, digits: int) -> str:
    """Of those that were measured, with the error of the mean where there are several."""
    values = [v for v in values if v is not None]
    error = f" ± {statistics.stdev(values) / len(values)**0.5:.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{error}" if values else "-"


OTHER_MIXES = {"asked": "questions", "exam": "questions in the test's form"}


def losses(report: dict) -> str:
    """Recipes by format, each with the mean over its seeds."""
    lines = ["| format | bits/weight | tokens | rate | T | else | seeds | held-out: text | word | question | rms | near | agree | WikiText-2, ratio | TinyStories | "
             "arc_easy, points | changed | by length | winogrande |", "|---" * 19 + "|"]
    base, recipes = report["teacher_answers"], {}
    for r in report["losses"]:
        recipes.setdefault(":".join(part for part in r["row"].split(":") if not part.startswith("seed=")), []).append(r)

    def points(rows: list, key: str, answers: str, base: dict) -> str:
        if any(answers not in r for r in rows):
            return "-"
        if len(rows) == 1:
            return paired(rows[0][answers], base, key)
        return mean([100 * (r[answers][key].count("1") - base[key].count("1")) / len(base[key]) for r in rows], 1)

    for rows in recipes.values():
        first, options = rows[0], {"soft-temperature": "4" if "mix" in rows[0] else "2", **dict(option.partition("=")[::2] for option in rows[0]["options"])}
        other = [f"{name.replace('-', ' ')} {options[name]}".strip() for name in
                 ("soft-share", "exchange", "piece", "hidden-weight", "stream-weight", "score-weight", "alone", "train-embedding")
                 if name in options and (name, options[name]) != ("soft-share", "0.5")]
        named = {"recipe": first.get("recipe"), "batch": options.get("batch")}
        other = [f"{key} {value}" for key, value in named.items() if value] + other
        other += ["no blocks"] if options.get("method") == "full" else []
        other += [OTHER_MIXES[first["mix"]]] if "mix" in first else []
        other += [f"text {100 * float(options['text-share']):.0f} %"] if options["text-share"] != "0.25" else []
        values = [mean([r["after"]["kl"] for r in rows], 4), *(mean([r["after"]["kinds"].get(kind) for r in rows], 4) for kind in ("word", "question"))]
        values += [mean([r.get(key) for r in rows], 3) for key in ("rms", "near", "agree")]
        values += [mean([r.get("recovered", {}).get(key) for r in rows], 3) for key in ("ratio", "tiny_ratio")]
        share = mean([float(changed(r["answers"], base).rstrip(" %")) for r in rows if "answers" in r], 1)
        values += [points(rows, "right", "answers", base), share if share == "-" else share + " %"]
        values += [points(rows, "right_normalized", "answers", base), points(rows, "right", "winogrande", report["teacher_winogrande"])]
        lines.append(f"| {first['format']} g{first['group']} | {first['bits_per_weight']:.2f} | {first['tokens']} | {options['lr']} | {options['soft-temperature']} | "
                     f"{', '.join(other) or '-'} | {len(rows)} | {' | '.join(values)} |")
    return "\n".join(lines) + (f"\n\n{report['model']} on {report['device']}; half of the loss at T; 120 steps of blocks on 2,048 sequences, half of them text; text, where not said, 25 % of "
                              "batches, else the mixture of words; exact activations. Errors are of the mean over seeds; where there is one, of the questions.")


def noise(report: dict) -> str:
    lines = ["| noise, parts of a row's size | seed | KLD | top-1 | PPL, ratio | TinyStories, ratio | arc_easy, points | changed | by length |", "|---" * 9 + "|"]
    base = original_answers()

    def line(size: str, seed, measured: dict, row: dict) -> str:
        return (f"| {size} | {seed} | {measured['kld_mean']:.3f} | {measured['top1']:.3f} | {measured['ratio']:.3f} | {measured['tiny_ratio']:.3f} | "
                f"{answers(row, base)} |")

    for r in sorted(report["rows"], key=lambda r: (r["size"], r["seed"])):
        lines.append(line(f"{r['size']:g}", r["seed"], r, r))
    lines += [line(f"{r['row'].partition('noise-')[2].split(':')[0]}, distilled", 0, r["recovered"], r) for r in report["distilled"]]
    return "\n".join(lines) + f"\n\n{report['model']}; weights in int8 in groups of 64, int8 activations for the questions; {report['chunks']} chunks of 512."
