"""`python -m benchmarks NAME`: run one of the benchmarks; without a name they are listed."""

import os
import sys

from benchmarks import commands
from twincluster.cli.exits import status_of


def main(words: list[str] | None = None) -> int:
    """Run a benchmark and return the exit status, as `twincluster` does."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch loads
    return status_of(lambda: commands(words, exit_on_error=False, print_error=False, result_action="return_value"))


if __name__ == "__main__":
    sys.exit(main())
