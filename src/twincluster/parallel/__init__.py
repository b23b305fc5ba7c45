"""One training in several processes, or in several parts of a batch, as if it were one."""
