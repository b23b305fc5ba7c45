"""The first lines of a report: what was clustered, how sure that is, and what to do next."""

from __future__ import annotations

import shlex
from typing import Any

from twincluster.methods import method_or_base
from twincluster.pages.report.material import Material
from twincluster.training import health_of

UNSURE = 0.7  # mean confidence below which the whole is doubtful


def head_of(material: Material, data: dict[str, Any]) -> dict[str, Any]:
    """`data` is what gather.py has found so far."""
    run = data["run"]
    what = run["kind"]
    images, clusters = _many(run["readable"], what[:-1]), _many(run["clusters"], "cluster")
    return {
        "title": f"{images} of {run['source'].rstrip('/')} in {clusters}",
        "sentences": _sentences(material, data, what),
        "facts": _facts(data, what),
        "warning": _warning(material),
        "next": _next(material, data),
    }


def _sentences(material: Material, data: dict[str, Any], what: str) -> list[str]:
    found, confidence, labels = [], data["confidence"], data["labels"]
    if confidence["mean"] is not None:
        ahead = f"One cluster is clearly ahead for {confidence['sure']:.0%} of them"
        found.append(f"{ahead}{_how_firm(material, confidence['mean'])}.")
    if "acc" in labels:
        where = "" if labels["scoredOn"] == "all" else f" on the {labels['scoredOn']} part"
        scores = ", ".join(f"{name.upper()} {_dot(labels[name])}" for name in ("acc", "nmi", "ari"))
        found.append(f"Compared with labels{where}: {scores}.")
    if material.choice:
        said = material.choice.describe()
        found.append(said[0].upper() + said[1:] + ".")
    if data["run"]["added"]:
        were = "were" if data["run"]["added"] > 1 else "was"
        found.append(f"{data['run']['added']:,} of them {were} added after the training.")
    corrections = data["run"]["corrections"]
    if corrections and data["run"]["readable"]:
        found.append(f"{_many(corrections, 'correction')} by hand {'is' if corrections == 1 else 'are'} in them.")
    if material.trust:
        said = material.trust.to_text()
        found.append(said[0].upper() + said[1:] + ".")
    if junk := data["run"]["junk"]:
        found.append(f"{_many(junk, what[:-1])} marked as junk {'is' if junk == 1 else 'are'} left out.")
    if material.unseen and material.pictures is not None:
        gone = "its image is" if material.unseen == 1 else "their images are"
        found.append(f"{material.unseen:,} of them cannot be shown: {gone} gone or changed since.")
    if material.pictures is None:
        found.append(f"Without pictures: {material.no_pictures}.")
    return found


def _how_firm(material: Material, mean: float) -> str:
    """Return how firm the clusters are as a whole.

    Some methods scale the head to much the same mean confidence on any images. There, agreement of two views tells.
    """
    if not method_or_base(material.config.method).steady_confidence:
        low = ", which is low: take the clusters as a first draft" if mean < UNSURE else ""
        return f"; the mean confidence is {_dot(mean)}{low}"
    last = material.metrics[-1] if material.metrics else {}
    # where the number of clusters was chosen at the end, training had another one
    if last.get("agreement") is None or len(last.get("histogram") or ()) != material.config.n_clusters:
        return ""
    return f"; in training two views of an image fell into the same one in {last['agreement']:.0%}"


def _facts(data: dict[str, Any], what: str) -> list[dict[str, str]]:
    run, labels, confidence = data["run"], data["labels"], data["confidence"]
    facts = []
    for count, one in ((run["readable"], what[:-1]), (run["clusters"], "cluster")):
        value, _, label = _many(count, one).partition(" ")
        facts.append((value, label))
    if confidence["mean"] is not None:
        facts.append((_dot(confidence["mean"]), "mean confidence"))
    if "acc" in labels:
        facts += [(_dot(labels[name]), name.upper()) for name in ("acc", "nmi", "ari")]
    if unread := data["problems"]["unreadable"]["count"]:
        facts.append((f"{unread:,}", "not readable"))
    return [{"value": value, "label": label} for value, label in facts]


def _warning(material: Material) -> str | None:
    """What is wrong with the clusters as a whole, if anything is."""
    needed = ("histogram", "mean_assignment", "confidence")
    rows = [row for row in material.metrics if all(row.get(name) for name in needed)]
    if not rows or len(rows[-1]["histogram"]) != material.config.n_clusters or material.config.n_clusters < 2:
        return None
    method = material.config.method
    return health_of(rows[-1]).warning(method, method_or_base(method).advice, material.config.train.precision)


def _next(material: Material, data: dict[str, Any]) -> list[dict[str, str]]:
    folder, found = shlex.quote(str(material.run.folder)), []
    problems = data["problems"]
    if alike := problems["alike"]["listed"]:
        called = {cluster["id"]: cluster["short"] for cluster in data["clusters"]}
        one, other = (called[cluster] for cluster in alike[0]["clusters"])
        found.append({"text": f"See whether clusters {one} and {other} belong together: they look most alike."})
    if data["run"]["clusters"] > 2:
        found.append({"text": "Sort the clusters by confidence and start with the least certain."})
    if problems["duplicates"]["count"]:
        found.append({"text": "Look through the near-duplicates under Problems."})
    found.append({"text": "Rename, merge, split and clear up in a browser:", "command": f"twincluster serve {folder}"})
    what = data["run"]["kind"]
    predict = f"twincluster predict {folder} NEW_{what.upper()} --out new.csv"
    found.append({"text": f"Put new {what} into these clusters:", "command": predict})
    if material.scores is None and material.data.files:
        labelled = f"twincluster report {folder} --labels folders"
        found.append({"text": "If the folders are labels, compare with them:", "command": labelled})
    return found


def _many(count: int, one: str) -> str:
    return f"{count:,} {one}{'' if count == 1 else 's'}"


def _dot(value: float) -> str:
    """.93, -.02 and 1.00."""
    return f"{value:.2f}".replace("0.", ".", 1) if abs(value) < 0.995 else f"{value:.2f}"
