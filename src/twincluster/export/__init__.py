"""Export the result of a run: tables, folders, ONNX, a model to share."""

from twincluster.core import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
