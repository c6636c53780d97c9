#!/usr/bin/env python3
"""Applies the code blocks of a recipe (docs/adding-a-*.md) to a copy of the sources, builds the copy and runs the
recipe's test.

A block takes part when an HTML comment stands right before its fence:

    <!-- apply: FILE after "ANCHOR" -->      the block's lines go behind the line that ends the anchor
    <!-- apply: FILE before "ANCHOR" -->     ... before the line that begins it
    <!-- apply: FILE replace "ANCHOR" -->    the block takes the anchor's place
    <!-- create: FILE -->                    the block is a new file

An anchor must occur exactly once; white space in it matches any white space, so that re-formatting does not break a
recipe. `<!-- touches: FILE FILE -->` states which existing files the recipe changes; anything else is an error.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

LEFT_OUT = {".git", "build", "shared", "__pycache__", ".cache", ".venv"}
COMMENT = re.compile(r"^<!-- (apply|create|touches): (.*?) -->\s*$")
APPLY = re.compile(r'^(\S+) (after|before|replace) "(.*)"$')


class RecipeError(Exception):
    pass


def source_files(root: Path) -> list[str]:
    """Tracked and new files of a checkout; of a plain copy, everything that is not a build product."""
    if (root / ".git").exists():
        command = ["git", "-c", f"safe.directory={root}", "ls-files", "-co", "--exclude-standard"]
        out = subprocess.run(command, cwd=root, capture_output=True, text=True)
        if out.returncode == 0:
            return [name for name in out.stdout.splitlines() if (root / name).is_file()]
    files = []
    for folder, folders, names in os.walk(root):
        folders[:] = [f for f in folders if f not in LEFT_OUT]
        files += [(Path(folder) / name).relative_to(root).as_posix() for name in names]
    return files


def read_recipe(page: Path) -> tuple[list, list[str]]:
    """The blocks as (kind, what the comment says, text), and the files that the page says it touches."""
    blocks, touched, pending = [], [], None
    lines = page.read_text().splitlines()
    i = 0
    while i < len(lines):
        comment = COMMENT.match(lines[i])
        if comment and comment[1] == "touches":
            touched += comment[2].split()
        elif comment:
            pending = (comment[1], comment[2], i + 1)
        elif lines[i].startswith("```"):
            end = next((j for j in range(i + 1, len(lines)) if lines[j].startswith("```")), None)
            if end is None:
                raise RecipeError(f"{page.name}:{i + 1}: a code block without an end")
            if pending:
                blocks.append((pending[0], pending[1], "\n".join(lines[i + 1:end]) + "\n"))
                pending = None
            i = end
        elif lines[i].strip() and pending:
            raise RecipeError(f"{page.name}:{pending[2]}: got '{lines[i]}', wanted a code block right after the comment")
        i += 1
    if pending:
        raise RecipeError(f"{page.name}:{pending[2]}: got the end of the page, wanted a code block")
    return blocks, touched


def apply_block(text: str, where: str, mode: str, anchor: str, block: str) -> str:
    pattern = r"\s+".join(re.escape(word) for word in anchor.split())
    found = list(re.finditer(pattern, text))
    if len(found) != 1:
        raise RecipeError(f'{where}: got {len(found)} places with "{anchor}", wanted 1. hint: the code has changed; change the recipe too')
    begin, end = found[0].span()
    if mode == "replace":
        return text[:begin] + block.rstrip("\n") + text[end:]
    if mode == "before":
        at = text.rfind("\n", 0, begin) + 1
    else:
        at = text.find("\n", end) + 1 or len(text)
    return text[:at] + block + text[at:]


def apply_recipe(root: Path, page: Path) -> dict[str, str]:
    """New contents by file name."""
    blocks, touched = read_recipe(page)
    changed: dict[str, str] = {}
    existing = set()
    for kind, what, block in blocks:
        if kind == "create":
            if (root / what).exists():
                raise RecipeError(f"{page.name}: creates {what}, which exists")
            changed[what] = block
            continue
        match = APPLY.match(what)
        if not match:
            raise RecipeError(f"{page.name}: got 'apply: {what}', wanted FILE after|before|replace \"ANCHOR\"")
        name, mode, anchor = match.groups()
        if name not in changed and not (root / name).is_file():
            raise RecipeError(f"{page.name}: changes {name}, which does not exist")
        existing.add(name)
        text = changed[name] if name in changed else (root / name).read_text()
        changed[name] = apply_block(text, f"{page.name}: {name}", mode, anchor, block)
    if touched and existing != set(touched):
        raise RecipeError(f"{page.name}: got changes of {sorted(existing)}, wanted {sorted(touched)}")
    return changed


def without_panel_kernels(text: str) -> str | None:
    """A vector table that offers no matmul kernels: those cost most of a build and no recipe needs them."""
    # a list of its own
    text = re.sub(r"inline namespace LOWBIT_ISA \{.*?\}  // namespace LOWBIT_ISA\n", "", text, flags=re.S)
    lists_of = r"kPanelKernels<Simd>,\s*kPanelKernelCount<Simd>|kKernels\.data\(\),\s*int\(kKernels\.size\(\)\)"
    text, lists = re.subn(lists_of, "nullptr, 0", text)
    text, includes = re.subn(r'#include "kernels/cpu/(\w+/simd|matmul_list)\.h"\n', "", text)
    return text if lists == 1 and includes else None


def write_copy(root: Path, copy: Path, changed: dict[str, str]) -> None:
    """Only files whose contents differ are written, so that the build stays incremental."""
    wanted = {name: (root / name).read_bytes() for name in source_files(root)}
    for name in ("src/kernels/cpu/avx2/matmul.cc", "src/kernels/cpu/avx512/matmul.cc"):
        lighter = without_panel_kernels(wanted[name].decode()) if name in wanted else None
        if lighter is None:
            print(f"recipe: {name} stays as it is; the build takes longer")
        else:
            wanted[name] = lighter.encode()
    wanted.update({name: text.encode() for name, text in changed.items()})
    for name, data in wanted.items():
        target = copy / name
        if target.is_file() and target.read_bytes() == data:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    for path in [p for p in copy.rglob("*") if p.is_file() and p.relative_to(copy).as_posix() not in wanted]:
        path.unlink()


def build_and_run(work: Path, name: str, folders: str, options: argparse.Namespace) -> int:
    # The cache then knows an unchanged file again, whichever recipe or clone compiles it.
    env = dict(os.environ, CCACHE_BASEDIR=str(work), CCACHE_NOHASHDIR="1")
    configure = ["cmake", "-S", str(work / "src"), "-B", str(work / "build"), "-G", options.generator, "-DCMAKE_BUILD_TYPE=Debug",
                 "-DCMAKE_CXX_FLAGS_DEBUG=-O0", "-DLOWBIT_WERROR=ON", "-DLOWBIT_TESTS=ON", "-DLOWBIT_BENCH=OFF",
                 f"-DLOWBIT_ONLY={folders}", f"-DLOWBIT_RECIPE={name}",
                 f"-DCMAKE_PROJECT_lowbit_INCLUDE={work / 'src/tests/recipes/recipe.cmake'}"]
    if options.compiler:
        configure.append(f"-DCMAKE_CXX_COMPILER={options.compiler}")
    target = f"recipe_{name}_test"
    for command in (configure, ["cmake", "--build", str(work / "build"), "--target", target, "-j", str(options.jobs)]):
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            print(done.stdout[-8000:])
            print(f"recipe: the step '{' '.join(command[:2])}' failed")
            return 1
    return subprocess.run([str(work / "build" / "bin" / target)], env=env).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="format, kernel, model, step or backend: docs/adding-a-NAME.md and tests/recipes/NAME_test.cc")
    parser.add_argument("--source", type=Path, default=Path(__file__).resolve().parents[2], help="the checkout")
    parser.add_argument("--build", type=Path, required=True, help="works in BUILD/recipes/NAME")
    parser.add_argument("--folders", required=True, help="LOWBIT_ONLY of the copy")
    parser.add_argument("--generator", default="Ninja")
    parser.add_argument("--compiler", default="")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--fresh", action="store_true", help="forget earlier builds")
    options = parser.parse_args()
    work = options.build.resolve() / "recipes" / options.name
    if options.fresh:
        shutil.rmtree(work, ignore_errors=True)
    try:
        changed = apply_recipe(options.source.resolve(), options.source.resolve() / "docs" / f"adding-a-{options.name}.md")
    except RecipeError as error:
        print(f"error: {error}")
        return 1
    write_copy(options.source.resolve(), work / "src", changed)
    return build_and_run(work, options.name, options.folders, options)


if __name__ == "__main__":
    sys.exit(main())
