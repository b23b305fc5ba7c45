"""Attacks on the command line and on the files it reads and writes; see docs/reliability.md."""
