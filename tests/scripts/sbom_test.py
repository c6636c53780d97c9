"""scripts/make_sbom.py on the build: sbom_test.py BUILD. Exit 77 where there is no Debian."""
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main(build: Path) -> int:
    if shutil.which("dpkg-query") is None or shutil.which("ninja") is None:
        print("no dpkg or no ninja: the list of packages comes from them")
        return 77
    texts = [subprocess.run([sys.executable, ROOT / "scripts/make_sbom.py", build], capture_output=True, text=True, check=True).stdout
             for _ in range(2)]
    assert texts[0] == texts[1], "two runs differ"
    bom = json.loads(texts[0])
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.5")
    assert re.fullmatch(r"urn:uuid:[0-9a-f-]{36}", bom["serialNumber"])
    refs = [c["bom-ref"] for c in bom["components"]]
    assert len(refs) == len(set(refs)), "a component twice"
    names = {c["name"]: c for c in bom["components"]}
    for name in ("libpcre2-8-0", "libutf8proc2", "libstdc++6", "libc6", "libfmt-dev", "libexpected-dev", "nlohmann-json3-dev", "numpy"):
        assert name in names and names[name]["version"], f"{name} is missing: {sorted(names)}"
    assert all(c["purl"].startswith("pkg:") and c["version"] in c["purl"] for c in bom["components"])
    assert all(h["content"] for c in bom["components"] if c["purl"].startswith("pkg:pypi") for h in c["hashes"])
    files = {f["name"] for f in bom["metadata"]["component"]["components"]}
    assert files <= {"lowbit", "liblowbit.so"} and files, files
    print(f"sbom: {len(refs)} components")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
