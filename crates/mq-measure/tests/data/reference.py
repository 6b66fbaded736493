"""Makes reference.json, what tests/it/statistics.rs compares with: SciPy, NumPy, Matplotlib and
scikit-posthocs on data of this script's own. Run it with these installed; it prints the file."""

import itertools
import json
import random

import matplotlib
import numpy
import scikit_posthocs
import scipy
from matplotlib import cbook
from scipy import stats

random.seed(20211)


def groups():
    """Groups of values as measurements have them: long tails, ties, different sizes."""
    tail = lambda n, scale: [round(25 + random.paretovariate(2.5) * scale, 3) for _ in range(n)]
    tied = lambda n, high: [float(random.randint(1, high)) for _ in range(n)]
    normal = lambda n, mean: [random.gauss(mean, 3) for _ in range(n)]
    yield "long tails", [tail(40, 2), tail(50, 3), tail(30, 2.5)]
    yield "ties", [tied(25, 6), tied(25, 7), tied(30, 9), tied(12, 6)]
    yield "far apart", [normal(20, 10), normal(20, 30)]
    yield "alike", [normal(50, 10), normal(50, 10), normal(50, 10)]
    yield "few", [[1.0, 4.0, 2.5], [3.0, 9.0]]


def two(a, b):
    u, p = stats.mannwhitneyu(a, b, method="asymptotic")
    more = sum((x > y) - (x < y) for x in a for y in b)
    return {"u": u, "p": p, "delta": more / (len(a) * len(b))}


def box(values):
    tukey = cbook.boxplot_stats(values)[0]
    low, high = numpy.percentile(values, [5, 95])
    keys = {"q1": "q1", "median": "med", "q3": "q3", "low": "whislo", "high": "whishi"}
    return {
        "tukey": {ours: float(tukey[theirs]) for ours, theirs in keys.items()},
        "tukey_outliers": sorted(float(x) for x in tukey["fliers"]),
        "p5": float(low),
        "p95": float(high),
    }


def case(name, data):
    h, p = stats.kruskal(*data)
    dunn = lambda adjust: scikit_posthocs.posthoc_dunn(data, p_adjust=adjust)
    plain, holm = dunn(None), dunn("holm")
    pairs = itertools.combinations(range(len(data)), 2)
    return {
        "name": name,
        "groups": data,
        "kruskal_wallis": {"h": h, "p": p},
        "pairs": [
            {
                "a": a,
                "b": b,
                "dunn_p": float(plain.iloc[a, b]),
                "dunn_holm_p": float(holm.iloc[a, b]),
                "mann_whitney": two(data[a], data[b]),
            }
            for a, b in pairs
        ],
        "boxes": [box(values) for values in data],
    }


print(json.dumps({
    "made_with": {
        "scipy": scipy.__version__,
        "numpy": numpy.__version__,
        "matplotlib": matplotlib.__version__,
        "scikit-posthocs": scikit_posthocs.__version__,
    },
    "cases": [case(name, data) for name, data in groups()],
}, indent=1))
