"""Functions of feature arrays: k-means, cluster sizes, the number of clusters, neighbours, scores."""

from twincluster.core import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
