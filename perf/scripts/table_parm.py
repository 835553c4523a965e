#!/usr/bin/env python3
"""Parm's table IV as moeccl-plan predict has it, beside what was published; in Markdown.

    table_parm.py             all 162 layers of table III for each N_MP and N_ESP
    table_parm.py --layers 6  some of them

Speedups are means over layers of the baseline's time over S1's, S2's, and that of the faster of the two (Parm), forward
and backward. There is an expert in each EP group's position, as in table V, and k is 2. The links are those of a profile
without samples: in a node such that MP-AllGather takes what Parm's fit says, between nodes the network's; all else, and
local work, is typical of GPUs on PCIe.
"""
import argparse
import concurrent.futures
import csv
import itertools
import json
import os
import statistics
import subprocess
import tempfile

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "plan", "parm")
GRIDS = tuple(itertools.product((2, 4), (2, 4)))  # N_MP, N_ESP
SCHEDULES = ("S1", "S2", "Parm")
# B, L, M / N_ESP, H / N_ESP, f
LAYERS = tuple(itertools.product((2, 4, 8), (512, 1024, 2048), (1024, 2048, 4096), (1024, 2048, 4096), (1.2, 2.4)))
STRIDE = 61  # has no divisor in common with their number
# Typical of GPUs on PCIe.
PCIE = {"overheadInNode": 1e-6, "overheadBetween": 2e-6, "latencyBetween": 20e-6, "betaBetween": 0.088e-9,
        "gapUplink": 0.2e-6, "betaUplink": 0.08e-9, "crowding": 0.01, "betaMemory": 0.003e-9}
FIT_RANKS, ELEMENT = 4, 4  # of the groups whose MP-AllGather was fitted; bytes of a float


def table(head, rows):
    numbers = ["---" if column == 0 else "---:" for column in range(len(head))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, numbers, *rows)) + "\n"


def rows_of(name):
    with open(os.path.join(DATA, name), encoding="utf-8", newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def published():
    """{(column, schedule, N_MP, N_ESP): speedup}"""
    return {(column, row["schedule"], int(row["n_mp"]), int(row["n_esp"])): float(row[column])
            for row in rows_of("table4.csv") for column in row if column[:2] in ("a_", "b_") and row[column]}


def profile_of(testbed):
    """Each rank of an MP group sends its part to the others, one after the other."""
    messages = FIT_RANKS - 1
    part = ELEMENT / FIT_RANKS  # bytes of a message, by element of the result
    costs = dict(PCIE, betaInNode=float(testbed["beta"]) / messages / part,
                 latencyInNode=float(testbed["alpha"]) / messages - PCIE["overheadInNode"])
    if testbed["network_gbits"]:
        costs["betaUplink"] = 8e-9 / float(testbed["network_gbits"])
    nodes = [int(testbed["gpus_per_node"])] * int(testbed["nodes"])
    return {"schema": "moeccl-profile", "schemaVersion": 2, "date": "", "command": "Parm VI-B", "curves": [], "local": {},
            "fingerprint": {"ranksPerNode": nodes, "processor": "", "processorsPerNode": int(testbed["processors_per_node"]),
                            "transport": "", "library": ""},
            "links": {"costs": costs, "medianError": 0, "worstError": 0}}


def predicted(program, testbed, profile, grid, layer, folder):
    """Seconds by schedule, and the share of exchanges in the baseline's."""
    (n_mp, n_esp), (samples, length, embedding, hidden, factor) = grid, layer
    n_ep = int(testbed["nodes"]) * int(testbed["gpus_per_node"]) // n_esp
    config = {"tokens": samples * length, "embedding": embedding * n_esp, "hidden": hidden * n_esp, "experts": n_ep,
              "top-k": 2, "capacity-factor": factor}
    handle, path = tempfile.mkstemp(dir=folder)
    os.close(handle)
    subprocess.run([program, "predict", "--nodes", f"{testbed['nodes']}x{testbed['gpus_per_node']}", "--mp", str(n_mp),
                    "--profile", profile, "--links", "pcie", "--pass", "both", "--top", "1", "--json", path, "--layer",
                    ",".join(f"{name}={value}" for name, value in config.items())],
                   check=True, stdout=subprocess.DEVNULL)
    with open(path, encoding="utf-8") as file:
        choices = json.load(file)["choices"]
    ours = {"nMp": n_mp, "nEp": n_ep, "nEsp": n_esp, "order": "EspEp"}
    found = {choice["schedule"]: choice for choice in choices if choice["grid"] == ours}
    seconds = {name: found[name]["seconds"] for name in ("baseline", "S1", "S2")}
    seconds["Parm"] = min(seconds["S1"], seconds["S2"])
    return seconds, found["baseline"]["communication"] / seconds["baseline"]


class Comparison:
    """What was predicted for each column of the table."""

    def __init__(self, program, layers=len(LAYERS), columns=None):
        self.published = published()
        self.speedups = {}  # {(column, schedule, N_MP, N_ESP): one per layer}
        self.shares = {}  # of exchanges in the baseline's time: {column: one per layer}
        some = [LAYERS[i * STRIDE % len(LAYERS)] for i in range(layers)]
        with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for testbed in rows_of("testbeds.csv"):
                column = testbed["column"]
                if columns and column not in columns:
                    continue
                profile = os.path.join(folder, column + ".json")
                with open(profile, "w", encoding="utf-8") as file:
                    json.dump(profile_of(testbed), file)
                asked = list(itertools.product(GRIDS, some))
                answers = pool.map(lambda it: predicted(program, testbed, profile, *it, folder), asked)
                for (grid, _), (seconds, share) in zip(asked, answers):
                    self.shares.setdefault(column, []).append(share)
                    for name in SCHEDULES:
                        self.speedups.setdefault((column, name, *grid), []).append(seconds["baseline"] / seconds[name])
        self.means = {where: statistics.fmean(all_) for where, all_ in self.speedups.items()}

    def error(self, column):
        """The mean relative error of what the column has published, and the worst by size."""
        errors = [self.means[where] / speedup - 1 for where, speedup in self.published.items() if where[0] == column]
        return statistics.fmean(errors), max(errors, key=abs)

    def columns(self):
        return list(self.shares)

    def __str__(self):
        rows = []
        for column, grid in itertools.product(self.columns(), GRIDS):
            cells = [f"{column[0].upper()}, {column[2:]} GPUs", "{}, {}".format(*grid)]
            for name in SCHEDULES:
                where = (column, name, *grid)
                cells += [f"{self.means[where]:.2f}", f"{self.published[where]:.2f}" if where in self.published else ""]
            rows.append(cells)
        head = ["testbed", "N_MP, N_ESP"] + list(itertools.chain.from_iterable((name, "published") for name in SCHEDULES))
        summary = [[f"{column[0].upper()}, {column[2:]} GPUs", *(f"{100 * error:+.0f} %" for error in self.error(column)),
                    f"{min(ratios):.2f} to {max(ratios):.2f}",
                    f"{100 * min(self.shares[column]):.0f} to {100 * max(self.shares[column]):.0f} %"]
                   for column in self.columns()
                   for ratios in [[one for where, all_ in self.speedups.items() if where[0] == column for one in all_]]]
        return table(head, rows) + "\n" + table(
            ["testbed", "mean error", "worst error", "single layers", "exchanges in the baseline's time"], summary)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", default="build/perf/moeccl-plan", help="the program (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=len(LAYERS), choices=range(1, len(LAYERS) + 1), metavar="COUNT",
                        help="of each N_MP and N_ESP (default: all 162)")
    options = parser.parse_args()
    print(Comparison(options.plan, options.layers), end="")


if __name__ == "__main__":
    main()
