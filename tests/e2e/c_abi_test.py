"""Every function of the C ABI, as the headers declare it, with arguments that no caller should give: NULL, counts that
no memory holds, numbers that no enum has, structs of no version's size. A child calls it: a status comes back, and
nothing crashes, hangs or takes the machine's memory."""
import ctypes
import os
import random
import re
import resource
import signal
import sys
import unittest

import cli

HEADERS = [cli.SOURCE / "include/lowbit" / name for name in ("lowbit_status.h", "lowbit_operators.h", "lowbit.h")]
NUMBERS = {"size_t": ctypes.c_size_t, "int64_t": ctypes.c_int64, "uint64_t": ctypes.c_uint64, "int32_t": ctypes.c_int32, "uint32_t": ctypes.c_uint32,
           "float": ctypes.c_float}
SMALL = [0, 1, 2, 3]
# Beyond them a call may believe that the memory is there.
EDGES = {"size_t": [2**64 - 1, 2**64 - 2, 2**63], "int64_t": [-1, -2**63, 2**63 - 1], "uint64_t": [2**64 - 1], "int32_t": [-1, -2**31, 2**31 - 1],
         "uint32_t": [2**32 - 1], "enum": [-1, 7, 2**31 - 1, -2**31], "float": [float("nan"), float("inf"), -1.0, 1e38]}
OPTIONAL = {"row_ends", "norm_weight", "up", "group_rows", "group_ends", "token_mask", "stop_texts", "activation", "device", "kv", "kv_keep", "kv_demote",
            "isa"}  # most of which exclude others, or name what there may not be
BUFFER_BYTES = 1 << 20
CALLS, SECONDS, MEMORY = 150, 60, 4 << 30


def without_comments(header):
    return re.sub(r"/\*.*?\*/|^#.*?$", "", header.read_text(encoding="utf-8"), flags=re.S | re.M)


class Headers:
    """`structs`: name -> [(type, name)]; `functions`: name -> (type, [(type, name)]). A pointer's type ends in "*"."""

    def __init__(self):
        text = "\n".join(without_comments(header) for header in HEADERS)
        self.enums = set(re.findall(r"typedef enum (\w+)", text))
        self.structs = {name: self.fields(body) for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", text, re.S)}
        self.handles = set(re.findall(r"typedef struct (\w+) \1;", text))
        plain = re.sub(r"typedef \w+ \w+ \{.*?\} \w+;|typedef struct \w+ \w+;", "", text, flags=re.S)
        self.functions = {name: (result, self.parameters(given)) for result, name, given in
                          re.findall(r"^([a-z][\w ]*\*? ?)(lb_\w+)\(([^;]*)\);", plain, re.S | re.M)}

    @staticmethod
    def declared(text):
        """"const float *a" -> ("float*", "a")."""
        text = re.sub(r"\bconst\b", "", text)
        return re.sub(r"\W*\w+\W*$", "", text).strip() + "*" * text.count("*"), re.findall(r"\w+", text)[-1]

    def fields(self, body):
        found = []
        for line in body.replace("\n", " ").split(";"):
            if callback := re.search(r"\(\*(\w+)\)", line):
                found.append(("callback", callback[1]))
            elif line.strip():
                kind = re.match(r"\s*(?:const\s+)?\w+", re.sub(r"\bconst\b", "", line))[0].strip()
                for each in line[line.index(kind) + len(kind):].split(","):
                    found.append((kind + "*" * each.count("*"), re.findall(r"\w+", each)[-1]))
        return found

    def parameters(self, text):
        return [] if text.strip() == "void" else [self.declared(each) for each in text.replace("\n", " ").split(",")]


class Caller:
    """Calls functions with arguments drawn at random, some of them from `given`: type -> pointers that are good."""

    def __init__(self, library, headers, given, rng):
        self.library, self.headers, self.given, self.rng = library, headers, given, rng
        self.kept, self.said = [], []

    def number(self, kind, edges):
        kind = "enum" if kind in self.headers.enums else kind
        drawn = 0 if kind == "enum" else 1
        if self.rng.random() < self.wrong:
            drawn = self.rng.choice(EDGES[kind] if edges and self.rng.random() < 0.6 else SMALL)
        return (NUMBERS.get(kind, ctypes.c_int32))(drawn)

    def buffer(self):
        self.kept.append(ctypes.create_string_buffer(BUFFER_BYTES))
        return ctypes.addressof(self.kept[-1])

    def pointer(self, kind, null):
        if self.rng.random() < null:
            return 0
        name = kind.rstrip("*")
        if kind == name + "*" and name in self.headers.handles:
            return self.rng.choice(self.given.get(name, [0]))
        if kind == name + "*" and name in self.headers.structs:
            return self.struct(name, null)
        if kind == "char*":
            self.kept.append(ctypes.create_string_buffer(self.rng.choice([b"", b"cpu", b"int4", b"{}", b"\xff\xfe", b"first,7", b"9:int2", b"a" * 5000])))
            return ctypes.addressof(self.kept[-1])
        address = self.buffer()
        if kind == "char**":
            ctypes.c_void_p.from_address(address).value = self.pointer("char*", 0)
        return address

    def struct(self, name, null):
        fields = self.headers.structs[name]
        kinds = [(field, NUMBERS.get(kind, ctypes.c_void_p if kind.endswith("*") or kind == "callback" else ctypes.c_int32)) for kind, field in fields]
        made = type(name, (ctypes.Structure,), {"_fields_": kinds})
        address = self.buffer()
        filled = made.from_address(address)
        for kind, field in fields:
            if kind.endswith("*"):
                setattr(filled, field, self.pointer(kind, max(null, 0.7 if field in OPTIONAL else 0)))
            elif kind != "callback":
                setattr(filled, field, self.number(kind, True).value)
        size = ctypes.sizeof(made)
        filled.struct_size = size
        if self.rng.random() < self.wrong / 4:
            filled.struct_size = self.rng.choice([0, 1, size - 1, size + 8, 4096, 4097, 2**64 - 1])
        self.said.append(f"{name}({', '.join(f'{field}={getattr(filled, field)}' for _, field in fields)})")
        return address

    def call(self, name):
        """The call's status. What it was told is in `said`, for who asks after a crash."""
        self.kept, self.said = [], []
        result, parameters = self.headers.functions[name]
        function = getattr(self.library, name)
        function.restype = ctypes.c_int if result.strip() in self.headers.enums else ctypes.c_int64
        # A device's call takes device memory; 32-bit sizes can be of memory that is there.
        null = 1 if any(field == "stream" for _, field in parameters) else self.rng.choice([0, 0, 0, 0, 0.1, 0.1, 0.4, 1])
        self.wrong = self.rng.choice([0, 0.05, 0.15, 0.5])  # how often a number is another than one that will do
        edges = null == 1 or not any(kind == "uint32_t" for kind, _ in parameters)
        arguments = [self.pointer(kind, null) if kind.endswith("*") else self.number(kind, edges) for kind, _ in parameters]
        arguments = [ctypes.c_void_p(each) if isinstance(each, int) else each for each in arguments]
        told = ", ".join(f"{field}={each.value}" for (_, field), each in zip(parameters, arguments))
        os.pwrite(2, f"{name}({told}) {' '.join(self.said)}".encode().ljust(4000)[:4000], 0)
        return function(*arguments)


class CAbi(cli.CliTest):
    def setUp(self):
        super().setUp()
        self.library = ctypes.CDLL(str(cli.shared_library()))
        self.headers = Headers()

    def in_child(self, name, work):
        """Runs `work` in a child. The last thing that it was told goes to a file, by the number of stderr."""
        told = self.dir / "told"
        child = os.fork()
        if child == 0:
            os.dup2(os.open(told, os.O_RDWR | os.O_CREAT | os.O_TRUNC), 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            if not cli.sanitized():
                resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            os.chdir(self.dir)
            os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a GPU takes more address space than there is here
            signal.alarm(SECONDS)
            try:
                os._exit(work())
            except BaseException as error:  # noqa: BLE001
                os.pwrite(2, f" {error!r}".encode(), 4000)
                os._exit(99)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        self.assertEqual(status, 0, f"{name}: {' '.join(told.read_text(errors='replace').split()) if told.exists() else ''}")

    def opened(self):
        """Good handles, made in the child, whose threads they need."""
        model, session, gru = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self.library.lb_model_open(str(self.hf).encode(), None, ctypes.byref(model))
        self.library.lb_session_open(model, ctypes.byref(session))
        seeds = sorted((cli.SOURCE / "tests/fuzz/corpus/lbgru").iterdir())
        for seed in seeds:
            if self.library.lb_gru_open(str(seed).encode(), None, ctypes.byref(gru)) == 0:
                break
        return {kind: [handle.value] for kind, handle in (("lb_model", model), ("lb_session", session), ("lb_gru", gru)) if handle.value}

    def test_every_function_is_declared_and_called(self):
        exported = re.findall(r" T (lb_\w+)", os.popen(f"nm -D --defined-only '{cli.shared_library()}'").read())
        self.assertEqual(sorted(exported), sorted(self.headers.functions))
        self.assertGreater(len(exported), 50)
        for name, fields in self.headers.structs.items():
            self.assertTrue(fields and fields[0][1] == "struct_size", name)

    def test_null_everywhere(self):
        for name, (result, parameters) in self.headers.functions.items():
            def work(name=name, result=result, parameters=parameters):
                function = getattr(self.library, name)
                function.restype = ctypes.c_int if result.strip() in self.headers.enums else ctypes.c_int64
                status = function(*[ctypes.c_void_p(0) if kind.endswith("*") else NUMBERS.get(kind, ctypes.c_int32)(0) for kind, _ in parameters])
                # With counts of zero a product has nothing to do; a handle or a struct must be there.
                needed = [kind for kind, _ in parameters if kind[:-1] in (self.headers.handles | set(self.headers.structs))]
                return int(bool(needed) and result.strip() == "lb_status" and status == 0)
            with self.subTest(name):
                self.in_child(name, work)

    def test_arguments_that_no_caller_should_give(self):
        closes = [name for name in self.headers.functions if name.endswith("_close")]
        for name in self.headers.functions:
            if name in closes:
                continue
            def work(name=name):
                caller = Caller(self.library, self.headers, self.opened(), random.Random(name))
                for _ in range(CALLS):
                    status = caller.call(name)
                    if self.headers.functions[name][0].strip() == "lb_status" and not 0 <= status < 9:
                        return 1
                return 0
            with self.subTest(name):
                self.in_child(name, work)


if __name__ == "__main__":
    sys.exit(unittest.main())
