#!/usr/bin/env python3
"""Quantizes one model to four, three and two bits, measures size, loss and speed, lets each write, and draws and prints
what it found.

Three rows are good, calibrated on another text than the one they are measured on; one is garbage, a warning: as many
bits as the last good one, from the weights alone. OUT/demo.html and, where matplotlib is, OUT/demo.png open with bits
against quality and speed; the numbers are in OUT/report.json.

The loss is measured on WikiText-2's test set when LOWBIT_DATA (or ../shared/data) has it, else on the Debian FAQ
(package debian-faq): perplexity by llama.cpp's method, KL divergence and top-1 agreement against the original
weights with exact f32 activations. Rows named "calibrated" were quantized on 8K tokens of another text (WikiText-2's
train set, else the second half of the FAQ, of which only the first half is evaluated). Where a Python with torch sees a
GPU, rows named "recovered" are trained too, a minute or two each, by `python -m lowbit.recover`; elsewhere the commands
are printed.
"""
import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import demo_page

ROOT = Path(__file__).resolve().parent.parent
FORMATS = ["int4 calibrated", "int3 calibrated", "trellis2 calibrated", "int2"]
CALIBRATION_TOKENS = 8192
RECOVERED = {"int2 recovered": ["--format", "int2odd", "--group", "64"], "ternary recovered": ["--format", "ternary-packed", "--group", "72"]}
# a third of what docs/recovery.md was measured with: a minute or two on an H200
TRAINING = ["--tokens", "6M", "--sample", "3M"]
PROMPT = "The three largest cities of Germany are"
GARBAGE_RATIO = 3.0  # a perplexity this many times the original's means the text is of no use


def run_json(lowbit: str, *args: str) -> dict:
    done = subprocess.run([lowbit, *args, "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"lowbit {' '.join(args)}\n{done.stderr.strip()}")
    return json.loads(done.stdout)


def choose_texts(out: Path) -> tuple[Path, Path, str]:
    """The text to evaluate on, another one to calibrate on, and the first one's name."""
    data = Path(os.environ.get("LOWBIT_DATA", ROOT / "../shared/data")) / "text"
    test, train = data / "wiki.test.raw", data / "wikitext2_raw_train_part.txt"
    if test.exists() and train.exists():
        return test, train, "WikiText-2 test"
    faq = Path("/usr/share/doc/debian/FAQ/debian-faq.en.txt.gz")
    if not faq.exists():
        sudo = [] if os.geteuid() == 0 else ["sudo"]
        subprocess.run([*sudo, "apt-get", "install", "-y", "-qq", "--no-install-recommends", "debian-faq"], check=True,
                       stdout=subprocess.DEVNULL)
    if not faq.exists():
        sys.exit(f"no text to evaluate on: {faq} is not there (does dpkg leave documentation out?). Set LOWBIT_DATA instead")
    text = gzip.open(faq, "rt", errors="replace").read()
    test, train = out / "debian-faq-first-half.txt", out / "debian-faq-second-half.txt"
    test.write_text(text[:len(text) // 2])
    train.write_text(text[len(text) // 2:])
    return test, train, "the Debian FAQ's first half (package debian-faq)"


def trains(python: str) -> bool:
    """Whether this Python has what lowbit.recover needs, a GPU included."""
    check = "import numpy, xxhash, matplotlib, gguf, torch, sys; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([python, "-c", check], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def recovery_commands(options: argparse.Namespace, name: str, text: Path) -> list[list[str]]:
    """Quantizes, calibrated, to `start`, then trains that to `target`."""
    target = options.out / name.replace(" ", "-")
    start, teacher = target.with_name(target.name + "-start"), options.out / "teacher"
    return [[options.lowbit, "quantize", options.model, str(start), *RECOVERED[name], "--calib", str(text), "--calib-tokens", str(CALIBRATION_TOKENS),
             "--force"],
            [options.torch_python, "-m", "lowbit.recover", str(start), "--teacher", str(teacher), "--data", str(text), "-o", str(target),
             "--lowbit", options.lowbit, *TRAINING, "--force"]]


def recover(options: argparse.Namespace, name: str, text: Path) -> tuple[Path, dict]:
    """The trained checkpoint and what `quantize` said of its start, with the seconds of both."""
    target, teacher = options.out / name.replace(" ", "-"), options.out / "teacher"
    for old in options.out.glob(target.name + "*"):
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    if not teacher.exists():
        run_json(options.lowbit, "import", options.model, str(teacher))
    quantize, train = recovery_commands(options, name, text)
    made, begin = run_json(*quantize), time.time()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(train, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)
    if done.returncode != 0:
        sys.exit(f"{' '.join(train)}\n{done.stderr.strip()}")
    # its warnings are the start's
    return target, {**made, "seconds": made["seconds"] + time.time() - begin, "warnings": []}


def measure(lowbit: str, model: str, text: Path, options: argparse.Namespace, base: Path, is_base: bool) -> dict:
    against = ["--save-logits", str(base)] if is_base else ["--against", str(base)]
    # The original's logits are computed exactly; everything else as it would be used: int8 activations where weights
    # are integers.
    activation = ["--act", "f32"] if is_base else []
    ppl = run_json(lowbit, "ppl", model, "-f", str(text), "-c", "512", "--chunks", str(options.chunks), *activation, *against)
    bench = run_json(lowbit, "bench", "model", model, "-p", "128", "-n", "64")
    wrote = run_json(lowbit, "run", model, "-p", PROMPT, "-n", "40", "--temp", "0")
    return {"ppl": ppl["ppl"], "ppl_error": ppl["ppl_error"], "kld_mean": ppl["kld_mean"] or 0.0, "top1": 1.0 if is_base else ppl["top1"],
            "eval_tok_s": ppl["tok_s"], "prefill_tok_s": bench["prefill_tok_s"], "decode_tok_s": bench["decode_tok_s"],
            "load_s": wrote["load_s"], "peak_bytes": wrote["peak_bytes"], "text": wrote["text"]}


def table(report: dict) -> str:
    lines = ["| format | bits/weight | MB | PPL | ratio | KLD | top-1 | prefill tok/s | decode tok/s |",
             "|---|---|---|---|---|---|---|---|---|"]
    for row in report["rows"]:
        mark = " (*)" if row["ruined"] else ""
        lines.append(f"| {row['format']}{mark} | {row['bits_per_weight']:.2f} | {row['bytes'] / 1e6:.0f} | {row['ppl']:.4g} | "
                     f"{row['ratio']:.3g} | {row['kld_mean']:.3f} | {100 * row['top1']:.1f} % | {row['prefill_tok_s']:.0f} | "
                     f"{row['decode_tok_s']:.0f} |")
    if any(row["ruined"] for row in report["rows"]):
        lines += ["", "(*) writes garbage: weights alone do not carry this model to so few bits."]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lowbit", default="build/release/bin/lowbit")
    parser.add_argument("--out", type=Path, default=Path("build/demo"))
    parser.add_argument("--model", default="default")
    parser.add_argument("--chunks", type=int, default=8, help="chunks of 512 tokens to evaluate (default %(default)s)")
    parser.add_argument("--formats", nargs="+", default=FORMATS)
    parser.add_argument("--torch-python", default=sys.executable, help="Python that trains the recovered rows (default: this one)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    start = time.time()
    text, calibration_text, text_name = choose_texts(options.out)
    doctor = run_json(options.lowbit, "doctor")
    base = options.out / "base.logits"
    original = run_json(options.lowbit, "inspect", options.model)
    print(f"evaluating on {text_name}, {options.chunks} chunks of 512 tokens", file=sys.stderr)
    print("original ...", file=sys.stderr)
    rows = [{"format": "original", "bits_per_weight": original["bits_per_weight"], "bytes": original["bytes"], "quantize_s": 0.0,
             "warnings": [], **measure(options.lowbit, options.model, text, options, base, is_base=True)}]
    recovered = list(RECOVERED) if trains(options.torch_python) else []
    for name in options.formats + recovered:
        print(f"{name} ...", file=sys.stderr)
        if name in recovered:
            target, made = recover(options, name, calibration_text)
        else:
            target = options.out / name.replace(" ", "-")
            shutil.rmtree(target, ignore_errors=True)
            calibration = ["--calib", str(calibration_text), "--calib-tokens", str(CALIBRATION_TOKENS)] if "calibrated" in name else []
            made = run_json(options.lowbit, "quantize", options.model, str(target), "--format", name.split()[0], *calibration)
        rows.append({"format": name, "bits_per_weight": made["bits_per_weight"], "bytes": made["bytes"], "quantize_s": made["seconds"],
                     "warnings": made["warnings"], **measure(options.lowbit, str(target), text, options, base, is_base=False)})
    base.unlink()
    for row in rows:
        row["ratio"] = row["ppl"] / rows[0]["ppl"]
        row["ruined"] = not row["ratio"] < GARBAGE_RATIO
    report = {"model": options.model, "text": text_name, "chunks": options.chunks, "context": 512, "prompt": PROMPT,
              "cpu": doctor["cpu"]["model"], "isa": doctor["isa"], "threads": doctor["threads"], "version": doctor["version"],
              "bandwidth_gb_s": doctor["bandwidth_gb_s"], "seconds": time.time() - start, "rows": rows}
    (options.out / "report.json").write_text(json.dumps(report, indent=1) + "\n")

    tell(options, report, calibration_text, bool(recovered))


def tell(options: argparse.Namespace, report: dict, calibration_text: Path, trained: bool) -> None:
    """The picture first, then the table, what was written, warnings, and how to go on."""
    rows, pictures = report["rows"], demo_page.write(report, options.out)
    print(f"\nbits against quality and speed: {' and '.join(map(str, pictures))}" + (" (no PNG without matplotlib)" if len(pictures) < 2 else ""))
    print(f"\n{table(report)}\n\n{report['cpu']}, {report['isa']}, {report['threads']} threads; {report['text']}; {report['seconds']:.0f} s; {options.out / 'report.json'}")
    print(f"\n{PROMPT!r} goes on:")
    for row in rows:
        print(f"  {row['format']:>19}: {' '.join(row['text'].split())[:150]}")
    for row in rows:
        for warning in row["warnings"]:
            print(f"warning, {row['format']}: {warning}")
    if not trained:
        print("\nTraining brings two bits and fewer near the original, minutes on a GPU (docs/recovery.md). With `pip install '.[recover]'` where there is one:\n"
              f"  {options.lowbit} import {options.model} {options.out / 'teacher'}")
        for name in RECOVERED:
            print("\n".join("  " + " ".join(command) for command in recovery_commands(options, name, calibration_text)))


if __name__ == "__main__":
    main()
