"""The files that both pages are made of: built/ holds their scripts, which tools/bundle_pages.py makes from the rest."""

from importlib.resources import files


def read_asset(name: str) -> str:
    """Return the text of a file in this folder, such as `report/report.html`."""
    return files(__name__).joinpath(*name.split("/")).read_text(encoding="utf-8")
