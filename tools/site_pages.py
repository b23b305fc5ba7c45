"""Generated pages of the documentation site, a hook of MkDocs: README and others at the root, and the reference.

Every command, method, recipe and public class documents itself; nothing here repeats them. llms.txt lists all pages
with their first sentence, for assistants.
"""

import inspect
import io
import os
import re
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
ROOT_PAGES = {  # files at the root of the repository, as pages
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages."""
    pages = {page: (ROOT / name).read_text("utf-8") for name, page in ROOT_PAGES.items()}
    pages |= {"reference/python.md": python_page(), "reference/commands.md": commands_page()}
    pages |= {"reference/methods.md": methods_page(), "reference/recipes.md": recipes_page()}
    for name, content in pages.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links between files of the repository into links between pages."""

    def linked(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        if re.match(r"[a-z]+:|#|$", target):
            return match[0]
        name = page.file.src_uri
        folder = "" if name in ROOT_PAGES.values() else os.path.dirname(f"docs/{name}")
        place = os.path.normpath(os.path.join(folder, target))
        if place in ROOT_PAGES:
            return f"[{text}]({ROOT_PAGES[place]}{anchor})"
        if place.startswith("docs/") and place.endswith((".md", ".png")):
            return f"[{text}]({place.removeprefix('docs/')}{anchor})"
        return text  # code, which is not part of the site

    return re.sub(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(\s*([^)#\s]*)(#[^)\s]*)?\)", linked, markdown)


def on_post_build(config: Any) -> None:
    """Write llms.txt: each page with its first sentence."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    for section in config.nav:
        ((title, names),) = section.items()
        lines += [f"## {title}", ""]
        for name in names:
            html = name.removesuffix(".md").removesuffix("index")
            lines.append(f"- [{name.removesuffix('.md')}]({html}{'/' if html else ''}): {_first_sentence(name)}")
        lines.append("")
    Path(config.site_dir, "llms.txt").write_text("\n".join(lines), "utf-8")


def python_page() -> str:
    """Return the public API, from its docstrings."""
    from twincluster import TwinContrastClustering

    parts = ["# Python", "", "```python", "from twincluster import TwinContrastClustering", "```", ""]
    parts += ["## TwinContrastClustering", "", _numpydoc(TwinContrastClustering.__doc__ or "")]
    for name, method in inspect.getmembers(TwinContrastClustering, callable):
        if not name.startswith("_") and method.__module__.startswith("twincluster"):
            given = re.sub(r"twincluster\.\w+(\.\w+)*\.|<.*?>", "", str(inspect.signature(method)))
            parts += [f"### {name}", "", "```python", f"{name}{given}", "```", "", _numpydoc(method.__doc__ or "")]
    return "\n".join(parts)


def commands_page() -> str:
    """Return what `--help` prints for each command."""
    from twincluster.cli.app import app

    names = [name for name in app if not name.startswith("-") and app[name].show]
    parts = ["# Commands", "", "```", _printed("--help"), "```", ""]
    for name in names:
        parts += [f"## {name}", "", "```", _printed(name, "--help"), "```", ""]
    return "\n".join(parts)


def methods_page() -> str:
    """Return each method with all its settings."""
    from twincluster.methods import summaries

    parts = ["# Methods and settings", "", "`--set GROUP.FIELD=VALUE` changes a setting.", ""]
    for name in summaries():
        parts += [f"## {name}", "", "```", _printed("methods", name), "```", ""]
    return "\n".join(parts)


def recipes_page() -> str:
    """Return each recipe with its command and measured figures."""
    from twincluster.config import recipe_names

    parts = ["# Recipes", "", "`--recipe NAME` chooses one; a TOML file of your own works as well.", ""]
    for name in recipe_names():
        parts += [f"## {name}", "", "```", _printed("recipes", name), "```", ""]
    return "\n".join(parts)


def _printed(*words: str) -> str:
    """Return what a command prints on 100 columns."""
    from twincluster.cli import main

    os.environ["COLUMNS"] = "100"
    with redirect_stdout(io.StringIO()) as out:
        status = main(list(words))
    if status:
        raise RuntimeError(f"twincluster {' '.join(words)} ended with status {status}")
    return out.getvalue().strip()


def _numpydoc(text: str) -> str:
    """Return a numpydoc docstring as Markdown: sections as headings, parameters as a list, examples as code."""
    lines: list[str] = []
    section, source = "", inspect.cleandoc(text).split("\n")
    for number, line in enumerate(source):
        under = source[number + 1] if number + 1 < len(source) else ""
        if line and set(under) == {"-"} and len(under) == len(line):
            section = line
            lines += [f"**{line}**", ""]
        elif line and set(line) == {"-"}:
            continue
        elif section == "Examples":
            lines.append(f"    {line}" if line else "")
        elif section in ("Parameters", "Attributes") and line and not line.startswith(" "):
            name, _, kind = line.partition(" : ")
            lines.append(f"- `{name}` ({kind}):")
        else:
            lines.append(f"  {line.strip()}" if section in ("Parameters", "Attributes") and line else line)
    return "\n".join(lines) + "\n"


def _first_sentence(name: str) -> str:
    """Return the first sentence of a page, without markup."""
    names = {page: file for file, page in ROOT_PAGES.items()}
    path = ROOT / names[name] if name in names else ROOT / "docs" / name
    if not path.exists():
        return "generated from the code"
    text = re.sub(r"(?s)```.*?```|(?m:^(?:#|\||!)[^\n]*$)", "", path.read_text("utf-8"))
    paragraph = next((" ".join(part.split()) for part in text.split("\n\n") if part.strip()), "")
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)|`", lambda match: match[1] or "", paragraph)
    return re.split(r"(?<=[.:]) ", plain)[0]
