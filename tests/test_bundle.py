"""The scripts of the pages are those that tools/bundle_pages.py makes of their modules; no node is needed."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[1] / "tools" / "bundle_pages.py"


@pytest.fixture(scope="module")
def bundler() -> ModuleType:
    found = importlib.util.spec_from_file_location("bundle_pages", SCRIPT)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def write(folder: Path, **modules: str) -> Path:
    """Modules page/NAME.js; returns that of the page."""
    (folder / "page").mkdir()
    for name, text in modules.items():
        (folder / "page" / f"{name}.js").write_text(text)
    return folder / "page" / "page.js"


def test_committed_scripts_are_up_to_date() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_change_without_bundling_is_noticed_and_bundling_mends_it(tmp_path: Path) -> None:
    web = Path("src", "twincluster", "pages", "web")
    (tmp_path / "tools").mkdir()
    script = shutil.copy(SCRIPT, tmp_path / "tools")
    shutil.copytree(SCRIPT.parents[1] / web, tmp_path / web)
    with (tmp_path / web / "parts" / "dom.js").open("a") as file:
        file.write("export const fresh = 1;\n")
    check = [sys.executable, script, "--check"]
    done = subprocess.run(check, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("built/report.js and built/explorer.js: out of date; run `python tools/")
    subprocess.run([sys.executable, script], check=True)
    assert subprocess.run(check).returncode == 0


def test_every_module_stands_once_before_those_that_import_it(bundler: ModuleType, tmp_path: Path) -> None:
    page = write(
        tmp_path,
        page='import { two } from "./two.js";\nimport { one } from "./one.js";\n\nconsole.log(one, two());\n',
        two='import { one } from "./one.js";\n\n/** Twice. */\nexport function two() {\n  return 2 * one;\n}\n',
        one="export const one = 1;\n",
    )
    assert bundler.bundle(page).partition("\n")[2] == (
        '(() => {\n"use strict";\n\n'
        "// page/one.js\nconst one = 1;\n\n"
        "// page/two.js\nfunction two() {\n  return 2 * one;\n}\n\n"
        "// page/page.js\nconsole.log(one, two());\n})();\n"
    )


@pytest.mark.parametrize(
    "modules, message",
    [
        ({"page": 'import { a } from "./no.js";\n'}, "page.js imports ./no.js, which does not exist"),
        ({"page": 'import { a } from "./b.js";\n', "b": "const a = 1;\n"}, "exports no such name"),
        ({"page": 'import { a } from "./b.js";\n', "b": 'import { c } from "./page.js";\nexport const a = 1;\n'},
         "exports no such name"),
        ({"page": 'import { a } from "./b.js";\nexport const c = 1;\n',
          "b": 'import { c } from "./page.js";\nexport const a = 1;\n'}, "page.js -> b.js -> page.js"),
        ({"page": 'import { a } from "./b.js";\nconst c = 1;\n', "b": "export const a = 1;\nfunction c() {}\n"},
         "b.js and page.js both declare c"),
        ({"page": 'import { a } from "./b.js";\nconst [x, c] = [1, 2];\n', "b": "export const a = 1;\nclass c {}\n"},
         "both declare c"),
        ({"page": "export default 1;\n"}, "can be bundled"),
        ({"page": 'import { a as c } from "./b.js";\n', "b": "export const a = 1, c = 2;\n"}, "b.js, which exports no"),
        ({"page": 'import * as b from "./b.js";\n', "b": "export const a = 1;\n"}, "can be bundled"),
    ],
)  # fmt: skip
def test_what_cannot_be_bundled_is_refused_with_a_reason(
    bundler: ModuleType, tmp_path: Path, modules: dict[str, str], message: str
) -> None:
    with pytest.raises(bundler.BundleError) as caught:
        bundler.bundle(write(tmp_path, **modules))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
