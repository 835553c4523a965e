#!/usr/bin/env python3
"""Runs moeccl-perf and moeccl-fit on ranks that share one GPU:

    tools_test.py --perf COMMAND --fit COMMAND [--memory host] [--ranks N] [TEXT]

Each collective of moeccl-perf is a test, with all algorithms that GPUs offer, its data checked; so is each payload
of token routes; and a profile by moeccl-fit: all of these, or those with TEXT in their name. The last line counts them.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import registry

LIMIT = 300


def algorithms_of_collectives():
    """Name -> comma-separated names, as moeccl-perf has them, of what GPUs offer."""
    names, same = registry.tables((registry.HERE.parent.parent / "algorithms" / "meson.build").read_text())
    names.update({collective: [name for name in names[origin] if name not in ("bruck", "hierarchical")]
                  for collective, origin in same.items()})
    return {collective.lower(): ",".join(those) for collective, those in names.items()}


def run(ranks, folder, command):
    """What the ranks have printed, and whether all went well."""
    id_file = os.path.join(folder, "id")
    processes = []
    for rank in range(ranks):
        environment = {"NCCL_HOSTID": f"moeccl-rank-{rank}", "NCCL_SOCKET_IFNAME": "lo", **os.environ,
                       "MOECCL_RANK": str(rank), "MOECCL_NRANKS": str(ranks), "MOECCL_ID_FILE": id_file}
        processes.append(subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, text=True,
                                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
    texts, well = [], True
    for rank, process in enumerate(processes):
        try:
            texts.append(process.communicate(timeout=LIMIT)[0])
        except subprocess.TimeoutExpired:
            process.kill()
            texts.append(process.communicate()[0] + f"rank {rank} was not done after {LIMIT} s\n")
        well = well and process.returncode == 0
    if os.path.exists(id_file):
        os.remove(id_file)
    return "".join(texts), well


def perf(options, folder, collective, algorithms):
    report = os.path.join(folder, "perf.json")
    text, well = run(options.ranks, folder, [
        options.perf, collective, "--memory", options.memory, "--algorithms", algorithms, "-b", "1K", "-e", "1M",
        "-f", "32", "-n", "5", "-w", "2", "-r", "3", "--json", report])
    if not well:
        return text
    with open(report, encoding="utf-8") as file:
        results = json.load(file)
    if (results["memory"] == "cuda") != bool(results["device"]):
        return "the device is not in the JSON"
    if not results["results"] or any(result["wrong"] != 0 for result in results["results"]):
        return text
    print(text)
    return ""


def route(options, folder, datatype):
    report = os.path.join(folder, "route.json")
    text, well = run(options.ranks, folder, [
        options.perf, "route", "--memory", options.memory, "-d", datatype, "--tokens", "64", "--hidden", "1024",
        "--experts", "8", "--top-k", "2", "-r", "3", "--json", report])
    if not well:
        return text
    with open(report, encoding="utf-8") as file:
        results = json.load(file)
    if (results["memory"] == "cuda") != bool(results["device"]):
        return "the device is not in the JSON"
    if len(results["results"]) != 5 or any(result["wrong"] != 0 for result in results["results"]):
        return text
    print(text)
    return ""


def fit(options, folder):
    profile = os.path.join(folder, "profile.json")
    text, well = run(options.ranks, folder, [
        options.fit, "--memory", options.memory, "--budget", "60", "--force", "--max-bytes", "1M", "-o",
        profile])
    if not well:
        return text
    with open(profile, encoding="utf-8") as file:
        curves = json.load(file)["curves"]
    return "" if curves else "the profile is empty"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--perf", required=True)
    parser.add_argument("--fit", required=True)
    parser.add_argument("--memory", default="cuda")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("only", metavar="TEXT", nargs="?", default="")
    options = parser.parse_args()
    passed = failed = skipped = 0
    with tempfile.TemporaryDirectory() as folder:
        tests = [(f"moeccl-perf {name}", lambda name=name, those=those: perf(options, folder, name, those))
                 for name, those in algorithms_of_collectives().items()]
        tests += [(f"moeccl-perf route {datatype}", lambda datatype=datatype: route(options, folder, datatype))
                  for datatype in ("bfloat16", "half", "float", "fp8_e4m3", "fp8_e5m2")]
        tests.append(("moeccl-fit", lambda: fit(options, folder)))
        text, well = run(1, folder, [options.perf, "alltoall", "--memory", options.memory, "-b", "8", "-e", "8"])
        if not well and "no usable CUDA driver" in text:
            print(f"{text}0 passed, 0 failed, {len(tests)} skipped")
            return 77
        for name, test in tests:
            if options.only not in name:
                skipped += 1
                continue
            problem = test()
            print(f"{'FAILED' if problem else 'ok    '} {name} on {options.ranks} ranks")
            print(problem, end="", flush=True)
            passed, failed = passed + (not problem), failed + bool(problem)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
