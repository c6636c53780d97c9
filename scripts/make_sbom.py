#!/usr/bin/env python3
"""The software bill of materials of a build as CycloneDX 1.5: make_sbom.py BUILD [-o FILE]

Components are the Debian packages whose headers were compiled in or whose libraries are linked, with their versions, as
the build's own records say (ninja's list of headers, the programs' lists of libraries), and the Python packages that
the tests pin. The same build gives the same file.
"""
import argparse
import hashlib
import json
import re
import subprocess
import sys
import uuid
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False, env={"LC_ALL": "C", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}).stdout


def built_files(build: Path) -> list[Path]:
    return [path for path in (build / "bin/lowbit", *sorted((build / "lib").glob("liblowbit.so"))) if path.exists()]


def files_used(build: Path, built: list[Path]) -> dict[str, str]:
    """Path -> "compiled" or "linked"."""
    objects = re.compile(r"^(\S+): #deps", re.M)
    used = {}
    for block in output("ninja", "-C", str(build), "-t", "deps").split("\n\n"):
        name = objects.search(block)
        if name and "_test" not in name.group(1) and name.group(1).startswith(("src/", "tools/")):
            used.update((line.strip(), "compiled") for line in block.splitlines()[1:] if line.strip().startswith("/usr/"))
    for path in built:
        used.update((found, "linked") for found in re.findall(r"=> (/\S+)", output("ldd", str(path))))
    return used


def debian_packages(used: dict[str, str]) -> dict[str, str]:
    """Package -> how it is used; linked counts more."""
    packages: dict[str, str] = {}
    # A library's path may be one that a merged /usr has under another name.
    names = {name: how for path, how in used.items() for name in {path, str(Path(path).resolve()), path.removeprefix("/usr")}}
    for line in output("dpkg", "-S", *names).splitlines():
        owners, _, path = line.rpartition(": ")
        for owner in owners.split(", "):
            if names.get(path) == "linked" or owner not in packages:
                packages[owner] = names.get(path, "compiled")
    return packages


def debian_component(package: str, how: str) -> dict:
    version, source, architecture, name = output("dpkg-query", "-W", "-f=${Version}\t${source:Package}\t${Architecture}\t${binary:Package}",
                                                 package).split("\t")
    name = name.split(":")[0]
    return {"type": "library", "name": name, "version": version, "purl": f"pkg:deb/debian/{name}@{version}?arch={architecture}",
            "bom-ref": f"deb:{name}", "scope": "required",
            "properties": [{"name": "lowbit:use", "value": how}, {"name": "lowbit:source-package", "value": source}]}


def python_components() -> list[dict]:
    """Of the tests: pinned names and the hashes that pip will take."""
    components = []
    text = (ROOT / "tests/requirements.txt").read_text().replace("\\\n", " ")
    for name, version, rest in re.findall(r"^([\w.-]+)==(\S+)(.*)$", text, re.M):
        hashes = [{"alg": "SHA-256", "content": digest} for digest in re.findall(r"sha256:(\w+)", rest)]
        components.append({"type": "library", "name": name, "version": version, "purl": f"pkg:pypi/{name}@{version}", "bom-ref": f"pypi:{name}@{version}",
                           "scope": "excluded", "hashes": hashes, "properties": [{"name": "lowbit:use", "value": "tests"}]})
    return components


def make(build: Path) -> dict:
    version = re.search(r"project\(lowbit VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
    built = built_files(build)
    if not built:
        sys.exit(f"{build}: no bin/lowbit and no lib/liblowbit.so: build it first")
    packages = debian_packages(files_used(build, built))
    components = [debian_component(name, how) for name, how in sorted(packages.items())] + python_components()
    files = [{"type": "file", "name": path.name, "bom-ref": f"file:{path.name}",
              "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(path.read_bytes()).hexdigest()}]} for path in built]
    product = {"type": "application", "name": "lowbit", "version": version, "bom-ref": "lowbit", "licenses": [{"license": {"id": "Apache-2.0"}}],
               "components": files}
    required = [c["bom-ref"] for c in components if c["scope"] == "required"]
    document = {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "metadata": {"component": product}, "components": components,
                "dependencies": [{"ref": "lowbit", "dependsOn": required}]}
    return document | {"serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(document, sort_keys=True))}"}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("-o", "--out", type=Path)
    options = parser.parse_args()
    text = json.dumps(make(options.build), indent=1, sort_keys=True) + "\n"
    if options.out:
        options.out.write_text(text)
    else:
        sys.stdout.write(text)
