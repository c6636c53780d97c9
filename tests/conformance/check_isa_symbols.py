#!/usr/bin/env python3
"""usage: check_isa_symbols.py ISA LIBRARY.a

Fails when the library of an instruction set defines a weak (inline or template) symbol outside `inline namespace ISA`:
the linker may keep that copy for baseline code, which would then crash on a CPU without the instructions.
"""
import subprocess
import sys


def weak_symbols(library):
    out = subprocess.run(["nm", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    for line in out.splitlines():
        fields = line.split()
        if len(fields) == 3 and fields[1] in "WwVvu":
            yield fields[2]


def main():
    isa, library = sys.argv[1:]
    inside = f"{len(isa)}{isa}"  # how Itanium mangling spells the namespace
    weak = sorted(set(weak_symbols(library)))
    # DW.ref.* are pointers for stack unwinding: data, no instructions.
    bad = [s for s in weak if inside not in s and not s.startswith("DW.ref.")]
    for symbol in bad:
        name = subprocess.run(["c++filt", symbol], capture_output=True, text=True).stdout.strip()
        print(f"{library}: weak symbol outside {isa}: {name or symbol}")
    if not weak:
        print(f"{library}: no weak symbol at all; is this the right library?")
        return 1
    print(f"{library}: {len(weak)} weak symbols, {len(bad)} outside the namespace {isa}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
