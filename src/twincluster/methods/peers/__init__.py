"""Methods that the paper compares with, one family per file."""
