"""Which runs `--resume` goes on with: on the same data and with settings that compute the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twincluster.config import Config, differences, flatten
from twincluster.edits import FILE as EDITS
from twincluster.errors import InputError
from twincluster.opening import refuse_other_weights
from twincluster.results import Run
from twincluster.training import checkpoint

FEW_NAMES = 5  # of settings, in a message


def continue_run(out: Path, config: Config, data: dict[str, Any]) -> Run:
    """The run to resume, if settings and data are what they were, or nothing was made of them yet."""
    if not (out / "config.json").is_file():
        raise InputError(f"there is no run in {out} to resume: leave out --resume")
    run = Run.open(out)
    if not checkpoint.exists(run.checkpoint):
        if (out / "model.safetensors").is_file():
            raise InputError(f"{out} has a model, but no checkpoint to go on from: fit into another --out")
        return run
    saved, _, then = run.read_config()
    if run.is_updated:
        raise InputError(
            f"{out} has rows of later images (twincluster update), which more training would make wrong: fit into "
            "another --out, and update that"
        )
    if (edits := run.folder / EDITS).is_file() and edits.stat().st_size:
        raise InputError(
            f"{out} has corrections by hand, which more training would make wrong: fit into another --out, or move "
            f"{edits} away"
        )
    if then["split"] != data["split"]:
        raise InputError(f"{out} was started with --split {then['split']}: resume with the same")
    shapes = [(made.train.image_size, made.train.frame) for made in (saved, config)]
    if saved.train.encoder == config.train.encoder:
        refuse_other_weights(run.folder, then, data.get("encoder"))
    if then["fingerprint"] != data["fingerprint"] and shapes[0] == shapes[1]:
        raise InputError(f"{out} was started on other data: resume with the same source, or start anew elsewhere")
    _refuse_changes(run, saved, config)
    if not config.train.minutes and (done := len(run.read_metrics())) > config.train.epochs:
        raise InputError(
            f"{out} has trained for {done} epochs already: ask for as many or more, or fit into another --out"
        )
    return run


def _refuse_changes(run: Run, saved: Config, config: Config) -> None:
    """How long a run trains and how often it saves may change; what it computes may not."""
    free = {"train.epochs", "train.minutes", "train.checkpoint_minutes", "train.compile", "train.parts"}
    if run.has_choice and not config.n_clusters:
        free.add("n_clusters")  # it was left to the data, as it is now
    changed = [name for name in differences(saved, config) if name not in free]
    if "n_clusters" in changed or "clusters_between" in changed:
        changed = ["n_clusters", *(name for name in changed if "clusters" not in name and name != "tcc.cluster_queue")]
    if changed:
        raise InputError(
            f"{run.folder} was started with another {_told(changed, saved, config)}: resume with the same settings"
        )


def _told(names: list[str], saved: Config, config: Config) -> str:
    """The settings that have changed, and what they were; of many, what may be the cause."""
    then, now = flatten(saved.to_dict()), flatten(config.to_dict()) | {"n_clusters": config.n_clusters or "auto"}
    told = ", ".join(f"{name} ({then.get(name)}, now {now.get(name)})" for name in names[:FEW_NAMES])
    return told if len(names) <= FEW_NAMES else f"{told} and {len(names) - FEW_NAMES} more (perhaps another --recipe)"


def length_of(config: Config) -> str:
    """How long a run is to train, in words."""
    minutes, epochs = config.train.minutes, config.train.epochs
    return f"{minutes:g} minutes" if minutes else f"{epochs} epoch{'s' * (epochs != 1)}"
