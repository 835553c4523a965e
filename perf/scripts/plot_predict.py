#!/usr/bin/env python3
"""Draws what moeccl-predict says of several clusters or layers.

    plot_predict.py --output out.png RANKING.json...

Each file is from moeccl-predict --json. A line is one oversubscription. A column is what differs between files: the
number of nodes, or k f, choices per token times the capacity factor. Above: how many times faster than the baseline the
fastest schedule is, each on its best grid. Below: the time of S2's exchanges against S1's, on the grid that is the best.
Above 1, S1 is faster.
"""
import argparse
import collections

import drawing
from tool_json import load_json


def nodes(ranking):
    return len(ranking["ranksPerNode"])


def kf(ranking):
    return ranking["layer"]["topK"] * ranking["layer"]["capacityFactor"]


def speedup(ranking):
    rates = collections.defaultdict(float)
    for choice in ranking["choices"]:
        rates[choice["schedule"]] = max(rates[choice["schedule"]], choice["tokensPerSecond"])
    return max(rates.values()) / rates["baseline"] if rates["baseline"] else None


def s2_to_s1(ranking):
    grid = ranking["choices"][0]["grid"]
    times = {choice["schedule"]: choice["communication"] for choice in ranking["choices"] if choice["grid"] == grid}
    return times["S2"] / times["S1"] if times.get("S1") and "S2" in times else None


def columns(rankings):
    """What differs, with the files that are alike but for that: (label, of a file, files)."""
    found = []
    for label, of, other in (("nodes", nodes, kf), ("k f", kf, nodes)):
        common = collections.Counter(other(ranking) for ranking in rankings).most_common(1)[0][0]
        alike = [ranking for ranking in rankings if other(ranking) == common]
        if len({of(ranking) for ranking in alike}) > 1:
            found.append((label, of, alike))
    return found


def plot(pyplot, shown):
    figure, axes = pyplot.subplots(2, len(shown), figsize=(5.2 * len(shown), 6.4), squeeze=False)
    for (label, of, rankings), (above, below) in zip(shown, axes.T):
        for number, times in enumerate(sorted({ranking["oversubscription"] for ranking in rankings})):
            mine = sorted((ranking for ranking in rankings if ranking["oversubscription"] == times), key=of)
            for axis, value in ((above, speedup), (below, s2_to_s1)):
                points = [(of(ranking), value(ranking)) for ranking in mine if value(ranking) is not None]
                axis.plot([x for x, _ in points], [y for _, y in points], marker="osD^v"[number % 5], markersize=4,
                          label=f"oversubscription {times:g}")
        below.axhline(1, color="gray", linewidth=0.8)
        for axis in (above, below):
            axis.set_xscale("log", base=2)
            ticks = sorted({of(ranking) for ranking in rankings})
            axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axis.set_xticks([], minor=True)
            axis.grid(alpha=0.3)
            axis.set_ylim(bottom=0)
        below.set_xlabel(label)
    axes[0][0].set_ylabel("baseline's time / fastest schedule's")
    axes[1][0].set_ylabel("exchanges: S2's time / S1's")
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    return figure


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True, help="the picture, PNG")
    parser.add_argument("rankings", nargs="+", metavar="RANKING.json")
    options = parser.parse_args()
    shown = columns([load_json(path, "moeccl-predict", 1) for path in options.rankings])
    if not shown:
        raise SystemExit("nothing to draw: the files have one number of nodes and one k f; give several of either")
    drawing.save(plot(drawing.pyplot(), shown), options.output)


if __name__ == "__main__":
    main()
