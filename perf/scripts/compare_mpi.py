#!/usr/bin/env python3
"""All-to-all beside Open MPI's, in emulated clusters of several shapes and uplinks.

    compare_mpi.py run FOLDER              measures what FOLDER has no file for yet, some two hours in all
    compare_mpi.py csv FOLDER FILE.csv     all times of all runs as one table
    compare_mpi.py table FILE.csv          Markdown: how many times faster than the best of Open MPI's
    compare_mpi.py plot FILE.csv FILE.png  the same as a picture; takes matplotlib

run takes moeccl-lab, moeccl-fit and moeccl-perf from this repository and its build/, else from the PATH, or --lab, --fit
and --perf; and a quiet machine. moeccl
chooses by a profile of all-to-all that is made first, as on any cluster (FOLDER/profiles). Open MPI's best is
the lowest median over its algorithms, over ob1 and ucx, and over rendezvous as they choose it and none at all. It is
chosen on every other repetition, and compared on the rest. A time is that of the slowest rank, a ratio that of the same
repetitions of the same run.
"""
import argparse
import collections
import csv
import glob
import itertools
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys

import drawing
from plot_perf import size_text

SHAPES = ("2x4", "4x2", "4x4")
UPLINKS = ("none", "1gbit", "100mbit")
UCX = ("--mca", "pml", "ucx", "--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any")
# Name: arguments of mpirun, arguments of moeccl-perf.
TRANSPORTS = {
    "ob1": (("--mca", "pml", "ob1"), ()),
    "ob1-eager": (("--mca", "pml", "ob1", "--mca", "btl_tcp_eager_limit", str(1 << 26),
                   "--mca", "btl_tcp_rndv_eager_limit", str(1 << 26)), ()),
    "ucx": (UCX, ()),
    "ucx-eager": (UCX, ("--mpi-env", "UCX_RNDV_THRESH=inf")),
}
# Name: sizes of blocks.
SIZES = {
    "small": ("-b", "16", "-e", "256", "-f", "4"),
    "middle": ("-b", "1K", "-e", "4K", "-f", "4"),
    "large": ("-b", "16K", "-e", "64K", "-f", "4"),
    "huge": ("-b", "256K", "-e", "1M", "-f", "4", "-c", "0"),
}
# How many calls a turn has, by uplink; before them a tenth of that, but one at least. On the slowest, one call of the largest takes
# seconds.
CALLS = {
    "none": {"small": 100, "middle": 50, "large": 20, "huge": 8},
    "1gbit": {"small": 100, "middle": 50, "large": 10, "huge": 2},
    "100mbit": {"small": 60, "middle": 30, "large": 3, "huge": 1},
}
OURS = {"small": "auto,linear,hierarchical,bruck", "middle": "auto,linear,hierarchical,bruck",
        "large": "auto,linear,pairwise,hierarchical", "huge": "auto,linear,pairwise"}
THEIRS = {"small": "default,linear,pairwise,modified_bruck,linear_sync",
          "middle": "default,linear,pairwise,modified_bruck,linear_sync",
          "large": "default,linear,pairwise,modified_bruck,linear_sync",
          "huge": "default,linear,pairwise,linear_sync"}


def program(path):
    """Of this repository; else of the PATH, or nothing."""
    here = os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..", path)
    return here if os.access(here, os.X_OK) else shutil.which(os.path.basename(path))


def measure(options):
    for name in ("lab", "fit", "perf"):
        if not getattr(options, name):
            sys.exit(f"there is no moeccl-{name}; build it (ninja -C build), or give --{name} PATH")
    os.makedirs(os.path.join(options.folder, "profiles"), exist_ok=True)
    settings = list(itertools.product(options.shapes or SHAPES, options.uplinks or UPLINKS))
    for number, (shape, uplink) in enumerate(settings):
        missing = missing_of(options, shape, uplink)
        if not missing:
            continue
        nodes, ranks = map(int, shape.split("x"))
        name = f"compare-{os.getpid()}"
        subprocess.run([options.lab, "up", "--name", name, "--nodes", str(nodes), "--ranks-per-node", str(ranks),
                        "--uplink", uplink], check=True, stdout=subprocess.DEVNULL)
        try:
            print(f"{number + 1} of {len(settings)}: {shape}, {uplink}, moeccl-fit", flush=True)
            profile = os.path.abspath(os.path.join(options.folder, "profiles", f"{shape}-{uplink}.json"))
            subprocess.run([options.lab, "run", "--name", name, "--no-prefix", "--", options.fit, "--output", profile,
                            "--collectives", "alltoall", "--grids", f"1x{nodes * ranks}x1", "--budget", str(options.budget),
                            "--max-bytes", str(nodes * ranks << 20), *(["--force"] if options.force else [])], check=True,
                           stdout=subprocess.DEVNULL)
            for transport, sizes in missing:
                print(f"{number + 1} of {len(settings)}: {shape}, {uplink}, {transport}, {sizes}", flush=True)
                run(options, name, nodes * ranks, path_of(options.folder, shape, uplink, transport, sizes), transport, sizes,
                    CALLS[uplink][sizes], profile)
        finally:
            subprocess.run([options.lab, "down", "--name", name], check=True, stdout=subprocess.DEVNULL)


def path_of(folder, shape, uplink, transport, sizes):
    return os.path.join(folder, f"{shape}-{uplink}-{transport}-{sizes}.json")


def missing_of(options, shape, uplink):
    """The (transport, sizes) of a setting that are still to be measured; small messages are eager anyway."""
    return [(transport, sizes) for transport, sizes in itertools.product(options.transports, SIZES)
            if not (transport.endswith("-eager") and sizes in ("small", "middle"))
            and not os.path.exists(path_of(options.folder, shape, uplink, transport, sizes))]


def run(options, lab, ranks, path, transport, sizes, calls, profile):
    mpirun, perf = TRANSPORTS[transport]
    unfinished = os.path.abspath(path + ".part")
    subprocess.run([options.lab, "mpirun", "--name", lab, "--", "-np", str(ranks), *mpirun, "-x", "MOECCL_PROFILE",
                    options.perf, "alltoall",
                    "--blocks", *SIZES[sizes], "-n", str(calls), "-w", str(max(1, calls // 10)), "-r", str(options.repetitions), "-a", "3",
                    "--algorithms", OURS[sizes], "--compare", "mpi", "--mpi-algorithms", THEIRS[sizes], *perf,
                    "--json", unfinished], check=True, stdout=subprocess.DEVNULL,
                   env={**os.environ, "MOECCL_PROFILE": profile})
    with open(unfinished, encoding="utf-8") as file:
        report = file.read()
    with open(unfinished, "w", encoding="utf-8") as file:
        file.write(report.replace(unfinished, path))  # in its command line: wherever FOLDER lies here
    os.rename(unfinished, path)


def write_csv(options):
    """Writes the runs that tables and plots are made from: those of the cluster and block that hold Open MPI's best."""
    cells = collections.defaultdict(lambda: collections.defaultdict(list))
    for path in sorted(glob.glob(os.path.join(options.folder, "*.json"))):
        shape, uplink, *transport = os.path.basename(path)[:-len(".json")].split("-")
        with open(path, encoding="utf-8") as file:
            report = json.load(file)
        of_block = collections.defaultdict(dict)
        for result in report["results"]:
            if result["wrong"]:
                sys.exit(f"{path}: {result['algorithm']} was wrong")
            of_block[result["block"]][result["algorithm"]] = result["timesUs"]
        for block, times in of_block.items():
            cells[shape, uplink][block].append(("-".join(transport[:-1]), times))
    for shape, uplink in cells:
        if missing := missing_of(options, shape, uplink):
            names = ", ".join(os.path.basename(path_of(options.folder, shape, uplink, *one)) for one in missing)
            sys.exit(f"{options.folder} is not complete: there is no {names}; \"run\" goes on where it stopped")
    if not cells:
        sys.exit(f"{options.folder} has no results; \"run\" makes them")
    with open(options.csv, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["cluster", "uplink", "mpi_transport", "block_bytes", "algorithm", "us of each repetition"])
        for (shape, uplink), runs in cells.items():
            for block in sorted(runs):
                transport, _, times = best_of_mpi(runs[block])
                for name, values in times.items():
                    writer.writerow([shape, uplink, transport, block, name, *(f"{value:.6g}" for value in values)])


def load(path):
    """(shape, uplink) -> block -> list of (transport, {algorithm: times}). The best of MPI is that of all transports."""
    cells = collections.defaultdict(dict)
    with open(path, encoding="utf-8", newline="") as file:
        for shape, uplink, transport, block, algorithm, *times in itertools.islice(csv.reader(file), 1, None):
            cells[shape, uplink, int(block), transport][algorithm] = list(map(float, times))
    found = collections.defaultdict(lambda: collections.defaultdict(list))
    for (shape, uplink, block, transport), times in cells.items():
        found[shape, uplink][block].append((transport, times))
    return found


def blocks_of(found):
    """Those that were measured in all the settings."""
    return sorted(set.intersection(*(set(runs) for runs in found.values())))


def best_of_mpi(runs):
    """(transport, algorithm, times of the run it is from), by the first, third, ... repetition."""
    candidates = [(statistics.median(values[::2]), transport, name, times)
                  for transport, times in runs for name, values in times.items() if name.startswith("mpi:")]
    return min(candidates, key=lambda candidate: candidate[0])[1:]


def ratios(runs, ours):
    """Times faster than Open MPI's best, by repetition that did not choose. `ours`: an algorithm, or best: of all of moeccl's."""
    _, name, times = best_of_mpi(runs)
    if ours == "best":
        ours = min((own for own in times if not own.startswith("mpi:")), key=lambda own: statistics.median(times[own][::2]))
    return [theirs / own for theirs, own in zip(times[name][1::2], times[ours][1::2])]


def quartiles(values):
    first, _, third = statistics.quantiles(values, method="inclusive") if len(values) > 1 else 3 * values
    return first, third


def settings_of(found):
    return [key for key in itertools.product(SHAPES, UPLINKS) if key in found]


def print_tables(options):
    found = load(options.csv)
    blocks = blocks_of(found)
    for ours, text in (("auto", "The library's choice"), ("best", "The best of moeccl's algorithms")):
        print(f"{text}, times faster than the best of Open MPI's:\n")
        print("| nodes x ranks, uplink | " + " | ".join(map(size_text, blocks)) + " |")
        print("|---|" + "---:|" * len(blocks))
        means = collections.defaultdict(list)
        for shape, uplink in settings_of(found):
            row = []
            for block in blocks:
                values = ratios(found[shape, uplink][block], ours)
                middle = statistics.median(values)
                means[block].append(middle)
                row.append("{:.2f} [{:.2f}, {:.2f}]".format(middle, *quartiles(values)))
            print(f"| {shape}, {drawing.uplink_text(uplink)} | " + " | ".join(row) + " |")
        print("| geometric mean | " + " | ".join(f"**{geometric(means[block]):.2f}**" for block in blocks) + " |")
        print("| smallest | " + " | ".join(f"{min(means[block]):.2f}" for block in blocks) + " |\n")
        small = [value for block in blocks if block <= 256 for value in means[block]]
        print(f"Up to 256 B, geometric mean: {geometric(small):.2f}\n")
    print("Milliseconds of the library's choice and of Open MPI's best, and which that is:\n")
    print("| nodes x ranks, uplink | " + " | ".join(map(size_text, blocks)) + " |")
    print("|---|" + "---:|" * len(blocks))
    for shape, uplink in settings_of(found):
        row = []
        for block in blocks:
            transport, name, times = best_of_mpi(found[shape, uplink][block])
            row.append(f"{milliseconds(times['auto'])} : {milliseconds(times[name])} {name[4:]}, {transport}")
        print(f"| {shape}, {drawing.uplink_text(uplink)} | " + " | ".join(row) + " |")


def milliseconds(times):
    return f"{statistics.median(times) / 1e3:.3g}"


def geometric(values):
    return math.exp(statistics.fmean(map(math.log, values)))


def plot(options):
    pyplot = drawing.pyplot()

    found = load(options.csv)
    settings = settings_of(found)
    columns = min(len(settings), len(UPLINKS))
    rows = math.ceil(len(settings) / columns)
    figure, axes = pyplot.subplots(rows, columns, figsize=(4 * columns, 3 * rows + 1), sharex=True, sharey=True, squeeze=False)
    for axis in axes.flat[len(settings):]:
        axis.set_visible(False)
    for (shape, uplink), axis in zip(settings, axes.flat):
        runs = found[shape, uplink]
        blocks = sorted(runs)
        for ours, label, style in (("auto", "the library's choice", "o-"), ("best", "best of moeccl's", "x:")):
            values = [ratios(runs[block], ours) for block in blocks]
            middle = [statistics.median(row) for row in values]
            axis.errorbar(blocks, middle, fmt=style, label=label, capsize=3, markersize=4,
                          yerr=[[m - quartiles(row)[0] for m, row in zip(middle, values)],
                                [quartiles(row)[1] - m for m, row in zip(middle, values)]])
        axis.axhline(1, color="gray", linewidth=0.8)
        axis.set(xscale="log", yscale="log", title=f"{shape}, {drawing.uplink_text(uplink)}")
        axis.set_xticks(blocks, [size_text(block) for block in blocks], rotation=45, fontsize=8)
        axis.set_xticks([], minor=True)
        axis.set_yticks(ticks := [0.5, 0.7, 1, 1.4, 2, 3, 4], [f"{tick:g}" for tick in ticks])
        axis.set_yticks([], minor=True)
        axis.tick_params(labelbottom=True, labelleft=True)
        axis.grid(alpha=0.3)
    axes[0][0].legend(fontsize=8)
    figure.supylabel("times faster than Open MPI's best")
    figure.supxlabel("bytes per block")
    figure.tight_layout()
    drawing.save(figure, options.picture)


def transports(command):
    command.add_argument("--transports", nargs="+", choices=TRANSPORTS, default=list(TRANSPORTS), help="of Open MPI")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("run")
    command.add_argument("folder")
    for name, path in (("lab", "perf/moeccl-lab"), ("fit", "build/perf/moeccl-fit"), ("perf", "build/perf/moeccl-perf")):
        command.add_argument(f"--{name}", default=program(path))
    command.add_argument("--budget", type=float, default=60, help="seconds of moeccl-fit, for each cluster")
    command.add_argument("--force", action="store_true", help="even if other programs run: moeccl-fit --force")
    command.add_argument("--shapes", nargs="+", choices=SHAPES)
    command.add_argument("--uplinks", nargs="+", choices=UPLINKS)
    command.add_argument("--repetitions", type=int, default=10)
    transports(command)
    command.set_defaults(call=measure)
    command = commands.add_parser("csv")
    command.add_argument("folder")
    transports(command)
    command.add_argument("csv")
    command.set_defaults(call=write_csv)
    command = commands.add_parser("table")
    command.add_argument("csv")
    command.set_defaults(call=print_tables)
    command = commands.add_parser("plot")
    command.add_argument("csv")
    command.add_argument("picture")
    command.set_defaults(call=plot)
    options = parser.parse_args()
    for number in (signal.SIGHUP, signal.SIGTERM):  # so that no cluster stays up
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    options.call(options)


if __name__ == "__main__":
    main()
