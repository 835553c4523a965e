#!/usr/bin/env python3
"""Shows what moeccl-layers --json has written: regrets, predictions and Parm's table IV.

    plot_layers.py --output FILE.png JSON...

Each file is a row of three pictures. Left: the regret of every rule, layers in the order of their regret; the
lower the curve the better the rule. Middle: the model's prediction of each schedule against the measured
time, with a band of 10 %. Right: mean speedups over the baseline, the paper's two testbeds beside them.
It takes matplotlib.
"""
import argparse
import os
import statistics

import drawing
from tool_json import load_json

COLORS = {"baseline": "tab:gray", "S1": "tab:blue", "S2": "tab:orange", "PPMoE": "tab:green", "auto": "tab:red"}
RULE_STYLES = {"model": {"color": "tab:red", "linewidth": 2.5},
               "Algorithm 1, published": {"color": "tab:purple", "linestyle": "--"},
               "Algorithm 1, corrected": {"color": "tab:pink", "linestyle": ":", "linewidth": 2.5}}


def load(path):
    report = load_json(path, "moeccl-layers", 2)
    if not report["layers"]:
        raise SystemExit(f"{path} holds no layer that was measured")
    return report


def medians(layer):
    return {candidate["name"]: statistics.median(candidate["seconds"]) for candidate in layer["candidates"]}


def plot_regrets(axis, report):
    for rule, summary in report["rules"].items():
        regrets = sorted(100 * layer["rules"][rule]["regret"] for layer in report["layers"] if rule in layer["rules"])
        style = RULE_STYLES.get(rule) or {"color": COLORS.get(rule.removeprefix("always "))}
        shares = [100 * (i + 0.5) / len(regrets) for i in range(len(regrets))]
        axis.plot(shares, regrets, marker=".", markersize=4, **style,
                  label=f"{rule}: {100 * summary['meanRegret']:.1f} % in the mean"
                  + (f" of {len(regrets)} layers" if len(regrets) < len(report["layers"]) else ""))
    noise = 100 * statistics.median(layer["noise"] for layer in report["layers"])
    axis.axhspan(0, noise, color="gray", alpha=0.15, label=f"noise: {noise:.1f} %")
    axis.set_yscale("symlog", linthresh=10)
    worst = max(100 * summary["worstRegret"] for summary in report["rules"].values())
    axis.set_ylim(0, 20 * max(worst, 10))  # room for the legend
    ticks = [tick for tick in (0, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000) if tick <= 2 * max(worst, 10)]
    axis.set_yticks(ticks, [str(tick) for tick in ticks])
    axis.set_yticks([], minor=True)
    axis.set(xlim=(0, 100), xlabel="% of the layers", ylabel="regret, %", title="regret of each rule")
    axis.legend(fontsize=7, loc="upper left")


def plot_predictions(axis, report):
    everything = []
    for schedule, errors in report["predictionErrors"].items():
        points = [(medians(layer)[schedule], choice["seconds"]) for layer in report["layers"]
                  for choice in layer["predictions"]["model"] if choice["schedule"] == schedule
                  and schedule in medians(layer)]
        everything += [1e3 * time for point in points for time in point]
        axis.scatter([1e3 * measured for measured, _ in points], [1e3 * predicted for _, predicted in points], s=16,
                     color=COLORS.get(schedule), alpha=0.8, label=f"{schedule}: off by {100 * errors['median']:.0f} % in "
                     f"the median, 90 % by up to {100 * errors['ninthDecile']:.0f} %")
    ends = [min(everything, default=1) / 1.5, max(everything, default=1) * 1.5]
    axis.plot(ends, ends, color="gray", linewidth=0.8)
    axis.fill_between(ends, [0.9 * end for end in ends], [1.1 * end for end in ends], color="gray", alpha=0.25,
                      label="within 10 %")
    axis.set(xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel="measured, ms", ylabel="predicted, ms",
             title="the model's predictions")
    axis.legend(fontsize=7, loc="upper left")


def plot_speedups(axis, report):
    groups = list(dict.fromkeys((row["nMp"], row["nEsp"]) for row in report["speedups"]))
    schedules = [name for name in ("S1", "S2", "auto")
                 if any(row["schedule"] == name and row["measured"] for row in report["speedups"])]
    width = 0.8 / max(len(schedules), 1)
    papers = (("paperA", "o", "paper, testbed A"), ("paperBFirst", "^", "paper, B, first column"),
              ("paperBSecond", "v", "paper, B, second column"))
    mark = {"color": "black", "markerfacecolor": "none", "markersize": 5, "linestyle": ""}
    for row in report["speedups"]:
        if row["schedule"] not in schedules or row["measured"] is None:
            continue
        x = groups.index((row["nMp"], row["nEsp"])) - 0.4 + (schedules.index(row["schedule"]) + 0.5) * width
        axis.bar(x, row["measured"], 0.9 * width, color=COLORS[row["schedule"]], alpha=0.7)
        for key, marker, _ in papers:
            if row[key] is not None:
                axis.plot(x, row[key], marker=marker, **mark)
    for name in schedules:
        axis.bar(0, 0, color=COLORS[name], alpha=0.7, label=f"{name}, measured")
    if any(row["paperA"] for row in report["speedups"]):
        for _, marker, text in papers:
            axis.plot([], [], marker=marker, **mark, label=text)
    axis.axhline(1, color="gray", linewidth=0.8)
    axis.set_xticks(range(len(groups)), [f"{mp}, {esp}" for mp, esp in groups])
    axis.set(xlabel="N_MP, N_ESP", ylabel="times faster than the baseline", title="Parm's table IV (auto: \"Parm\")")
    axis.set_ylim(top=1.35 * axis.get_ylim()[1])  # room for the legend
    axis.legend(fontsize=7, ncols=2, loc="upper left")


def plot(reports, output):
    pyplot = drawing.pyplot()

    figure = pyplot.figure(figsize=(16, 5 * len(reports)), layout="constrained")
    for part, (path, report) in zip(figure.subfigures(len(reports), 1, squeeze=False)[:, 0], reports):
        name = os.path.splitext(os.path.basename(path))[0]
        part.suptitle(f"{name}: {len(report['layers'])} layers of table III, L, M and H divided by {report['scale']}, "
                      f"{'+'.join(map(str, report['ranksPerNode']))} ranks, "
                      f"{'forward and backward' if report['pass'] == 'both' else 'forward'}"
                      + (f", {report['note']}" if report["note"] else ""), fontsize=10)
        for axis, draw in zip(part.subplots(1, 3), (plot_regrets, plot_predictions, plot_speedups)):
            draw(axis, report)
            axis.title.set_fontsize(9)
            axis.grid(alpha=0.3)
            axis.set_axisbelow(True)
    drawing.save(figure, output)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True, help="the picture's file")
    parser.add_argument("json", nargs="+")
    options = parser.parse_args()
    plot([(path, load(path)) for path in options.json], options.output)


if __name__ == "__main__":
    main()
