"""Triton kernels for residual networks; imported only where a GPU trains."""
