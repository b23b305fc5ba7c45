"""Run the command line with `python -m twincluster`, for a source checkout without the installed script."""

import sys

from twincluster.cli import main

if __name__ == "__main__":
    sys.exit(main())
