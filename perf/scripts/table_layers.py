#!/usr/bin/env python3
"""Tables, in Markdown, of what moeccl-layers --json has written.

    table_layers.py JSON...             choices and predictions, other rules, speedups beside Parm's table IV
    table_layers.py --misses JSON...    and each layer for which the choice was not as good as the best
    table_layers.py --csv FILE JSON...  one row per layer: times, predictions and regrets

Beside what moeccl-layers itself prints:

not slower: layers in which the choice is the best candidate, or its turns are not slower than that one's by a rank-sum
test (one-sided, 1 %, divided by the number of candidates with as many turns, since the best of them is the luckiest).
Stricter than "as good" where there are many turns.
floor: who chooses baseline, S1 or S2 by every other turn loses this in the turns between, in the mean and at worst: what
chance alone makes of regrets, with half of the turns.
by the best: the automatic choice's mean speedup over the highest of S1's, S2's and the baseline's.
"""
import argparse
import csv
import itertools
import math
import os
import statistics

from plot_layers import load, medians

SCHEDULES = ("baseline", "S1", "S2", "PPMoE")
SLOWER = 0.01  # of chance, for what is not


def percent(share, digits=1):
    return f"{100 * share:.{0 if share >= 1 else digits}f} %"


def table(head, rows):
    numbers = ["---" if column == 0 else "---:" for column in range(len(head))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, numbers, *rows)) + "\n"


def turns_of(layer, name):
    return next(candidate["seconds"] for candidate in layer["candidates"] if candidate["name"] == name)


def chance_of_slower(one, other):
    """That turns of equal candidates differ at least so much, `one` being the slower (Mann and Whitney)."""
    slower = sum((mine > its) + (mine == its) / 2 for mine, its in itertools.product(one, other))
    spread = math.sqrt(len(one) * len(other) * (len(one) + len(other) + 1) / 12)
    return math.erfc((slower - len(one) * len(other) / 2) / spread / math.sqrt(2)) / 2


def not_slower(layer):
    chosen = layer["rules"]["model"]["candidate"]
    same = {candidate["name"]: candidate["timedAs"] for candidate in layer["candidates"]}
    turns, best = turns_of(layer, chosen), turns_of(layer, layer["best"])
    rivals = sum(candidate["timedAs"] == candidate["name"] and len(candidate["seconds"]) == len(best)
                 for candidate in layer["candidates"]) - 1
    return same[chosen] == same[layer["best"]] or chance_of_slower(turns, best) >= SLOWER / max(rivals, 1)


def floor(report):
    """The mean and the worst; nothing where there is but one turn."""
    if report["repetitions"] < 2:
        return []
    losses = []
    for layer in report["layers"]:
        turns = {candidate["name"]: candidate["seconds"] for candidate in layer["candidates"]}
        for half in (0, 1):
            chosen = min((name for name in SCHEDULES if name in turns),
                         key=lambda name: statistics.median(turns[name][half::2]))
            best = min(statistics.median(seconds[1 - half::2]) for seconds in turns.values() if len(seconds) > 1)
            losses.append(statistics.median(turns[chosen][1 - half::2]) / best - 1)
    return statistics.mean(losses), max(losses)


def choices(reports):
    schedules = [name for name in SCHEDULES if any(name in report["predictionErrors"] for _, report in reports)]
    head = ["cluster", "layers", "mean regret", "worst", "right schedule", "as good as the best", "not slower", "floor"]
    rows = []
    for name, report in reports:
        model, errors = report["rules"]["model"], report["predictionErrors"]
        rows.append([name, str(model["layers"]), percent(model["meanRegret"]), percent(model["worstRegret"]),
                     percent(model["right"], 0), percent(model["withinNoise"], 0),
                     percent(statistics.mean(map(not_slower, report["layers"])), 0),
                     ", ".join(map(percent, floor(report))) or "-"]
                    + [percent(errors[schedule]["median"]) if schedule in errors else "-" for schedule in schedules])
    return table(head + [f"prediction error: {schedule}" for schedule in schedules], rows)


def rules(reports):
    rows = []
    for rule in dict.fromkeys(rule for _, report in reports for rule in report["rules"]):
        rows.append([rule])
        for _, report in reports:
            its = report["rules"].get(rule)
            rows[-1] += [percent(its["meanRegret"]), percent(its["worstRegret"]),
                         percent(its["withinNoise"], 0)] if its else ["-"] * 3
    head = [text for name, _ in reports for text in (f"{name}: mean", "worst", "as good")]
    return table(["rule"] + head, rows)


def speedups(reports):
    rows = {}
    for column, (_, report) in enumerate(reports):
        for row in report["speedups"]:
            key = (row["nMp"], row["nEsp"], row["schedule"])
            cells = rows.setdefault(key, (["-"] * len(reports), row))[0]
            cells[column] = "-" if row["measured"] is None else f"{row['measured']:.2f}"
    return table(["N_MP, N_ESP", "schedule"] + [name for name, _ in reports] + ["Parm, A", "Parm, B, both columns"],
                 [[f"{mp}, {esp}", schedule, *cells, *(
                     "-" if row[keys[0]] is None else ", ".join(f"{row[key]:.2f}" for key in keys)
                     for keys in (("paperA",), ("paperBFirst", "paperBSecond")))]
                  for (mp, esp, schedule), (cells, row) in sorted(rows.items(), key=lambda item: item[0][:2])
                  if set(cells) != {"-"}])


def pairs(report):
    """By N_MP and N_ESP: is automatic the fastest?"""
    groups = {}
    for layer in report["layers"]:
        groups.setdefault((layer["nMp"], layer["nEsp"]), []).append(layer)
    rows = []
    for (mp, esp), layers in sorted(groups.items()):
        def mean_speedup(name, layers=layers):
            return statistics.mean(medians(layer)["baseline"] / medians(layer)[name] for layer in layers)
        fixed = {name: mean_speedup(name) for name in ("baseline", "S1", "S2")}
        automatic = mean_speedup("auto")
        rows.append([f"{mp}, {esp}", str(len(layers)), *(f"{fixed[name]:.2f}" for name in ("S1", "S2")),
                     f"{automatic:.2f}", f"{automatic / max(fixed.values()):.3f}",
                     percent(statistics.median(layer["noise"] for layer in layers))])
    return table(["N_MP, N_ESP", "layers", "S1", "S2", "automatic", "by the best", "noise"], rows)


def misses(report):
    rows = []
    for layer in report["layers"]:
        verdict = layer["rules"]["model"]
        if verdict["withinNoise"]:
            continue
        times = medians(layer)
        turns = turns_of(layer, verdict["candidate"]), turns_of(layer, layer["best"])
        rows.append([f"{layer['nMp']}, {layer['nEsp']}", f"{1e3 * times[layer['best']]:.2f}", layer["best"],
                     f"{1e3 * times[verdict['candidate']]:.2f}", layer["predictions"]["model"][0]["schedule"] + ": " +
                     layer["predictions"]["model"][0]["exchanges"], percent(verdict["regret"]),
                     percent(layer["noise"]), f"{chance_of_slower(*turns):.0e}"])
    return table(["N_MP, N_ESP", "best, ms", "is", "choice, ms", "is", "regret", "noise", "chance"], rows)


def write_csv(reports, path):
    """Milliseconds are medians. A regret is 0.01 where the rule's choice takes 1 % longer than the fastest candidate."""
    regrets = ("model", "Algorithm 1, published", "always S1", "always S2", "always baseline")
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["cluster", "pass", "n_mp", "n_esp", "noise", "best", "chosen",
                         *(f"{name}_{kind}_ms" for name in SCHEDULES[:3] for kind in ("measured", "predicted")), "auto_measured_ms",
                         *("regret_" + rule.replace(",", "").replace(" ", "_") for rule in regrets)])
        for name, report in reports:
            for layer in report["layers"]:
                measured = medians(layer)
                predicted = {choice["schedule"]: choice["seconds"] for choice in layer["predictions"]["model"]}
                times = [source.get(schedule) for schedule in SCHEDULES[:3] for source in (measured, predicted)]
                its = [layer["rules"].get(rule, {}).get("regret") for rule in regrets]
                writer.writerow([name, report["pass"], layer["nMp"], layer["nEsp"], f"{layer['noise']:.4f}", layer["best"],
                                 layer["rules"]["model"]["candidate"],
                                 *("" if time is None else f"{1e3 * time:.4g}" for time in [*times, measured.get("auto")]),
                                 *("" if regret is None else f"{regret:.4f}" for regret in its)])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--misses", action="store_true", help="also layers that are not as good as the best")
    parser.add_argument("--csv", metavar="FILE", help="write one row per layer instead")
    parser.add_argument("json", nargs="+")
    options = parser.parse_args()
    reports = [(os.path.splitext(os.path.basename(path))[0], load(path)) for path in options.json]
    if options.csv:
        write_csv(reports, options.csv)
        return
    print("\n".join((choices(reports), rules(reports), speedups(reports))))
    for name, report in reports:
        noise = statistics.median(layer["noise"] for layer in report["layers"])
        print(f"{name}, noise {percent(noise)} in the median layer; mean speedups over the baseline:\n")
        print(pairs(report))
        if options.misses:
            print(f"{name}, not as good as the best:\n")
            print(misses(report))


if __name__ == "__main__":
    main()
