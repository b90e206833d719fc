"""Lets a CUDA build of torch run on a machine without CUDA's libraries: `python cuda_stubs.py`, after torch.

The package index holds torch for Linux only as a CUDA build. On a CPU it calls none of CUDA's libraries, but the
dynamic linker wants every one of them, 3 GB, before the first line runs. For each library that is missing this makes
one of a few KB with the symbols torch's own libraries want from it; calling one ends the process. The CUDA runtime
itself should be the real one: torch asks it how many devices there are. Needs gcc, nm and readelf.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tempfile
from collections import defaultdict
from pathlib import Path

SITE = Path(sysconfig.get_path("purelib"))


def output(*command: str | Path) -> str:
    """What the command prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603  # fixed tools, own arguments


def is_cuda(soname: str) -> bool:
    """Whether torch's wheel takes this library from another distribution; the driver's own comes from nowhere."""
    return re.match(r"lib(cu|nv|nccl)", soname) is not None and soname != "libcuda.so.1"


def main() -> int:
    """Writes the stubs beside torch's libraries, where their run path finds them."""
    library = SITE / "torch" / "lib"
    present = {path.name for root in (library, SITE / "nvidia") for path in root.rglob("*.so*")}
    missing: set[str] = set()
    version_of: dict[str, str] = {}  # symbol version -> the library it is wanted from
    symbols: dict[str, set[str]] = defaultdict(set)  # symbol version, or "" -> symbols
    for path in library.glob("*.so*"):
        needed = re.findall(r"NEEDED.*\[(.+)\]", output("readelf", "-dW", path))
        missing.update(soname for soname in needed if is_cuda(soname) and soname not in present)
        soname = ""
        for line in output("readelf", "-VW", path).splitlines():
            if found := re.search(r"File: (\S+)", line):
                soname = found[1]
            elif soname and (found := re.search(r"Name: (\S+)", line)):
                version_of[found[1]] = soname
        for line in output("nm", "-D", "--undefined-only", path).splitlines():
            name, _, version = line.split()[-1].partition("@")
            version = version.lstrip("@")
            if version or re.match(r"(cu[A-Z]|cu[a-z]+Lt|curand|cufft|nccl|nvshmem|nvtx)", name):
                symbols[version].add(name)
    for position, soname in enumerate(sorted(missing)):
        groups = {version: names for version, names in symbols.items() if version_of.get(version) == soname}
        if position == 0:
            groups[""] = symbols[""]  # without a version, any library will do
        build(library / soname, soname, groups)
    sys.stdout.write(f"{len(missing)} stubs in {library}: {' '.join(sorted(missing))}\n")
    return 0


def build(target: Path, soname: str, groups: dict[str, set[str]]) -> None:
    """One shared library with those symbols under those versions."""
    names = sorted({name for group in groups.values() for name in group})
    aliases = "\n".join(f".globl {name}\n.type {name}, @function\n.set {name}, flyball_stub" for name in names)
    script = "\n".join(
        f"{version} {{ global: {' '.join(f'{name};' for name in sorted(group))} }};"
        for version, group in groups.items()
        if version and group
    )
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "stub.c")
        source.write_text(
            "#include <stdlib.h>\n__attribute__((used)) static void flyball_stub(void) { abort(); }\n"
            f'__asm__("{aliases}");\n'.replace("\n.", "\\n.")
        )
        versions = Path(folder, "versions")
        versions.write_text(script + "\n")
        options = [f"-Wl,--version-script={versions}"] if script else []
        output("gcc", "-shared", "-fPIC", "-O1", "-o", target, source, f"-Wl,-soname,{soname}", *options)


if __name__ == "__main__":
    sys.exit(main())
