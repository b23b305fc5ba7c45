"""Cluster images nobody has labelled.

The estimator is imported on first use, so that `import twincluster` and the command line's help stay quick.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twincluster.estimator import TwinContrastClustering

__all__ = ["TwinContrastClustering", "__version__"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name == "TwinContrastClustering":
        from twincluster.estimator import TwinContrastClustering

        return TwinContrastClustering
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
