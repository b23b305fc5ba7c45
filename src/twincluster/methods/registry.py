"""Clustering methods by name. Methods of other packages are trained in the same way.

Listing the methods imports neither them nor torch.
"""

from __future__ import annotations

import ast
import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from twincluster.core import InputError, closest, user_code

if TYPE_CHECKING:
    from twincluster.methods.base import Method

DEFAULT = "anchored"
_HOMES = {  # module in this room: class
    "anchored": "anchored:Anchored",
    "tcc": "tcc:Tcc",
    "tcc-without-l1": "tcc_variants:WithoutL1",
    "tcc-without-l2": "tcc_variants:WithoutL2",
    "tcc-ten-samples": "tcc_variants:TenSamples",
    "tcc-without-p": "tcc_variants:WithoutP",
    "tcc-without-image-augmentation": "tcc_variants:WithoutImageAugmentation",
    "tcc-hard-assignments": "tcc_variants:HardAssignments",
    "tcc-without-subsetting": "tcc_variants:WithoutSubsetting",
    "tcc-assignment-embedding": "tcc_variants:AssignmentEmbedding",
    "tcc-deterministic": "tcc_variants:Deterministic",
    "tcc-as-cc": "tcc_variants:AsCc",
    "tcc-stochastic-clusters": "tcc_variants:StochasticClusters",
    "tcc-repaired": "tcc_variants:Repaired",
    "moco": "peers.contrastive:Moco",
    "cc": "peers.contrastive:Cc",
    "swav": "peers.prototypes:Swav",
    "deepcluster_v2": "peers.prototypes:DeepClusterV2",
    "mice": "peers.mice:Mice",
    "propos": "peers.propos:Propos",
    "idfd": "peers.contrastive:Idfd",
    "scan": "peers.neighbours:Scan",
    "cdc": "peers.neighbours:Cdc",
    "iic": "peers.information:Iic",
    "pica": "peers.information:Pica",
    "jule": "peers.jule:Jule",
    "dec": "peers.dec:Dec",
    "dac": "peers.relations:Dac",
    "dccm": "peers.relations:Dccm",
    "adc": "peers.relations:Adc",
    "gatcluster": "peers.gatcluster:GatCluster",
    "mmdc": "peers.mmdc:Mmdc",
    "dccs": "peers.dccs:Dccs",
    "ae": "peers.generative:Ae",
    "dae": "peers.generative:Dae",
    "vae": "peers.generative:Vae",
    "decnn": "peers.generative:Decnn",
    "dcgan": "peers.generative:Dcgan",
    "pcl": "peers.pcl:Pcl",
    "sccl": "peers.sccl:Sccl",
    "vade": "peers.vade:Vade",
    "spice": "peers.spice:Spice",
    "ruc": "peers.ruc:Ruc",
    "scl": "peers.readings:Scl",
    "dhog": "peers.readings:Dhog",
    "ddc": "peers.readings:Ddc",
}
READINGS = ("scl", "dhog", "ddc")  # of systems whose formulas were not found: no comparison claims to show them
REFINERS = ("ruc",)  # methods that need a finished run to begin with


class _Methods(Mapping[str, "type[Method]"]):
    """The methods of this package; each is imported when it is looked up."""

    def __getitem__(self, name: str) -> type[Method]:
        module, _, name_of_class = _HOMES[name].partition(":")
        method: type[Method] = getattr(importlib.import_module(f"twincluster.methods.{module}"), name_of_class)
        return method

    def __iter__(self) -> Iterator[str]:
        return iter(_HOMES)

    def __len__(self) -> int:
        return len(_HOMES)


METHODS = _Methods()


def summaries() -> dict[str, str]:
    """Return the first line of each method's docstring, read from its source."""
    folder, lines = Path(__file__).parent, {}
    for name, home in _HOMES.items():
        module, _, name_of_class = home.partition(":")
        tree = ast.parse((folder / f"{module.replace('.', '/')}.py").read_bytes())
        classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        lines[name] = (ast.get_docstring(classes[name_of_class]) or "").partition("\n")[0]
    return lines


TRUSTED = "TWINCLUSTER_METHODS"  # environment variable: modules that a run may import, separated by commas


def find_method(name: str) -> type[Method]:
    """Return a method by its name, or by "package.module:Class" if that module is imported already or listed in
    TRUSTED.

    The name may come from someone else's run, and importing a module executes it.
    """
    module, colon, _ = name.partition(":")
    if name == "auto":
        return METHODS[DEFAULT]
    if not colon:
        if name not in METHODS:
            hint = closest(name, METHODS) or f": choose one of {', '.join(METHODS)}, or name a package.module:Class"
            raise InputError(f"there is no method {name!r}{hint}")
        return METHODS[name]
    if module not in sys.modules and module not in _trusted():
        raise InputError(
            f"the method {name} runs code from outside twincluster: if you trust it, set {TRUSTED}={module} in the "
            f"environment, or import {module} first"
        )
    return import_method(name)


def method_or_base(name: str) -> type[Method]:
    """Return the method, or the base class if its code may not run: for pages about a run."""
    try:
        return find_method(name)
    except InputError:
        from twincluster.methods.base import Method

        return Method


def _trusted() -> list[str]:
    return [name.strip() for name in os.environ.get(TRUSTED, "").split(",")]


def import_method(name: str) -> type[Method]:
    """Import and return the class that a user names as "package.module:Class".

    Other errors of its module pass through; cli/exits.py reports them.
    """
    from twincluster.methods.base import Method

    module, _, name_of_class = name.partition(":")
    if not all(module.split(".")):
        raise InputError(f"the method {name} cannot be imported: expected package.module:Class")
    user_code.asked(name)
    try:
        method = getattr(importlib.import_module(module), name_of_class, None)
    except (ImportError, SyntaxError) as error:
        why = user_code.why_not_imported(module, error)
        raise InputError(f"the method {name} cannot be imported {why}") from error
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:  # SystemExit or a class of its own
        raise InputError(f"{user_code.blame(error)}; correct that line") from error
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise InputError(f"{name} is not a method: expected a class derived from twincluster.methods.base.Method")
    return method
