"""Clustering methods by name. A method is one file; the engine trains any of them."""

from twincluster.methods.anchored import Anchored
from twincluster.methods.base import Method
from twincluster.methods.tcc import Tcc
from twincluster.methods.tcc_ablations import ABLATIONS

METHODS: dict[str, type[Method]] = {"anchored": Anchored, "tcc": Tcc, **ABLATIONS}
