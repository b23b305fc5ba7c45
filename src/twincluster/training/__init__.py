"""The parts of the one loop (engine.py): how long, how fast, on which hardware, and what is kept of it."""
