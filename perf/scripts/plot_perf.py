#!/usr/bin/env python3
"""Shows what moeccl-perf --json has written: time and ratio against size.

    plot_perf.py --output FILE.png JSON...                 a picture; takes matplotlib
    plot_perf.py --table JSON...                           a Markdown table of times, and nothing else
    plot_perf.py --table --against linear JSON...          of how many times faster than one algorithm

Calls out of place are shown. Several files are rows of the picture, or tables one after the other; files joined by commas are one, as
when sizes were measured with different -n. Ratios compare calls of the same
repetition: median, in brackets the smallest and the largest. --against best-mpi (the default for
pictures where MPI was measured) is the fastest of MPI's algorithms at each size, by median.
"""
import argparse
import os
import statistics

import drawing
from tool_json import load_json


# What files that are joined have in common.
SAME = ("collective", "ranksPerNode", "grid", "memory", "mpiVersion", "average")


def load(paths):
    """One report of all of `paths`, which commas separate."""
    joined = None
    for path in paths.split(","):
        report = load_json(path, "moeccl-perf", 1)
        if joined is None:
            joined = report
        elif any(joined.get(key) != report.get(key) for key in SAME):
            raise SystemExit(f"{path} is about something else than {paths.split(',')[0]}")
        else:
            joined["results"] += report["results"]
    types = {result["type"] for result in joined["results"]}
    if len(types) > 1:
        raise SystemExit(f"{paths} has {len(types)} data types; a table or picture shows one")
    return joined


def cells(report):
    """(block, algorithm) -> times in microseconds, one for each repetition; out of place."""
    return {(r["block"], r["algorithm"]): r["timesUs"] for r in report["results"] if not r["inPlace"]}


def keys(report):
    """Blocks and algorithms, in the order of the file."""
    blocks = list(dict.fromkeys(block for block, _ in cells(report)))
    return blocks, list(dict.fromkeys(name for _, name in cells(report)))


def reference(report, block, against):
    """The times of what others are compared with at one size."""
    times = {name: values for (size, name), values in cells(report).items() if size == block}
    if against == "best-mpi":
        candidates = [name for name in times if name.startswith("mpi:")]
    else:
        candidates = [name for name in times if name == against]
    if not candidates:
        raise SystemExit(f"nothing named {against} was measured with blocks of {block} bytes")
    return min((times[name] for name in candidates), key=statistics.median)


def ratios(report, block, name, against):
    times = cells(report)[block, name]
    return [theirs / mine for theirs, mine in zip(reference(report, block, against), times)]


def size_text(size):
    for unit, text in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size and size % unit == 0:
            return f"{size // unit} {text}"
    return f"{size} B"


def print_table(report, against):
    blocks, names = keys(report)
    print("| block | " + " | ".join(names) + " |")
    print("|---:" * (len(names) + 1) + "|")
    for block in blocks:
        row = []
        for name in names:
            if (block, name) not in cells(report):
                row.append("")
                continue
            values = ratios(report, block, name, against) if against else cells(report)[block, name]
            middle, low, high = statistics.median(values), min(values), max(values)
            row.append(f"{middle:.2f} [{low:.2f}, {high:.2f}]" if against
                       else f"{middle:.0f} [{low:.0f}, {high:.0f}]")
        print(f"| {size_text(block)} | " + " | ".join(row) + " |")


def title(paths):
    """What the names of joined files have in common."""
    names = [os.path.splitext(os.path.basename(path))[0] for path in paths.split(",")]
    return os.path.commonprefix(names).rstrip("-")


def plot(reports, against, output):
    pyplot = drawing.pyplot()

    figure, axes = pyplot.subplots(len(reports), 2, figsize=(11, 4 * len(reports)), squeeze=False)
    for (path, report), (left, right) in zip(reports, axes):
        blocks, names = keys(report)
        chosen = against or ("best-mpi" if report["mpiVersion"] else names[0])
        for name in names:
            style = {"linestyle": "--" if name.startswith("mpi:") else "-", "marker": ".", "capsize": 3,
                     "label": name}
            its = [block for block in blocks if (block, name) in cells(report)]
            for axis, rows in ((left, [cells(report)[block, name] for block in its]),
                               (right, [ratios(report, block, name, chosen) for block in its])):
                middle = [statistics.median(row) for row in rows]
                axis.errorbar(its, middle, **style, yerr=[
                    [m - min(row) for m, row in zip(middle, rows)],
                    [max(row) - m for m, row in zip(middle, rows)]])
        left.set_ylabel("microseconds per call")
        right.set_ylabel(f"times faster than {chosen}")
        right.axhline(1, color="gray", linewidth=0.8)
        for axis in (left, right):
            axis.set(xscale="log", yscale="log", xlabel="bytes per block")
            axis.set_xticks(blocks, [size_text(block) for block in blocks], minor=False)
            axis.set_xticks([], minor=True)
            axis.grid(alpha=0.3)
            axis.set_title(f"{report['collective']}, {'+'.join(map(str, report['ranksPerNode']))} ranks: "
                           f"{title(path)}", fontsize=9)
        right.set_yticks(ticks := [1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8], [f"{tick:g}" for tick in ticks])
        right.set_yticks([], minor=True)
        left.legend(fontsize=7)
    figure.tight_layout()
    drawing.save(figure, output)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--output", help="the picture's file")
    what.add_argument("--table", action="store_true")
    parser.add_argument("--against", help="an algorithm, or best-mpi")
    parser.add_argument("json", nargs="+")
    options = parser.parse_args()
    reports = [(path, load(path)) for path in options.json]
    if options.output:
        plot(reports, options.against, options.output)
    for _, report in reports if options.table else []:
        print_table(report, options.against)
        print()


if __name__ == "__main__":
    main()
