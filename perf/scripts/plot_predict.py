#!/usr/bin/env python3
"""Draws what moeccl-plan predict says of several clusters or layers.

    plot_predict.py --output out.png RANKING.json...

Each file is from moeccl-plan predict --json. A column is what differs, all else being alike: the number of nodes, with as many
experts or with experts in proportion; k f, choices per token times the capacity factor; N_MP; N_ESP. A file of several
N_MP counts as one of each, and each has all N_ESP. Above: how many times faster than the baseline S1 and S2 are, each on
its best grid. Below: the time of S2's exchanges against S1's, on the grid that is the best. Above 1, S1 is faster.
"""
import argparse
import collections
import math
import sys

import drawing
from tool_json import load_json

AXES = {"nodes": "nodes", "kf": "k f", "mp": "N_MP"}
SCHEDULES = {"S1": "-", "S2": "--"}

Case = collections.namedtuple("Case", [*AXES, "oversubscription", "choices"])


def cases_of(ranking):
    """One for each N_MP, choices best first."""
    layer, choices = ranking["layer"], collections.defaultdict(list)
    for choice in ranking["choices"]:
        choices[choice["grid"]["nMp"]].append(choice)
    return [Case(len(ranking["ranksPerNode"]), layer["topK"] * layer["capacityFactor"], mp, ranking["oversubscription"], mine)
            for mp, mine in choices.items()]


def experts_per_rank(ranking):
    return ranking["layer"]["experts"] / sum(ranking["ranksPerNode"])


def question(ranking, per_rank):
    """What no two files of one picture may differ in. `per_rank`: experts in proportion to ranks."""
    layer = ranking["layer"]
    return {"ranks per node": sorted(set(ranking["ranksPerNode"])),
            "experts per rank" if per_rank else "experts": experts_per_rank(ranking) if per_rank else layer["experts"],
            **{name: layer[name] for name in ("tokens", "embedding", "hidden", "capacityGroups")},
            **{name: ranking.get(name) for name in ("nodesPerSwitch", "links", "networkGbits", "profile", "pass")}}


def gather(files):
    """The cases of files, by path; ends the program where they are not alike."""
    (first, one), *others = files.items()
    per_rank = len({experts_per_rank(ranking) for ranking in files.values()}) == 1
    found = {}
    for path, ranking in files.items():
        for (name, value), other in zip(question(one, per_rank).items(), question(ranking, per_rank).values()):
            if value != other:
                sys.exit(f"{first} and {path} differ in {name}, {value} and {other}; they may differ in nodes, k f, N_MP "
                         "and oversubscription, and experts in proportion to ranks")
        for case in cases_of(ranking):
            path_before, before = found.setdefault(case[:-1], (path, case))
            if before != case:
                sys.exit(f"{path_before} and {path} say two things of {case.nodes} nodes, k f {case.kf:g}, N_MP {case.mp} and "
                         f"oversubscription {case.oversubscription:g}; give one of them")
    return [case for _, case in found.values()]


def most_common(values, limit=math.inf):
    """Of several, the largest up to `limit`."""
    counts = collections.Counter(values)
    return max(counts, key=lambda value: (counts[value], value <= limit, value))


def columns(cases, ranks_per_node):
    """What differs, with the cases that are alike but for that: (label, what they have in common, (value, case)...)."""
    common = {axis: most_common([getattr(case, axis) for case in cases], ranks_per_node if axis == "mp" else math.inf)
              for axis in AXES}

    def text(but=None):
        return ", ".join(f"{label} {common[axis]:g}" for axis, label in AXES.items() if axis != but)

    found = []
    for axis, label in AXES.items():
        points = [(getattr(case, axis), case) for case in cases
                  if all(getattr(case, other) == value for other, value in common.items() if other != axis)]
        found.append((label, text(axis), points))
    alike = [case for case in cases if all(getattr(case, axis) == value for axis, value in common.items())]
    sizes = {choice["grid"]["nEsp"] for case in alike for choice in case.choices}
    found.append(("N_ESP", text(), [
        (esp, case._replace(choices=[choice for choice in case.choices if choice["grid"]["nEsp"] == esp]))
        for esp in sizes for case in alike]))
    return [column for column in found if len({value for value, _ in column[2]}) > 1]


def speedup(case, schedule):
    best = {}
    for choice in case.choices:
        best[choice["schedule"]] = min(best.get(choice["schedule"], math.inf), choice["seconds"])
    return best["baseline"] / best[schedule] if best.get(schedule) and "baseline" in best else None


def s2_to_s1(case):
    grid = case.choices[0]["grid"] if case.choices else None
    times = {choice["schedule"]: choice["communication"] for choice in case.choices if choice["grid"] == grid}
    return times["S2"] / times["S1"] if times.get("S1") and "S2" in times else None


def draw_line(axis, points, **style):
    known = [(x, y) for x, y in points if y is not None]
    axis.plot([x for x, _ in known], [y for _, y in known], markersize=4, **style)


def plot(pyplot, shown):
    figure, axes = pyplot.subplots(2, len(shown), figsize=(5.2 * len(shown), 6.4), squeeze=False)
    every = sorted({case.oversubscription for _, _, points in shown for _, case in points})
    for (label, common, points), (above, below) in zip(shown, axes.T):
        points = sorted(points, key=lambda point: point[0])
        for number, times in enumerate(every):
            mine = [(x, case) for x, case in points if case.oversubscription == times]
            style = {"color": f"C{number % 10}", "marker": "osD^v"[number % 5]}
            for schedule, line in SCHEDULES.items():
                draw_line(above, [(x, speedup(case, schedule)) for x, case in mine], linestyle=line,
                          label=f"{schedule}, oversubscription {times:g}", **style)
            draw_line(below, [(x, s2_to_s1(case)) for x, case in mine], **style)
        below.axhline(1, color="gray", linewidth=0.8)
        for axis in (above, below):
            axis.set_xscale("log", base=2)
            ticks = sorted({x for x, _ in points})
            axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axis.set_xticks([], minor=True)
            axis.grid(alpha=0.3)
            axis.set_ylim(bottom=0)
        above.set_title(common, fontsize=10)
        below.set_xlabel(label)
    axes[0][0].set_ylabel("baseline's time / schedule's")
    axes[1][0].set_ylabel("exchanges: S2's time / S1's")
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    return figure


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True, help="the picture, PNG")
    parser.add_argument("rankings", nargs="+", metavar="RANKING.json")
    options = parser.parse_args()
    files = {path: load_json(path, "moeccl-plan-predict", 1) for path in options.rankings}
    shown = columns(gather(files), max(next(iter(files.values()))["ranksPerNode"]))
    if not shown:
        sys.exit("nothing to draw: the files have one number of nodes, one k f, one N_MP and one N_ESP; give several of any")
    drawing.save(plot(drawing.pyplot(), shown), options.output)


if __name__ == "__main__":
    main()
