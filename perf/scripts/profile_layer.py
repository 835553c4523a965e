#!/usr/bin/env python3
"""Where the time of a MoE layer goes: samples one-layer by Linux' perf, and tells phases apart.

    profile_layer.py [--program build/perf/layers/one-layer] [--ranks N] [--repetitions N] [-- ARGUMENT...]

Runs N ranks here, with the arguments (one-layer --help lists them), and prints a Markdown table: each phase's share of
the processor time inside the layer, of all ranks, as the median of the repetitions [smallest, largest]. A rank that
waits for others takes time too, which counts as communication; so the second column leaves communication out.
It takes Debian's linux-perf.
"""
import argparse
import collections
import json
import os
import re
import shutil
import statistics
import sys
import subprocess
import tempfile

ROOT = os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..")
# The phase of a sample is that of the first row of which some function on the stack is, innermost first: those of
# kernels/ by name, what OpenBLAS does for an expert, and what of the API a layer calls.
PHASES = [
    ("gate: logits and their gradients", r"Gate<float>::(computeLogits|multiplyBlock)|LogitsKernel"),
    ("gate: choices, places, loss", r"Gate<float>::|assignSlots|listByExpert"),
    ("permute", r"scatterTokens\b|combineTokensBackward|clearUnused|gatherListed\b|addListedBackward"),
    ("un-permute", r"combineTokens\b|scatterTokensBackward|addListed\b|addByToken|gatherListedBackward"),
    ("activation", r"(Forward|Backward)<.*(Gelu|Relu)>|^activate"),
    ("matrix products of experts", r"^cblas_sgemm$|^sgemm_"),
    ("biases of experts", r"expertForward|expertBackward"),
    ("communication", r"^moeccl(?!Moe)[A-Z]|Reduction<"),
    ("the layer's own copies", r"^moecclMoe(Forward|Backward)$"),
]
COMMUNICATION = "communication"
PRODUCTS = "matrix products of experts"
UNKNOWN = "unknown"
OUTSIDE = "outside the layer"


def function_of(symbol):
    """Without namespaces and arguments: moeccl::(anonymous namespace)::f(int) is f."""
    symbol = symbol.replace("(anonymous namespace)::", "").replace("moeccl::", "").replace("gates::", "")
    return re.sub(r"\(.*", "", symbol).removeprefix("void ")


def phase_of(stack):
    """stack: symbols, innermost first."""
    functions = [function_of(symbol) for symbol in stack]
    for function in functions:
        for phase, pattern in PHASES:
            if not re.search(pattern, function):
                continue
            # What multiplies, or copies, may do so for the gate.
            if phase == PRODUCTS and any("Gate<float>::" in outer for outer in functions):
                return PHASES[0][0]
            return phase
    return OUTSIDE if "main" in functions else UNKNOWN


def stacks(text, begin, end):
    """Those sampled from begin to end, of what `perf script -F time,ip,sym` prints."""
    for block in text.split("\n\n"):
        lines = [line.strip() for line in block.splitlines() if line.strip()]
        if len(lines) > 1 and begin <= float(lines[0].rstrip(":")) <= end:
            yield [line.partition(" ")[2] for line in lines[1:]]


def perf(*arguments):
    done = subprocess.run(["perf", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"perf {arguments[0]} failed: {done.stderr.strip()}")
    return done.stdout


def run(program, ranks, arguments, folder):
    """One run: samples by phase, and the milliseconds of a pass."""
    started = []
    for rank in range(ranks):
        environment = {"OPENBLAS_NUM_THREADS": "1", **os.environ, "MOECCL_RANK": str(rank),
                       "MOECCL_NRANKS": str(ranks), "MOECCL_ID_FILE": os.path.join(folder, "id")}
        data = os.path.join(folder, f"{rank}.data")
        command = ["perf", "record", "-o", data, "-k", "CLOCK_MONOTONIC", "-F", "997", "--call-graph", "dwarf,4096",
                   "--", program, *arguments]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append((process, data))
    outputs = [process.communicate() for process, _ in started]  # none prints more than a pipe holds
    for (process, _), (_, errors) in zip(started, outputs):
        if process.returncode != 0:
            raise SystemExit(f"{program} failed: {errors.strip()}")
    counts, seconds = collections.Counter(), []
    for (_, data), (output, _) in zip(started, outputs):
        report = json.loads(output.splitlines()[-1])
        seconds.append((report["end"] - report["begin"]) / report["passes"])
        text = perf("script", "-i", data, "-F", "time,ip,sym")
        counts.update(phase_of(stack) for stack in stacks(text, report["begin"], report["end"]))
    return counts, 1000 * max(seconds)


def shares(runs, leave_out=()):
    """Per phase and run, in percent of all samples in the layer but those left out."""
    kept = [phase for phase, _ in PHASES] + [UNKNOWN]
    kept = [phase for phase in kept if phase not in leave_out]
    totals = [sum(counts[phase] for phase in kept) for counts in runs]
    return {phase: [100 * counts[phase] / total for counts, total in zip(runs, totals)] for phase in kept}


def cell(values):
    return f"{statistics.median(values):.2f} [{min(values):.2f}, {max(values):.2f}]"


def table(runs):
    everything, computing = shares(runs), shares(runs, [COMMUNICATION])
    for column in everything, computing:
        column["**all but products and communication**"] = [
            sum(column[phase][i] for phase in column if phase not in (PRODUCTS, COMMUNICATION))
            for i in range(len(runs))]
    lines = ["| phase | % of the layer | % without communication |", "|---|---:|---:|"]
    for phase, values in everything.items():
        lines.append(f"| {phase} | {cell(values)} | {cell(computing[phase]) if phase in computing else ''} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=os.path.join(ROOT, "build/perf/layers/one-layer"))
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("arguments", nargs="*", help="of one-layer, after --")
    options = parser.parse_args()
    if not shutil.which("perf"):
        sys.exit("there is no perf, which samples the ranks. On Debian: apt-get install linux-perf")
    if not os.access(options.program, os.X_OK):
        sys.exit(f"there is no {options.program}; build it (ninja -C build), or give --program")
    runs, times = [], []
    for _ in range(options.repetitions):
        with tempfile.TemporaryDirectory() as folder:
            counts, milliseconds = run(options.program, options.ranks, options.arguments, folder)
        runs.append(counts)
        times.append(milliseconds)
    print(f"{options.ranks} ranks, {' '.join(options.arguments)}: {cell(times)} ms per pass, "
          f"{min(sum(counts.values()) for counts in runs)} samples or more per run\n")
    print(table(runs))


if __name__ == "__main__":
    main()
