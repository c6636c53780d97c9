#!/usr/bin/env python3
"""House rules that no compiler checks. Prints each violation and exits 1 when there is one.

1. Includes go down: a folder includes only folders of a lower level (the table below is ARCHITECTURE.md's), folders of
   one level do not see each other, kernels/* subfolders see the headers of kernels/ (not its registry), base, tensor
   and format only, and tools/, python/ and examples/ use include/lowbit alone.
2. Public headers include only std, tl/expected and each other.
3. Text that names a file of this repository names one that exists.
4. Source files and README.md stay short.
5. docs/adr/README.md lists every decision with its status, no number stands twice, and whoever names a decision names
   one that exists.
6. C++, Python and Rust have one version.
7. No file has marks of an unfinished merge.
8. Comments end at column 120 and name what they speak of, benchmarks of kernels stand in bench/, and retired words stay
   away.
"""
import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Level of each folder of src/. Subfolders of kernels/ and backend/ are folders of their own.
LEVELS = {
    "base": 0, "tensor": 1, "format": 2, "text": 3, "quantize": 3, "io": 3,
    "kernels/ref": 3, "kernels/cpu": 3, "kernels/cuda": 3, "kernels/cuda_stub": 3, "kernels": 3.5, "arch": 3.5,
    "ops": 4, "backend": 4.5, "backend/ref": 4.6, "backend/cpu": 4.6, "backend/cuda": 4.6, "model": 5, "gru": 5, "runtime": 5.5, "calibrate": 5.7, "evaluate": 5.8, "pipeline": 6, "capi": 7,
}
KERNEL_PARTS_MAY_SEE = {"base", "tensor", "format"}
MAX_LINES, MAX_MEDIAN = 450, 93
WIDTH = 120
# Words that the field has better ones for, by the beginning of a path; "" is the whole tree. They may not come back, in
# code or comments. Strings are free (JSON keys, old options, names of kernels in results), and what ALLOWED says of a
# path, where the word is the field's own.
RETIRED = {
    "": r"[Mm]oments_\w+|\w+_moments|AddMoments|second moments|HELD_BACK|[Hh]eld_?back\w*|held back|[Mm]igrat(e|es|ed|ion)\w*|[Ww]oven\w*|[Ll]aps|"
        r"[Ff]old(s|ed|ing|_\w+)?|kFold(s|ing)?|Folding|kUnitBytes|unit_(bytes|elems|row)\w*|UnitFormatList|[Ss]ettles?|[Ss]ettled|"
        r"OneRow\w*|few_rows\w*|Few(Rows|Bits|Int2)\w*|[Ss]egments? of x|[Mm]ust_?align|kPlaces|\w*Places",
    "src/": r"[Uu]nits?|kUnits?\w*|\w+_units?|[Aa]im(s|ed)?|[Dd]eviation|\w*one_row\w*|[Ww]alks?|walk_\w+",
    "src/kernels/": r"[Rr]ings?|[Ss]egments?|kSegment\w*|\w*Segments|rows? of x|[Pp]laces",
    "src/kernels/cuda/gemm/": r"[Ss]egments?\w*|[Ss]lices?|Slice\w+|Deep\w*|deep_\w+|few_\w+|Few\w+|Places?",
    **dict.fromkeys(("src/kernels/cpu/integer_", "src/kernels/cpu/float_", "src/kernels/cpu/panel", "src/kernels/cpu/tile_", "src/kernels/ref/matmul"),
                    r"\w*Levels|levels|load_levels|Walk"),
    "src/kernels/cpu/gru_": r"[Ww]eaves?|may_weave",
    **dict.fromkeys(("src/kernels/api.h", "src/ops/matmul", "src/ops/activation_rows"), r"[Ss]egments?|segment_of|levels_?"),
    **dict.fromkeys(("src/backend/", "src/calibrate/", "src/pipeline/quantizer", "src/quantize/feedback"), r"[Mm]oments|\w*Moment\w*"),
    "src/quantize/": r"\w*Way|\w+_ways",
    "src/calibrate/": r"\w*[Ww]indows",
    "src/evaluate/": r"\w*[Ww]indows?\w*",
    "src/pipeline/quantizer": r"ends_",
    "python/lowbit/": r"\bunit\b",
    "python/lowbit/recover/": r"[Ww]indows?|settle\w*|exchange\w*",
}
ALLOWED = {
    "src/base/": r"translation units?",
    "src/gru/": r"[Uu]nits?|[Ss]egments?|[Dd]eviation|[Ff]old(ed|_product)?",
    "src/kernels/": r"matrix units?|translation units?|integer units?|segments_\w+",
    **dict.fromkeys(("src/kernels/cuda/gru/", "src/kernels/cpu/gru_", "src/kernels/cpu/avx512/gru_", "src/kernels/cuda_gru_api.h", "src/kernels/gru_api.h",
                     "src/kernels/ref/gru"), r"\w*[Uu]nits?|kUnits|[Ss]egments?|rows? of x|[Pp]laces"),
    "src/kernels/cpu/float_matmul.h": r"rows? of x",
    "src/kernels/cpu/fp8.h": r"[Pp]laces",
    "src/model/random_model.cc": r"[Dd]eviation",
    "src/quantize/": r"(in|own|block|any) units?|in_units|unit_scale|find_unit_scale|[Dd]eviation",
    "src/runtime/sampler": r"ring",
    "src/text/jinja": r"fold\w*",
    "tests/golden/": r".*",
}
RIDDLE = re.compile(r"^\s*//[/!]?<? ?(What|The same|Those)\b")  # a comment that begins so says nothing to a stranger
README_LINES = 200
MOST_BYTES = 1 << 20  # of a file; packages and models are fetched
SOURCE_SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^">]+)[">]', re.M)
FILE_NAME = re.compile(r"`([\w.-]+(?:/[\w.*-]+)+/?|[\w-]+\.(?:md|sh|py|cc|h|cu|txt|json|cmake))`")


def tracked() -> list[Path]:
    out = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [Path(line) for line in out.stdout.splitlines() if (ROOT / line).is_file()]


def folder_of(path: Path) -> str | None:
    """The architectural folder of a file under src/, or of an include such as "kernels/ref/x.h"."""
    parts = path.parts[1:] if path.parts[0] == "src" else path.parts
    if len(parts) >= 3 and f"{parts[0]}/{parts[1]}" in LEVELS:
        return f"{parts[0]}/{parts[1]}"
    return parts[0] if parts[0] in LEVELS else None


def check_source_include(path: Path, target: str) -> str | None:
    here, there = folder_of(path), folder_of(Path(target))
    if there is None:
        return None if target.startswith("lowbit/") or (ROOT / path.parent / target).is_file() else f"unknown include {target}"
    if here == there:
        return None
    is_test = path.stem.endswith("_test")
    if here.startswith("kernels/") and not is_test:
        shared = there == "kernels" and target != "kernels/registry.h"  # api.h and its like: declarations, no kernels
        if shared or there in KERNEL_PARTS_MAY_SEE:
            return None
        return f"{here} may see kernels/*.h, {', '.join(sorted(KERNEL_PARTS_MAY_SEE))} only, not {target}"
    if LEVELS[there] < LEVELS[here]:
        return None
    return f"upward or sideways include: {here} -> {there} ({target})"


def check_includes(files: list[Path]) -> list[str]:
    problems, edges = [], set()
    for path in files:
        if path.suffix not in SOURCE_SUFFIXES:
            continue
        for bracket, target in INCLUDE.findall((ROOT / path).read_text()):
            problem = None
            if path.parts[0] == "src" and bracket == '"':
                problem = check_source_include(path, target)
                here, there = folder_of(path), folder_of(Path(target))
                if there and here != there:
                    edges.add((here, there))
            elif path.parts[:2] == ("include", "lowbit"):
                if bracket == '"' and not target.startswith("lowbit/"):
                    problem = f"a public header includes {target}"
                if bracket == "<" and "/" in target and not target.startswith("tl/"):
                    problem = f"a public header includes <{target}>"
            elif path.parts[0] in ("tools", "python", "examples") and bracket == '"':
                if not target.startswith("lowbit/") and not (ROOT / path.parent / target).is_file():
                    problem = f"{path.parts[0]}/ may use include/lowbit only, not {target}"
            if problem:
                problems.append(f"{path}: {problem}")
    mutual = sorted((a, b) for a, b in edges if a < b and (b, a) in edges)
    problems += [f"folders include each other: {a} <-> {b}" for a, b in mutual]
    print(f"includes: {len(edges)} folder edges, {len(mutual)} mutual pairs")
    return problems


def check_docs(files: list[Path]) -> list[str]:
    names = {str(p) for p in files} | {str(d) for p in files for d in p.parents}
    basenames = {p.name for p in files}
    problems = []
    for path in files:
        if path.suffix != ".md":
            continue
        for name in FILE_NAME.findall((ROOT / path).read_text()):
            if name.startswith(("build/", "P.", "tests/golden/*")) or "*" in name or name in OUTSIDE:
                continue
            clean = name.rstrip("/")
            known = clean in names or (path.parent / clean).as_posix() in names or f"src/{clean}" in names
            if not known and "/" not in clean and clean in basenames:
                known = True
            if not known and ("." in Path(clean).name or clean.split("/")[0] in TOP_FOLDERS):
                problems.append(f"{path}: names {name}, which does not exist")
    return problems


# Files of other projects or of users that the docs speak of.
OUTSIDE = {
    "config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json",
    "generation_config.json", "report.json", "net.lbgru", "recipe.txt", "wiki.test.raw", "greedy-200.txt", "tokenizer.model", "tl/expected.hpp",
}
TOP_FOLDERS = {"src", "include", "tools", "tests", "docs", "scripts", "bench", "examples", "cmake"}


def check_lengths(files: list[Path]) -> list[str]:
    problems, lengths = [], []
    for path in files:
        if path.suffix in SOURCE_SUFFIXES | {".py"}:
            n = len((ROOT / path).read_text().splitlines())
            lengths.append(n)
            if n > MAX_LINES:
                problems.append(f"{path}: {n} lines, at most {MAX_LINES}")
    problems += [f"{path}: over {MOST_BYTES} bytes" for path in files if (ROOT / path).stat().st_size > MOST_BYTES]
    lines = len((ROOT / "README.md").read_text().splitlines())
    if lines > README_LINES:
        problems.append(f"README.md: {lines} lines, at most {README_LINES}")
    lengths.sort()
    if lengths and lengths[len(lengths) // 2] > MAX_MEDIAN:
        problems.append(f"files: a median of {lengths[len(lengths) // 2]} lines, at most {MAX_MEDIAN}")
    long_share = sum(n > 400 for n in lengths) / max(len(lengths), 1)
    print(f"files: {len(lengths)} sources, median {lengths[len(lengths) // 2]} lines, {100 * long_share:.0f} % over 400")
    return problems


STRING = re.compile(r'"(?:\\.|[^"\\\n])*"')


def words_of(table: dict[str, str], name: str) -> re.Pattern | None:
    found = [words for beginning, words in table.items() if name.startswith(beginning)]
    return re.compile(rf"\b({'|'.join(found)})\b") if found else None


def docstring_lines(text: str) -> set[int]:
    bodies = [node.body for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))]
    first = [body[0] for body in bodies if body and isinstance(body[0], ast.Expr)]
    return {n for e in first if isinstance(e.value, ast.Constant) for n in range(e.lineno, e.end_lineno + 1)}


def check_widths(files: list[Path]) -> list[str]:
    """Comments of all languages, and Python's docstrings."""
    problems = []
    for path in files:
        slashes = path.suffix in SOURCE_SUFFIXES | {".c", ".rs"}
        if not slashes and path.suffix not in {".py", ".sh", ".cmake", ".in"} and path.name not in ("CMakeLists.txt", "run", ".clang-tidy") and path.parent.name != "recipes":
            continue
        text = (ROOT / path).read_text()
        docs = docstring_lines(text) if path.suffix == ".py" else set()
        mark = re.compile(r"//|/\*|^\s*\*\s" if slashes else r"(^|\s)#(\s|$)")
        for number, line in enumerate(text.splitlines(), 1):
            if len(line) > WIDTH and (number in docs or mark.search(STRING.sub("", line))):
                problems.append(f"{path}:{number}: a comment to column {len(line)}, at most {WIDTH}")
    return problems


def check_words(files: list[Path]) -> list[str]:
    """Retired words in code and comments."""
    problems = []
    for path in files:
        name = path.as_posix()
        if path.suffix not in SOURCE_SUFFIXES | {".py"}:
            continue
        if name.startswith("src/kernels/") and re.search(r"_(bench|check)\.(cc|cu)$", path.name):
            problems.append(f"{path}: a benchmark or check program; src/kernels/ is for the library, bench/ and tests/ for those")
        word = words_of(RETIRED, name)
        allowed = words_of(ALLOWED, name)
        for number, line in enumerate((ROOT / path).read_text().splitlines(), 1):
            if RIDDLE.match(line):
                problems.append(f"{path}:{number}: a comment that begins with '{RIDDLE.match(line)[1]}': name the thing itself")
            text = STRING.sub("", line)
            text = allowed.sub("", text) if allowed else text
            if not line.lstrip().startswith("#include") and (found := word.search(text)):
                problems.append(f"{path}:{number}: '{found[0]}', a retired word: CONTRIBUTING.md")
    return problems


ADR = Path("docs/adr")
STATUS = re.compile(r"\A# \d{4}: .+\n\nStatus: ((?:accepted|rejected|superseded by \d{4})\b.*)\.\n")
ADR_PATH = re.compile(r"docs/adr/(\d{4}[\w.-]*)")
ADR_NUMBER = re.compile(r"(?:\bADR |\bdecision )(\d{4})\b")
BARE_NUMBER = re.compile(r"(?<![\w.,/\[-])(0[01]\d\d)(?![\w.,/%\]-]*\d)")


def check_decisions(files: list[Path]) -> list[str]:
    """The list of docs/adr/README.md against its pages: rows are "| [0001](page) | title | status |", numbers of trials
    "| 0011 | title | [page](...) |"."""
    pages = {p.name: (ROOT / p).read_text() for p in files if p.parent == ADR and p.name != "README.md"}
    index = (ROOT / ADR / "README.md").read_text()
    listed = {name: status for name, status in re.findall(r"^\| \[\d{4}\]\((\d{4}-[\w-]+\.md)\) \|.*\| (.+) \|$", index, re.M)}
    trials = dict(re.findall(r"^\| (\d{4}) \|.*\(\.\./lab/([\w-]+)\.md\) \|$", index, re.M))
    numbers = [name[:4] for name in pages] + list(trials)
    problems = [f"docs/adr/README.md: {name} is not listed" for name in pages if name not in listed]
    problems += [f"docs/adr/README.md: lists {name}, which does not exist" for name in listed if name not in pages]
    problems += [f"docs/adr: number {n} stands twice" for n in sorted({n for n in numbers if numbers.count(n) > 1})]
    for name, text in pages.items():
        status = STATUS.match(text)
        if not status:
            problems.append(f"docs/adr/{name}: no status; below the title: Status: accepted | rejected | superseded by N, and a full stop")
        elif listed.get(name, status[1]) != status[1]:
            problems.append(f"docs/adr/README.md: {name} is \"{listed[name]}\", on its page \"{status[1]}\"")
        for after in re.findall(r"superseded by (\d{4})", status[1] if status else ""):
            if not any(other.startswith(after) for other in pages):
                problems.append(f"docs/adr/{name}: superseded by {after}, which does not exist")
    for number, page in trials.items():
        path = ROOT / f"docs/lab/{page}.md"
        if not path.is_file() or f"\n### {number}: " not in path.read_text():
            problems.append(f"docs/adr/README.md: trial {number} has no heading in docs/lab/{page}.md")
    return problems + check_references(files, set(pages), trials)


def check_references(files: list[Path], pages: set[str], trials: dict[str, str]) -> list[str]:
    """Every text: marks of a merge, and names of decisions: by path, as "ADR 0006", and in docs/adr and docs/lab by the
    number alone."""
    decisions, problems = {name[:4] for name in pages}, []
    for path in files:
        if path == Path("scripts/check_house.py") or path.suffix in (".npy", ".png", ".gz", ".gguf", ".bin"):
            continue
        try:
            text = (ROOT / path).read_text()
        except UnicodeDecodeError:
            continue
        problems += [f"{path}: '{mark}': an unfinished merge" for mark in re.findall(r"^(?:<{7}|>{7}) ", text, re.M)]
        for name in ADR_PATH.findall(text):
            if name.rstrip(".") not in pages:
                problems.append(f"{path}: names docs/adr/{name}, which does not exist" + moved(name[:4], trials))
        for number in ADR_NUMBER.findall(text):
            if number not in decisions:
                problems.append(f"{path}: names decision {number}, which does not exist" + moved(number, trials))
        if path.parent in (ADR, Path("docs/lab")):
            known = decisions | set(trials)
            problems += [f"{path}: {n} is neither a decision nor a trial" for n in sorted(set(BARE_NUMBER.findall(text)) - known)]
    return problems


def moved(number: str, trials: dict[str, str]) -> str:
    return f": it is in docs/lab/{trials[number]}.md" if number in trials else ""


VERSIONS = {"CMakeLists.txt": r"^project\(lowbit VERSION ([\d.]+)", "python/lowbit/__init__.py": r'^__version__ = "([\d.]+)"',
            "bindings/rust/Cargo.toml": r'^version = "([\d.]+)"'}


def check_versions() -> list[str]:
    found = {name: re.findall(pattern, (ROOT / name).read_text(), re.M) for name, pattern in VERSIONS.items()}
    wanted = found["CMakeLists.txt"]
    return [f"{name}: version {got}, wanted {wanted} as in CMakeLists.txt" for name, got in found.items() if got != wanted or len(got) != 1]


def main() -> int:
    files = tracked()
    problems = check_includes(files) + check_docs(files) + check_lengths(files) + check_widths(files) + check_words(files)
    problems += check_decisions(files) + check_versions()
    for problem in problems:
        print(f"house: {problem}", file=sys.stderr)
    print(f"house: {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
