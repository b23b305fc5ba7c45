"""New images for a finished run, after its training: rows for them, the way back, and whether they are of its kind."""
