"""GPU kernels of our own for residual networks, in Triton. Nothing here is imported before a GPU is trained on."""
