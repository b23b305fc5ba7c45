"""`python -m attacks [NAME ...] --seed 0 --scale 1`: attack twincluster; a line for every fault, then figures as JSON.

The exit status is 1 where there was a fault. With the seed in a line, the same attack is made again.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import sys
import time

from attacks.workplace import workplace

NAMES = ("folders", "kills", "images", "requests", "interrupts", "pairs", "soak")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m attacks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all when left out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", type=float, default=1.0, help="0.01 takes minutes, 1 takes hours")
    given = parser.parse_args()
    if unknown := set(given.names) - set(NAMES):
        parser.error(f"no attack {unknown.pop()}: choose from {', '.join(NAMES)}")
    faults = 0
    for name in given.names or NAMES:
        module = importlib.import_module(f"attacks.{name}")
        began = time.monotonic()
        with workplace():
            figures = module.attack(given.seed, max(1, math.ceil(module.COUNT * given.scale)), _tell)
        figures["minutes"] = round((time.monotonic() - began) / 60, 1)
        faults += sum(value for what, value in figures.items() if what.startswith("faults"))
        print(json.dumps({"attack": name, "seed": given.seed, **figures}), flush=True)
    return int(faults > 0)


def _tell(fault: str) -> None:
    print(fault, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
