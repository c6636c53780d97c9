#!/usr/bin/env python3
"""What llama.cpp's types keep of a model's answers, beside lowbit's presets: perplexity and KL divergence against the
model's own weights as F32, on two texts, after an importance matrix of a third. JSON for
bench/results/presets_llama_cpp.json.

  bench/rivals/presets.py MODEL.gguf --data FOLDER --bin build/rivals/build/bin --lowbit build/release/bin/lowbit \\
      --work FOLDER --out bench/results/presets_llama_cpp.json

FOLDER of --data holds wiki.test.raw, tinystories_excerpt.txt and wikitext2_raw_train_part.txt. A step whose log is in
--work and whole is not run again. Bits are those of the file: where a row's length is no multiple of 256, a K-type is
stored as a larger one.
"""
import argparse
import json
import re
import subprocess
from pathlib import Path

TYPES = ("Q4_K_M", "Q4_0", "Q3_K_M", "Q2_K")
TEXTS = {"wiki": ("wiki.test.raw", ["--chunks", "100"]), "tiny": ("tinystories_excerpt.txt", [])}


def number(name: str, log: str) -> float:
    """The number behind `name` in what llama-perplexity prints last."""
    found = re.search(rf"^{re.escape(name)}\s*:\s*([-+0-9.eE]+)", log, re.MULTILINE)
    if found is None:
        raise SystemExit(f"presets.py: got no '{name}' in a log, wanted llama-perplexity's statistics. hint: remove the log and run again")
    return float(found[1])


class Run:
    """The steps, each with a log in the work folder that says whether it has been done."""

    def __init__(self, o: argparse.Namespace) -> None:
        self.o = o

    def step(self, log: str, tool: str, *args: str) -> str:
        path = self.o.work / log
        if not path.exists():
            done = subprocess.run([self.o.bin / tool, *args], capture_output=True, text=True, errors="replace", cwd=self.o.work)
            if done.returncode != 0:
                raise SystemExit(f"presets.py: {tool} ended with {done.returncode}\n{done.stderr[-2000:]}")
            path.write_text(done.stdout + done.stderr)
        return path.read_text(errors="replace")

    def base(self) -> None:
        t = ["-t", str(self.o.threads)]
        self.step("q_f32.log", "llama-quantize", "--allow-requantize", str(self.o.model), "f32.gguf", "F32")
        self.step("imatrix.log", "llama-imatrix", "-m", "f32.gguf", "-f", str(self.o.data / "wikitext2_raw_train_part.txt"), "-c", "512",
                  "--chunks", "128", "-o", "im.gguf", *t)
        for name, (file, chunks) in TEXTS.items():
            self.step(f"p_f32_{name}.log", "llama-perplexity", "-m", "f32.gguf", "-f", str(self.o.data / file), "-c", "512", *chunks,
                      "--save-all-logits", f"{name}.kld", *t)

    def row(self, kind: str) -> dict:
        self.step(f"q_{kind}.log", "llama-quantize", "--allow-requantize", "--imatrix", "im.gguf", "f32.gguf", f"{kind}.gguf", kind)
        logs = {name: self.step(f"p_{kind}_{name}.log", "llama-perplexity", "-m", f"{kind}.gguf", "--kl-divergence-base", f"{name}.kld",
                                "--kl-divergence", "-t", str(self.o.threads)) for name in TEXTS}
        described = subprocess.run([self.o.lowbit, "inspect", self.o.work / f"{kind}.gguf", "--json"], capture_output=True, text=True, check=True)
        file = json.loads(described.stdout)
        ratio = {name: number("Mean PPL(Q)/PPL(base)", log) for name, log in logs.items()}
        return {"type": kind, "bits_per_weight": file["bits_per_weight"], "bits_per_weight_total": file["bits_per_weight_total"],
                "megabytes": (self.o.work / f"{kind}.gguf").stat().st_size / 1e6, "ppl": number("Mean PPL(Q)", logs["wiki"]),
                "ratio": ratio["wiki"], "kld_mean": number("Mean    KLD", logs["wiki"]), "top1": number("Same top p", logs["wiki"]) / 100,
                "tiny_ratio": ratio["tiny"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    for name in ("--data", "--bin", "--lowbit", "--work", "--out"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    o = parser.parse_args()
    o.model, o.data, o.bin, o.lowbit, o.work = (p.resolve() for p in (o.model, o.data, o.bin, o.lowbit, o.work))
    o.work.mkdir(parents=True, exist_ok=True)
    run = Run(o)
    run.base()
    report = {"program": "llama.cpp of llama-cpp-python 0.3.36", "model": "SmolLM2-135M-Instruct (Q4_1 as GGUF, expanded to F32)",
              "measured": "bench/rivals/presets.py: imatrix from 128 x 512 tokens of WikiText-2's train text; wiki.test.raw, 100 chunks of 512; "
                          "tinystories_excerpt.txt, all of it", "rows": [run.row(kind) for kind in TYPES]}
    o.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
