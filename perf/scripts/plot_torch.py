#!/usr/bin/env python3
"""Shows what tests/torch/compare.py --csv has written of DeepSpeed's MoE layer, before and after.

    plot_torch.py --output FILE.png CSV

A picture for each cluster: milliseconds of a forward and a backward pass with DeepSpeed on Gloo, with DeepSpeed on
moeccl, and with moeccl.torch.MoE in the layer's place. Bars say how many times as fast as on Gloo. It takes matplotlib.
"""
import argparse
import csv

import drawing

KINDS = {"gloo": ("DeepSpeed on Gloo", "tab:gray"), "moeccl": ("DeepSpeed on moeccl", "tab:orange"),
         "layer": ("moeccl.torch.MoE", "tab:blue")}


def load(path):
    """cluster -> case -> by -> row, of the cases that Gloo can run."""
    clusters = {}
    try:
        with open(path, newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if row["part"] == "layers":
                    clusters.setdefault(row["cluster"], {}).setdefault(row["case"], {})[row["by"]] = row
    except (OSError, KeyError) as error:
        raise SystemExit(f"cannot read {path}: {error}; tests/torch/compare.py layers --csv writes it") from None
    if not clusters:
        raise SystemExit(f"{path} has no layers; tests/torch/compare.py layers --csv adds them")
    return {cluster: {case: by for case, by in cases.items() if "gloo" in by} for cluster, cases in clusters.items()}


def draw(axis, cluster, cases):
    for place, (kind, (name, color)) in enumerate(KINDS.items()):
        times = [float(by[kind]["ms"]) for by in cases.values()]
        heights = [case + 0.28 * (place - 1) for case in range(len(cases))]
        axis.barh(heights, times, 0.28, color=color, label=name)
        for height, time, by in zip(heights, times, cases.values()):
            ratio = by[kind]["faster_median"]
            axis.text(time, height, f" {float(ratio):.1f} times as fast" if ratio else "", va="center", fontsize=7)
    axis.set_yticks(range(len(cases)), cases)
    axis.invert_yaxis()
    shape, _, uplink = cluster.partition("-")
    axis.set(title=f"{shape.replace('x', ' nodes of ')} ranks, {drawing.uplink_text(uplink)}", xlabel="ms of a forward and a backward pass")
    axis.set_xlim(right=1.25 * axis.get_xlim()[1])
    axis.legend(fontsize=7, loc="lower right")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", metavar="CSV")
    parser.add_argument("--output", required=True, metavar="FILE.png")
    options = parser.parse_args()
    clusters = load(options.csv)
    figure, axes = drawing.pyplot().subplots(1, len(clusters), figsize=(6.5 * len(clusters), 4), squeeze=False)
    for axis, (cluster, cases) in zip(axes[0], clusters.items()):
        draw(axis, cluster, cases)
    figure.tight_layout()
    drawing.save(figure, options.output)


if __name__ == "__main__":
    main()
