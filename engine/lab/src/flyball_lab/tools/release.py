"""What `hack/release` asks of Python: do versions agree, and the papers of a release. See `hack/release --help`.

It needs nothing but Python itself, because a release is built without the development environment. Nothing here looks
at the clock or at the machine, so that the same commit gives the same files.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import tomllib
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

#: semver.org without build metadata: the tag of an image cannot have a '+'.
_NUMBER: Final = r"(?:0|[1-9]\d*)"
_IDENTIFIER: Final = rf"(?:{_NUMBER}|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
_VERSION: Final = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-{_IDENTIFIER}(?:\.{_IDENTIFIER})*)?")
#: Distributions, as folders of the checkout.
DISTRIBUTIONS: Final = ("engine", "engine/lab", "operator")
_OWN: Final = re.compile(r"flyball-[a-z]+==(.+)")
#: A wheel, an image, a chart or a pinned package of ours, as pages and examples name them.
_NAMED: Final = re.compile(r"\bflyball[a-z/-]*(?:==|:v?|[-_])(\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]*[0-9A-Za-z])?)")
#: What a release says that built it. No service answers there: the identifier has to be a URI.
_BUILDER: Final = "https://flyball.dev/hack/release"
#: Names of an SBOM come of it and of what the SBOM describes, so that they are the same again.
_NAMESPACE: Final = uuid.uuid5(uuid.NAMESPACE_URL, _BUILDER)

Json = dict[str, Any]


def is_version(text: str) -> bool:
    """Whether this can be the version of a release: semantic, without build metadata."""
    return _VERSION.fullmatch(text) is not None


def written(root: Path) -> Mapping[str, str]:
    """Every place below a checkout's root that has Flyball's version, and what it says there."""
    return {place: version for found in (_packages(root), _chart(root), _pages(root)) for place, version in found}


def disagreements(root: Path, version: str) -> list[str]:
    """Places that say another version, one line each."""
    return [f"{place} says {said}" for place, said in written(root).items() if said != version]


def _packages(root: Path) -> Iterator[tuple[str, str]]:
    for folder in DISTRIBUTIONS:
        project = tomllib.loads((root / folder / "pyproject.toml").read_text())["project"]
        yield f"{folder}/pyproject.toml: version", project["version"]
        needs = [
            *project["dependencies"],
            *(one for more in project.get("optional-dependencies", {}).values() for one in more),
        ]
        for need in needs:
            if own := _OWN.fullmatch(need):
                yield f"{folder}/pyproject.toml: {need.partition('==')[0]}", own[1]
    for path in sorted(root.glob("*/src/*/__init__.py")) + sorted(root.glob("engine/lab/src/*/__init__.py")):
        if found := re.search(r'^__version__ = "(.*)"$', path.read_text(), re.MULTILINE):
            yield f"{path.relative_to(root)}: __version__", found[1]


def _chart(root: Path) -> Iterator[tuple[str, str]]:
    text = (root / "charts/flyball/Chart.yaml").read_text()
    for field in ("version", "appVersion"):
        found = re.search(rf'^{field}: "?([^"\s]*)"?$', text, re.MULTILINE)
        yield f"charts/flyball/Chart.yaml: {field}", found[1] if found else "nothing"


def _pages(root: Path) -> Iterator[tuple[str, str]]:
    pages = [root / "README.md", root / "charts/flyball/values.yaml"]
    for folder in ("docs", "crds"):
        pages += sorted(path for path in (root / folder).rglob("*") if path.suffix in {".md", ".yaml"})
    for path in pages:
        for line, text in enumerate(path.read_text().splitlines(), start=1):
            for found in _NAMED.finditer(text):
                yield f"{path.relative_to(root)}:{line}", found[1]


def settled(bom: Json, *, subject: str, seconds: int, scanner: str) -> Json:
    """A CycloneDX bill of materials without what differs between two runs: its own number and its time.

    `subject`: digest of what it describes, which its number comes of; `seconds`: time of the commit since 1970;
    `scanner`: version of what made it, which it does not know itself where it was built from its module.
    """
    made = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    tools = {"components": [{**tool, "version": scanner} for tool in bom["metadata"]["tools"]["components"]]}
    metadata = {**bom["metadata"], "timestamp": made, "tools": tools}
    return {**bom, "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, subject)}", "metadata": metadata}


def provenance(
    *, version: str, platform: str, subjects: Mapping[str, str], inputs: Iterable[Json], tools: Mapping[str, str]
) -> Json:
    """An in-toto statement with SLSA's provenance. `subjects`: SHA-256 by name; `inputs`: what they are made of."""
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in sorted(subjects.items())],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": f"{_BUILDER}/v1",
                "externalParameters": {"version": version},
                "internalParameters": {"platform": platform},
                "resolvedDependencies": list(inputs),
            },
            "runDetails": {"builder": {"id": _BUILDER, "version": dict(sorted(tools.items()))}},
        },
    }


def _provenance_of(options: argparse.Namespace) -> Json:
    folder: Path = options.folder
    subjects = {path.name: _sha256(path) for path in folder.iterdir()}
    subjects |= {f"image {name}": digest.removeprefix("sha256:") for name, digest in _pairs(options.image)}
    locks = ["requirements/operator.txt", "requirements/build.txt"]
    inputs: list[Json] = [{"name": "source", "digest": {"gitCommit": options.commit}}]
    inputs += [
        {"name": name, "digest": {"sha256": digest.removeprefix("sha256:")}, "annotations": {"role": "base image"}}
        for name, digest in _pairs(options.base)
    ]
    inputs += [
        {"name": name, "digest": {"sha256": _sha256(options.source / name)}, "annotations": {"role": "pinned packages"}}
        for name in locks
    ]
    return provenance(
        version=options.version, platform=options.platform, subjects=subjects, inputs=inputs,
        tools=dict(_pairs(options.tool)),
    )  # fmt: skip


def _pairs(texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    for text in texts:
        name, _, value = text.partition("=")
        yield name, value


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _text(document: Json) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False, sort_keys=False) + "\n"


def _check(options: argparse.Namespace) -> int:
    if not is_version(options.version):
        print(
            f"'{options.version}' is no version of a release; accepted: MAJOR.MINOR.PATCH, such as 1.2.3, or with a"
            " pre-release, such as 1.2.3-rc.1",
            file=sys.stderr,
        )
        return 1
    if others := disagreements(options.root, options.version):
        print(
            f"{options.version} is not the version that is written down; change it there:",
            *others,
            sep="\n  ",
            file=sys.stderr,
        )
        return 1
    return 0


def _settle(options: argparse.Namespace) -> int:
    bom = json.loads(options.file.read_text())
    options.file.write_text(
        _text(settled(bom, subject=options.subject, seconds=options.seconds, scanner=options.scanner))
    )
    return 0


def _prove(options: argparse.Namespace) -> int:
    print(_text(_provenance_of(options)), end="")
    return 0


def main(arguments: Sequence[str]) -> int:
    """Run one of the commands; its exit code."""
    parser = argparse.ArgumentParser(prog="release")
    commands = parser.add_subparsers(required=True)

    check = commands.add_parser("check")
    check.add_argument("version")
    check.add_argument("root", type=Path)
    check.set_defaults(run=_check)

    settle = commands.add_parser("settle")
    settle.add_argument("file", type=Path)
    settle.add_argument("--subject", required=True)
    settle.add_argument("--seconds", type=int, required=True)
    settle.add_argument("--scanner", required=True)
    settle.set_defaults(run=_settle)

    prove = commands.add_parser("provenance")
    prove.add_argument("folder", type=Path)
    prove.add_argument("--source", type=Path, required=True)
    for name in ("version", "commit", "platform"):
        prove.add_argument(f"--{name}", required=True)
    for name in ("image", "base", "tool"):
        prove.add_argument(f"--{name}", action="append", default=[])
    prove.set_defaults(run=_prove)

    options = parser.parse_args(arguments)
    code: int = options.run(options)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
