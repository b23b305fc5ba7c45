"""`python -m twincluster` is the command line without the installed script, for a source checkout on a bare host."""

import sys

from twincluster.cli import main

if __name__ == "__main__":
    sys.exit(main())
