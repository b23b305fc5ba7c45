"""Table 6 of the paper, which says how likely the differences between systems are by chance, from its Table 2.

The paper calls it a paired hypothesis test in the title and a chi-squared test in the text, and does not say of which
numbers. A one-sided paired t-test of ACC, over the data sets that two systems both have, gives what is printed for all
pairs of MMDC, GATCluster, CC and IDFD, and for no other pair.
"""

from __future__ import annotations

from scipy.stats import ttest_rel

from twincluster.reproduce.published import P_VALUES, SETS, Published, published
from twincluster.reproduce.trainings import Asked
from twincluster.reproduce.writing import short, write_table

DIGITS = 4  # as printed


def p_values(asked: Asked) -> str:
    rows = {row.name: row for row in published(2)}
    names = list(P_VALUES)
    lines, agreeing = [], 0
    for first, printed in P_VALUES.items():
        others = names[len(names) - len(printed) :]
        found = [p_value(rows[first], rows[second]) for second in others]
        agreeing += sum(round(p, DIGITS) == told for p, told in zip(found, printed, strict=True))
        cells = [f"{short(p, DIGITS)} ({short(told, DIGITS)})" for p, told in zip(found, printed, strict=True)]
        lines.append([first, *[""] * (len(names) - len(cells)), *cells])
    pairs = sum(map(len, P_VALUES.values()))
    title = f"p-values found from Table 2 (printed): {agreeing} of {pairs} agree in all {DIGITS} digits"
    return write_table(asked, "table6", title, [("", *names), *lines])


def p_value(first: Published, second: Published) -> float:
    """Of the difference in ACC."""
    by_set = {name: [row.scores.get(name, (None,))[0] for row in (first, second)] for name in SETS}
    pairs = [pair for pair in by_set.values() if None not in pair]
    return float(ttest_rel(*zip(*pairs, strict=True)).pvalue) / 2
