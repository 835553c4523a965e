#!/usr/bin/env python3
"""Draws what train --log has written: loss, dropped choices and load against steps.

    plot_loss.py --output FILE.png CSV...         takes matplotlib

A thin line is each step, a thick one the mean of the last --mean (20) steps. Each file is one colour, named
like it.
"""
import argparse
import csv
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..", "perf", "scripts"))
import drawing  # noqa: E402

COLUMNS = {"loss": "loss, nats per character", "dropped": "share of choices dropped",
           "imbalance": "busiest expert, times the mean"}


def load(path):
    """Column -> numbers, one for each step."""
    with open(path, encoding="utf-8", newline="") as file:
        # A run that was killed, or a full disk, leaves a cut line behind.
        rows = [row for row in csv.DictReader(file) if None not in row.values()]
    if not rows or not {"step", *COLUMNS} <= rows[0].keys():
        raise SystemExit(f"{path} is no CSV of train --log, or has no steps")
    return {name: [float(row[name]) for row in rows] for name in ("step", *COLUMNS)}


def running_mean(values, count):
    return [sum(values[max(0, i + 1 - count):i + 1]) / min(count, i + 1) for i in range(len(values))]


def plot(paths, count, output):
    pyplot = drawing.pyplot()

    figure, axes = pyplot.subplots(1, len(COLUMNS), figsize=(5 * len(COLUMNS), 4))
    for number, path in enumerate(paths):
        curve = load(path)
        for axis, (name, label) in zip(axes, COLUMNS.items()):
            colour = f"C{number}"
            axis.plot(curve["step"], curve[name], color=colour, linewidth=0.5, alpha=0.4)
            axis.plot(curve["step"], running_mean(curve[name], count), color=colour,
                      label=os.path.splitext(os.path.basename(path))[0])
            axis.set(xlabel="step", ylabel=label)
            axis.grid(alpha=0.3)
    axes[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(output, dpi=80)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True, help="the picture's file")
    parser.add_argument("--mean", type=int, default=20, help="steps of the running mean")
    parser.add_argument("csv", nargs="+")
    options = parser.parse_args()
    if options.mean < 1:
        parser.error(f"--mean {options.mean} must be 1 or more")
    plot(options.csv, options.mean, options.output)


if __name__ == "__main__":
    main()
