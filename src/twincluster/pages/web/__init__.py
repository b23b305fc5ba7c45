"""The files of both pages. tools/bundle_pages.py makes the scripts in built/ from the modules in the other folders."""

from importlib.resources import files


def read_asset(name: str) -> str:
    """Return the text of a file in this folder, such as `report/report.html`."""
    return files(__name__).joinpath(*name.split("/")).read_text(encoding="utf-8")
