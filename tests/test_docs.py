"""The documents: links lead somewhere, pages for users stay short, and docs/code.md describes the tree as it is."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "twincluster"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
FOR_USERS = (
    "README.md", "docs/your-folder.md", "docs/pretrained.md", "docs/choosing-k.md", "docs/report.md",
    "docs/explorer.md", "docs/export.md", "docs/several-processes.md", "docs/ray.md", "docs/teach.md",
    "docs/scale.md",
)  # fmt: skip
MOST_WORDS = 900
CODE_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
FILE = re.compile(r"`((?:[\w-]+/)*\w+\.py|(?:[\w-]+/)+\w+\.\w+)`")
OLD_NAMES = re.compile(
    r"twincluster\.(?:images|clusters|features|evaluate|engine|losses|encoders|draws|results|inputs|kernels)\b"
    r"|`twincluster bench"
)


def prose(page: Path) -> str:
    """The text of a page without its code blocks."""
    return CODE_BLOCK.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of the headings."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    broken = []
    for link in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


def words(page: Path) -> int:
    return sum(any(map(str.isalnum, word)) for word in prose(page).split())


def section(page: Path, heading: str) -> str:
    """The text below a heading up to the next one."""
    match = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#)", prose(page), re.MULTILINE | re.DOTALL)
    assert match, f"{page.name} has no heading {heading!r}"
    return match[1]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_resolve(page: Path) -> None:
    assert broken_links(page) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One, two\n[a](gone.md) [b](#one-two) [c](#three) [d](https://example.org/)\n```\n[e](x.md)\n```\n"
    )
    assert broken_links(page) == ["gone.md", "#three"]


@pytest.mark.parametrize("name", FOR_USERS)
def test_pages_for_users_are_short(name: str) -> None:
    assert words(ROOT / name) <= MOST_WORDS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_of_former_modules_are_gone(page: Path) -> None:
    if page.name != "CHANGELOG.md":
        assert OLD_NAMES.findall(page.read_text(encoding="utf-8")) == []


def test_every_module_has_a_line_in_the_map_of_the_code() -> None:
    named = FILE.findall(section(ROOT / "docs" / "code.md", "What each module owns"))
    hidden = ("methods/peers/", "nn/kernels/")  # folders with one line each
    modules = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py")}
    doors = {module for module in modules if module.endswith("__init__.py")}
    assert {module for module in modules - doors if not module.startswith(hidden)} <= set(named)


@pytest.mark.parametrize("name", ["docs/code.md", "CONTRIBUTING.md"])
def test_files_that_are_named_exist(name: str) -> None:
    named = [file for file in FILE.findall(prose(ROOT / name)) if "NAME" not in file]
    places = (SOURCE, ROOT, SOURCE / "methods" / "peers")
    assert [file for file in named if not any((place / file).is_file() for place in places)] == []


@pytest.mark.stress
def test_walks_in_the_map_of_the_code_are_those_measured() -> None:
    from benchmarks.walk import measure

    page, measured = ROOT / "docs" / "code.md", measure().functions
    for heading, walk in (
        ("fit", "fit of photographs"),
        ("One training step", "one training step on features"),
        ("One correction", "a merge and export to csv"),
        ("predict", "predict photographs"),
    ):
        text = re.split("\n\n(A folder of|With corrections)", section(page, heading))[0]
        assert list(dict.fromkeys(FILE.findall(text))) == list(measured[walk]), walk
        assert f": {len(measured[walk])} files." in text


def test_the_reference_of_equations_names_code_and_tests_that_exist() -> None:
    page = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")
    rows = [
        line.split(" | ")
        for line in page.splitlines()
        if re.match(r"\| .*\| `?(losses|Tcc|tcc_|ema|paper|[A-Z])", line)
    ]
    tests = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py"))
    code = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "src").rglob("*.py"))
    named = [(quoted(row[1]), quoted(row[2])) for row in rows if len(row) == 4]
    assert len(named) > 20
    for sources, checks in named:
        for source in sources:
            name = source.rpartition(".")[2]
            assert source.endswith(".py") or re.search(rf"(def|class) {name}\b", code), source
        for check in checks:
            assert check.endswith(".py") or f"def {check}(" in tests, check


def quoted(cell: str) -> list[str]:
    """What stands between backticks."""
    return re.findall(r"`([^`]+)`", cell)
