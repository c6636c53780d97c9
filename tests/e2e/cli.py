"""Shared by the tests of this folder: the binary, tiny models, and what every call must keep to."""
import json
import math
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
BINARY = None  # set by run_e2e.py
WORK = None

VERBS = ["import", "quantize", "export", "inspect", "verify", "run", "trace", "chat", "tokenize", "logits", "ppl", "eval", "report", "bench matmul", "bench model",
         "bench attention", "bench memory", "bench gru", "bench fp8", "gru calibrate", "gru quantize", "gru tune", "gru search", "gru encodings", "gru run", "gru verify", "doctor"]
FORMATS = ["int8", "int4", "int3", "int2", "ternary", "binary", "fp8"]
ERROR_LINE = re.compile(r"error: [^\n]+\n")
# Sanitizers write more than one line of their own; a crash is a negative return code.
TIMEOUT_S = 120
PROGRAMS_OPTIONS = "ASAN_OPTIONS_OF_PROGRAMS"


def text(count):
    """`count` words to calibrate and train on."""
    words = "the river runs past old stone houses while people talk about bread and rain".split()
    return " ".join(words[(i * i + i // 7) % len(words)] for i in range(count))


def make_model(out, *options):
    subprocess.run([sys.executable, SOURCE / "scripts" / "make_test_model.py", out, *options], check=True)
    return str(out)


def all_but_generation(path):
    """Of a safetensors file, header and data: the id of its directory comes from config.json as well, which says how it
    was made."""
    raw = Path(path).read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + size])
    header["__metadata__"].pop("generation")
    return header, raw[8 + size:]


def npy(shape, values):
    """A float32 .npy file as bytes."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({''.join(f'{n}, ' for n in shape)}), }}"
    header += " " * (63 - (10 + len(header)) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + struct.pack(f"<{len(values)}f", *values)


def gru_files(rng, inputs=5, hidden=7, steps=12, batch=3):
    """A GRU's weights by file name, with PyTorch's names and order, and a sequence for it, all as the bytes of .npy
    files."""
    shapes = {"w_ih": (3 * hidden, inputs), "w_hh": (3 * hidden, hidden), "b_ih": (3 * hidden,), "b_hh": (3 * hidden,)}
    files = {f"{name}.npy": npy(shape, [rng.gauss(0, 0.4) for _ in range(math.prod(shape))]) for name, shape in shapes.items()}
    return files, npy((steps, batch, inputs), [rng.gauss(0, 1) for _ in range(steps * batch * inputs)])


def environment(**extra):
    """Without any LOWBIT_* of whoever runs the tests. What is here for an instrumented library in Python is for that
    alone."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("LOWBIT_")}
    if "LOWBIT_LIBRARY" not in extra and PROGRAMS_OPTIONS in env:
        env["ASAN_OPTIONS"] = env[PROGRAMS_OPTIONS]
        del env["LD_PRELOAD"]
    env.update(extra)
    return env


def library_beside():
    return Path(BINARY).parents[1] / "lib/liblowbit.so.0"


def sanitized_environment(library):
    """What a Python needs that loads an instrumented library: the sanitizer's own there first, and no look at leaks,
    which Python has."""
    needed = subprocess.run(["ldd", library], capture_output=True, text=True).stdout if library.exists() else ""
    first = re.findall(r"=> (\S*/lib[at]san\.so\S*)", needed)
    if not first:
        return {}
    options = os.environ.get("ASAN_OPTIONS", "")
    return {"LD_PRELOAD": " ".join(first + re.findall(r"=> (\S*/libstdc\+\+\.so\S*)", needed)), "ASAN_OPTIONS": f"{options}:detect_leaks=0",
            PROGRAMS_OPTIONS: options}


def start_sanitized():
    """Starts Python again with the sanitizer's library, unless it is there or not needed."""
    added = sanitized_environment(library_beside())
    if added and PROGRAMS_OPTIONS not in os.environ:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **added})


def shared_library():
    """The library beside the binary, or the test is skipped."""
    library = library_beside()
    if not library.exists():
        raise unittest.SkipTest(f"no {library}")
    return library


def load_package():
    """Python's package `lowbit` on that library."""
    os.environ["LOWBIT_LIBRARY"] = str(shared_library())
    sys.path.insert(0, str(SOURCE / "python"))


def sanitized():
    """Whether the binary is instrumented, which takes several times the time and the memory."""
    program = Path(BINARY).read_bytes()
    return b"__asan_init" in program or b"__tsan_init" in program


def limit_files(most_bytes):
    """For a child: a write beyond that size is an error, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))


def files_below(path):
    path = Path(path)
    return {str(f.relative_to(path)): f.read_bytes() for f in path.rglob("*") if f.is_file()}


class CliTest(unittest.TestCase):
    """A test with a folder of its own, self.dir, and the models of its class in cls.models."""

    @classmethod
    def setUpClass(cls):
        WORK.mkdir(parents=True, exist_ok=True)
        cls.models = Path(tempfile.mkdtemp(prefix=cls.__name__ + "_", dir=WORK))
        cls.hf = make_model(cls.models / "hf")

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.models, ignore_errors=True)

    def setUp(self):
        self.dir = Path(tempfile.mkdtemp(prefix="test_", dir=self.models))

    def lowbit(self, *args, code=0, env=None, stdin=None, file_bytes=None, cwd=None):
        """Runs `lowbit ARGS`; fails unless it ends with `code`. Output as bytes. Files longer than `file_bytes` cannot
        be written."""
        done = subprocess.run([BINARY, *map(str, args)], capture_output=True, timeout=TIMEOUT_S, cwd=cwd,
                              env=environment(**(env or {})), input=stdin if stdin is not None else b"",
                              preexec_fn=None if file_bytes is None else lambda: limit_files(file_bytes))
        self.assertEqual(done.returncode, code, f"lowbit {' '.join(map(str, args))}\n{done.stdout[-2000:]}\n"
                                                f"{done.stderr[-2000:].decode(errors='replace')}")
        return done

    def json(self, *args, code=0, env=None, stdin=None, cwd=None):
        """Runs with --json: stdout must be one JSON document and a newline."""
        done = self.lowbit(*args, "--json", code=code, env=env, stdin=stdin, cwd=cwd)
        text = done.stdout.decode("utf-8")
        self.assertTrue(text.endswith("}\n"), text[-200:])
        return json.loads(text)

    def assertKeys(self, document, keys):
        self.assertEqual(set(keys.split()) - set(document), set(), "missing keys")

    def refused(self, *args, code=1, env=None, file_bytes=None):
        """The call fails with `code` and exactly one error line, which is returned."""
        done = self.lowbit(*args, code=code, env=env, file_bytes=file_bytes)
        errors = done.stderr.decode(errors="replace")
        self.assertRegex(errors, ERROR_LINE)
        self.assertEqual(errors.count("\n"), 1, errors)
        self.assertEqual(done.stdout, b"", args)
        return errors

    def unwritten(self, out, *args):
        """On a disk that fills up the call fails and leaves everything as it was, with and without a file in its
        way."""
        out.write_bytes(b"in the way")
        for there in (True, False):
            if not there:
                out.unlink()
            before = files_below(out.parent)
            self.assertIn("File too large", self.refused(*args, file_bytes=16))
            self.assertEqual(files_below(out.parent), before)

    def quantized(self, name, *options, source=None):
        out = self.dir / name
        self.lowbit("quantize", source or self.hf, out, "--quiet", *options)
        return out

    def greedy(self, model, *options, n=24):
        """Tokens after an empty prompt at temperature 0."""
        return self.json("run", model, "-p", "", "-n", n, "--temp", 0, "--ignore-eos", *options)["tokens"]


def start(*args, **kwargs):
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([BINARY, *map(str, args)], env=environment(), **{**streams, **kwargs})


def interrupt(process, stop=signal.SIGINT):
    process.send_signal(stop)
    return process.communicate(timeout=TIMEOUT_S)
