"""Layers on a trellis begun anew in tables of the same bits, as `lowbit quantize` fits them to the teacher. Codes on a
trellis cannot be trained (docs/lab/trellis.md), those of a table can."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from ..checkpoint import Checkpoint, QuantizedWeight
from ..errors import LowbitError, parts_of_line
from ..formats import find_format
from ..tokens import find_program

CALIB_TOKENS = 8192
SCALES = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "double": "double"}


def line(name: str, weight: QuantizedWeight) -> str:
    """What a recipe of `lowbit quantize` says of a layer."""
    spec, bits = weight.spec, find_format(weight.spec.format, name).trellis
    group = "row" if spec.group_size == -1 else spec.group_size
    return f"^{name.removesuffix('.weight').replace('.', '[.]')} codebook{bits} group={group} scale={SCALES[spec.scale_dtype]}"


def in_tables(weights: dict[str, QuantizedWeight], teacher: str, data: list, program, threads: int | None) -> dict[str, QuantizedWeight]:
    """Each of `weights` in codebook2 or codebook3 where it has trellis2 or trellis3; groups and the kind of scale stay.
    Calibrated on 8K tokens of the texts among `data`; without a text, by least squares."""
    texts = [Path(file) for file in data if not str(file).endswith(".npy")]
    with tempfile.TemporaryDirectory() as folder:
        recipe, text, out = (Path(folder) / name for name in ("recipe", "text", "tables"))
        fit = "refit" if texts else "lsq"
        recipe.write_text("".join(f"{line(name, weight)} fit={fit}\n" for name, weight in weights.items()))
        command = [find_program(program), "quantize", teacher, out, "--format", "int8", "--recipe", recipe, "--force", "--quiet"]
        if texts:
            text.write_bytes(b"\n".join(file.read_bytes() for file in texts))
            command += ["--calib", text, "--calib-tokens", CALIB_TOKENS]
        done = subprocess.run(list(map(str, [*command, *(["--threads", threads] if threads else [])])), capture_output=True)
        if done.returncode != 0:
            message = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
            raise LowbitError(*(parts_of_line(message) or ("lowbit quantize", message, "the teacher's layers in tables")))
        made = Checkpoint(out)
        return {name: made.weight(name) for name in weights}
