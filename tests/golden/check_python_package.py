"""The Python package against lowbit: what it reads, and what lowbit reads of what it writes, bit for bit, in every
format and scaling.

    python check_python_package.py PATH_TO_lowbit_io_dump
"""

import json
import pathlib
import subprocess
import sys
import tempfile

try:
    import numpy as np
    import xxhash  # noqa: F401
except ImportError as missing:
    print(f"no package {missing.name}: pip install numpy xxhash")
    sys.exit(77)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
from lowbit import Checkpoint, LowbitError, write_checkpoint
from lowbit.formats import find_format, pack, unpack
from lowbit.safetensors_file import SafetensorsFile


def same_bits(a, b):
    return a.shape == b.shape and a.dtype == b.dtype and np.array_equal(a.view(np.uint32), b.view(np.uint32))


def check_values(checkpoint, expected_file):
    """Number of tensors whose values are what lowbit makes of them."""
    expected = SafetensorsFile(expected_file)
    bad = [n for n in expected.names if not same_bits(checkpoint.tensor(n), expected.array(n))]
    assert not bad, f"differ: {bad[:5]}"
    assert sorted(expected.names) == checkpoint.names
    return len(expected.names)


def check_trellises():
    """Any bytes are a row; codes off the trellis are refused with their place, at its beginning as in its middle."""
    rng = np.random.default_rng(1)
    for name in ("trellis2", "trellis3"):
        fmt = find_format(name, name)
        codes = unpack(fmt, rng.integers(0, 256, (3, fmt.row_bytes(50)), np.uint8), 50)
        assert np.array_equal(unpack(fmt, pack(fmt, codes), 50), codes), name
        offered = {tuple(unpack(fmt, np.array([[c]], np.uint8), 1)[0]) for c in range(2**fmt.trellis)}
        assert len(offered) == 2**fmt.trellis
        off = next(c for c in range(16) if (c,) not in offered)
        for code, column in ((off, 0), (16, 0), (255, 49)):
            wrong = codes.copy()
            wrong[1, column] = code
            try:
                pack(fmt, wrong)
            except LowbitError as error:
                assert f"code {code} at row 1, column {column}" in str(error) and name in str(error), error
            else:
                raise AssertionError(f"{name} took {code}")


def check_missing_names(checkpoint):
    """A name that is not there is a LowbitError that says so, whichever way it is asked for."""
    for ask in (checkpoint.weight, checkpoint.dense, checkpoint.tensor):
        try:
            ask("no.such.weight")
        except LowbitError as error:
            assert "no.such.weight" in str(error), error
        else:
            raise AssertionError(f"{ask.__name__} found no.such.weight")


def check_packings(checkpoint):
    """Packing what was unpacked gives the same bytes."""
    for name in checkpoint.layers:
        weight = checkpoint.weight(name)
        fmt = find_format(weight.spec.format, name)
        assert np.array_equal(pack(fmt, unpack(fmt, weight.codes, weight.shape[1])), weight.codes), name


def check_broken_files(path):
    """Values of a wrong kind, wherever they stand in config.json or a header, are a LowbitError."""

    def places(value):
        """Every (container, key) of a JSON document."""
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, inner in list(items):
            yield value, key
            yield from places(inner)

    def opens():
        try:
            opened = Checkpoint(path)
            opened.verify()
            for name in opened.names:
                opened.tensor(name)
        except LowbitError:
            pass

    config, weights = path / "config.json", path / "model.safetensors"
    text, raw = config.read_text(), weights.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    documents = {config: (lambda: json.loads(text)["quantization_config"],
                          lambda q: json.dumps(json.loads(text) | {"quantization_config": q}).encode()),
                 weights: (lambda: dict(list(json.loads(raw[8:8 + length]).items())[:6]),
                           lambda h: len(json.dumps(h)).to_bytes(8, "little") + json.dumps(h).encode() + raw[8 + length:])}
    for file, (read, write) in documents.items():
        whole = file.read_bytes()
        for i in range(len(list(places(read())))):
            for wrong in (None, -1, 1 << 70, "x", [], {}, [[]]):
                document = read()
                container, key = list(places(document))[i]
                container[key] = wrong
                file.write_bytes(write(document))
                opens()
        for document in ([], None, "x", 1):
            file.write_bytes(write(document))
            opens()
        file.write_bytes(whole)
    config.write_text("[" * 100000)
    opens()
    config.write_text(text)
    assert Checkpoint(path).verify() == []


def check_refusals(out, tensors, checkpoint):
    """Nothing that is not a checkpoint is replaced, no part of a wrong shape written, no flipped bit overlooked."""

    def refused(target, changed=tensors, **options):
        try:
            write_checkpoint(target, checkpoint.config, changed, fit={}, **options)
        except LowbitError as error:
            return str(error)
        raise AssertionError(f"{target} was written")

    precious = pathlib.Path(out) / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("years of work")
    assert "precious" in refused(precious, overwrite=True)
    assert (precious / "thesis.txt").read_text() == "years of work"
    assert "already there" in refused(out + "/again")
    name, weight = next(iter((n, checkpoint.weight(n)) for n in checkpoint.layers))
    import dataclasses
    assert name in refused(out + "/bad", {name: dataclasses.replace(weight, codes=weight.codes[:, :-1])})
    assert not list(pathlib.Path(out).glob(".tmp-*")), "left something behind"
    file = pathlib.Path(out) / "again/model.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    assert len(Checkpoint(out + "/again").verify()) == 1


def main():
    dump = sys.argv[1]
    with tempfile.TemporaryDirectory() as out:
        subprocess.run([dump, out], check=True)
        checkpoint = Checkpoint(out + "/checkpoint")
        assert not checkpoint.verify()
        count = check_values(checkpoint, out + "/expected.safetensors")
        check_missing_names(checkpoint)
        check_packings(checkpoint)
        check_trellises()
        tensors = {n: checkpoint.weight(n) if n in checkpoint.layers else checkpoint.dense(n) for n in checkpoint.names}
        write_checkpoint(out + "/again", checkpoint.config, tensors, fit=checkpoint.fit, quality=checkpoint.quality)
        again = Checkpoint(out + "/again")
        assert not again.verify()
        written, read = again.config["quantization_config"], checkpoint.config["quantization_config"]
        for key in ("lowbit_version", "generation"):
            del written[key], read[key]
        assert again.config == checkpoint.config, "config.json differs from what lowbit writes"
        subprocess.run([dump, out + "/of-again", out + "/again"], check=True)
        check_values(again, out + "/of-again/expected.safetensors")
        assert check_values(checkpoint, out + "/of-again/expected.safetensors") == count
        check_refusals(out, tensors, checkpoint)
        write_checkpoint(out + "/small", checkpoint.config, dict(list(tensors.items())[:3]), fit={})
        check_broken_files(pathlib.Path(out) / "small")
    print(f"{count} weights equal bit for bit, read and written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
