"""Clustering methods by name. A method is one file; the engine trains any of them, also those of other packages."""

import importlib
import os
import sys

from twincluster.core import InputError, closest, user_code
from twincluster.methods.anchored import Anchored
from twincluster.methods.base import Method
from twincluster.methods.peers.contrastive import Cc, Idfd, Moco
from twincluster.methods.peers.dccs import Dccs
from twincluster.methods.peers.dec import Dec
from twincluster.methods.peers.gatcluster import GatCluster
from twincluster.methods.peers.generative import Ae, Dae, Dcgan, Decnn, Vae
from twincluster.methods.peers.information import Iic, Pica
from twincluster.methods.peers.jule import Jule
from twincluster.methods.peers.mice import Mice
from twincluster.methods.peers.mmdc import Mmdc
from twincluster.methods.peers.neighbours import Cdc, Scan
from twincluster.methods.peers.propos import Propos
from twincluster.methods.peers.prototypes import DeepClusterV2, Swav
from twincluster.methods.peers.relations import Adc, Dac, Dccm
from twincluster.methods.tcc import Tcc
from twincluster.methods.tcc_variants import ABLATIONS, Repaired

METHODS: dict[str, type[Method]] = {
    "anchored": Anchored,
    "tcc": Tcc,
    **ABLATIONS,
    "tcc-repaired": Repaired,
    "moco": Moco,
    "cc": Cc,
    "swav": Swav,
    "deepcluster_v2": DeepClusterV2,
    "mice": Mice,
    "propos": Propos,
    "idfd": Idfd,
    "scan": Scan,
    "cdc": Cdc,
    "iic": Iic,
    "pica": Pica,
    "jule": Jule,
    "dec": Dec,
    "dac": Dac,
    "dccm": Dccm,
    "adc": Adc,
    "gatcluster": GatCluster,
    "mmdc": Mmdc,
    "dccs": Dccs,
    "ae": Ae,
    "dae": Dae,
    "vae": Vae,
    "decnn": Decnn,
    "dcgan": Dcgan,
}
TRUSTED = "TWINCLUSTER_METHODS"  # an environment variable: modules that a run may name, with commas between them


def find_method(name: str) -> type[Method]:
    """A method by its name, or "package.module:Class" where that module is imported already or named in TRUSTED.

    A name may come from a run that somebody else made, and importing a module is running it.
    """
    module, colon, _ = name.partition(":")
    if not colon:
        if name not in METHODS:
            hint = closest(name, METHODS) or f": choose one of {', '.join(METHODS)}, or give package.module:Class"
            raise InputError(f"there is no method {name!r}{hint}")
        return METHODS[name]
    if module not in sys.modules and module not in _trusted():
        raise InputError(
            f"the method {name} is code of its own, which nobody here has asked to run: if you trust it, set "
            f"{TRUSTED}={module} in the environment, or import {module} first"
        )
    return import_method(name)


def _trusted() -> list[str]:
    return [name.strip() for name in os.environ.get(TRUSTED, "").split(",")]


def import_method(name: str) -> type[Method]:
    """The class that a user names as "package.module:Class". What else its module raises is told by cli/exits.py."""
    module, _, name_of_class = name.partition(":")
    if not all(module.split(".")):
        raise InputError(f"the method {name} cannot be imported: expected package.module:Class")
    user_code.asked(name)
    try:
        found = getattr(importlib.import_module(module), name_of_class, None)
    except (ImportError, SyntaxError) as error:
        why = user_code.why_not_imported(module, error)
        raise InputError(f"the method {name} cannot be imported {why}") from error
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise InputError(f"{name} is no method: expected a class derived from twincluster.methods.base.Method")
    return found
