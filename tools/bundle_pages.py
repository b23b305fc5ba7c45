"""Join the JavaScript modules of the report and of the explorer into one file each.

    python tools/bundle_pages.py           # write src/twincluster/pages/web/built/*.js
    python tools/bundle_pages.py --check   # exit with 1 if one of them is out of date

A page loads one script that fetches nothing, and a user needs no build step: the files in built/ are committed. Every
module is placed before the first one that imports it; its import lines and the word `export` are removed, and the
whole becomes one function. Only `import { a, b } from "./file.js"` and `export` before a declaration are understood.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

WEB = Path(__file__).resolve().parents[1] / "src" / "twincluster" / "pages" / "web"
PAGES = ("report", "explorer")

IMPORT = re.compile(r'^import \{([^}]*)\} from "(\.[^"]*)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const|let)\b)", re.MULTILINE)
DECLARED = re.compile(r"^(export )?(?:async )?(?:function\*?|class|const|let) (\w+|[\[{][^=]*[\]}])", re.MULTILINE)
OTHER = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)
DOCUMENTATION = re.compile(r"^[ \t]*/\*\*(?:(?!\*/).)*\*/[ \t]*\n", re.MULTILINE | re.DOTALL)  # types, for editors


class BundleError(Exception):
    pass


def bundle(entry: Path) -> str:
    """Return one script that does what the module `entry` does."""
    modules = _in_order(entry, [])
    _check_names(modules)
    parts = [f"// {path.relative_to(entry.parents[1]).as_posix()}\n{_body(path).strip()}\n" for path in modules]
    made = f"// Made by tools/bundle_pages.py from {entry.name} and the modules it imports: do not edit.\n"
    return made + '(() => {\n"use strict";\n\n' + "\n".join(parts) + "})();\n"


def _in_order(path: Path, importing: list[Path]) -> list[Path]:
    """Modules in the order in which they can run, each once."""
    if path in importing:
        circle = " -> ".join(one.name for one in (*importing[importing.index(path) :], path))
        raise BundleError(f"{circle}: modules import each other in a circle; move what they share to a third one")
    found: list[Path] = []
    for names, where in IMPORT.findall(_read(path)):
        other = (path.parent / where).resolve()
        if not other.is_file():
            raise BundleError(f"{path.name} imports {where}, which does not exist")
        if missing := _words(names) - _declared(other, exported=True):
            raise BundleError(
                f"{path.name} imports {', '.join(sorted(missing))} from {where}, which exports no such name"
            )
        found += [one for one in _in_order(other, [*importing, path]) if one not in found]
    return [*found, path]


def _check_names(modules: list[Path]) -> None:
    """Raise if two modules declare the same name, for they share one scope in the bundle."""
    owners: dict[str, Path] = {}
    for path in modules:
        for name in _declared(path):
            if name in owners:
                raise BundleError(f"{owners[name].name} and {path.name} both declare {name}: rename one of them")
            owners[name] = path


def _body(path: Path) -> str:
    text = EXPORT.sub("", IMPORT.sub("", _read(path)))
    if line := OTHER.search(text):
        raise BundleError(f'{path.name}: {line[0]!r}: only import {{ a, b }} from "./file.js" and export before a '
                          "declaration can be bundled")  # fmt: skip
    return DOCUMENTATION.sub("", text)


def _declared(path: Path, exported: bool = False) -> set[str]:
    """Names that a module declares at its top level: all, or those it exports."""
    found = DECLARED.findall(_read(path))
    return {name for export, names in found if export or not exported for name in _words(names)}


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def main() -> int:
    stale = []
    for page in PAGES:
        built, text = WEB / "built" / f"{page}.js", bundle(WEB / page / f"{page}.js")
        if built.is_file() and _read(built) == text:
            continue
        stale.append(f"built/{page}.js")
        if "--check" not in sys.argv:
            built.write_text(text, encoding="utf-8", newline="\n")
    if stale and "--check" in sys.argv:
        print(f"{' and '.join(stale)}: out of date; run `python tools/bundle_pages.py`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BundleError as error:
        sys.exit(str(error))
