#!/usr/bin/env python3
"""Sums up what `meson test` has just run.

    tally.py LOGS_FOLDER

Names what failed, with the end of what it said, or was skipped, prints "N passed, N failed, N skipped",
and exits with 1 when anything failed or nothing ran. Cases of GoogleTest and TAP count one by one, any
other test as one. Meson's result of a test has the last word: one that fails although each of its cases
passed (a crash at exit, a leak, a timeout) counts as one more failure, and so does a GoogleTest program
that ran no case, unless those that need UCX were left out: then it was skipped.
"""
import collections
import glob
import json
import os
import sys
import xml.etree.ElementTree

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
SHOWN_LINES = 12  # of what a failure said
GOOD = {"OK", "EXPECTEDFAIL"}
NEUTRAL = {"SKIP"}


def newest(folder, ending):
    files = glob.glob(os.path.join(folder, "testlog*" + ending))
    if not files:
        raise SystemExit(f"tally.py: {folder} holds no testlog*{ending}: did meson test run?")
    return max(files, key=os.path.getmtime)


def outcome(case):
    """(how a JUnit case ended, its name, the lines that say why)"""
    for tag, result in (("failure", FAILED), ("error", FAILED), ("skipped", SKIPPED)):
        found = case.find(tag)
        if found is not None:
            why = (found.get("message") or found.text or "").strip().splitlines()
            # GoogleTest's message begins with file:line, on a line of its own.
            return result, case.get("name"), why[-1:] if result == SKIPPED else why
    return SKIPPED if case.get("status") == "notrun" else PASSED, case.get("name"), []


def cases_by_suite(junit):
    """Name of each JUnit suite -> the outcomes of its cases."""
    suites = collections.defaultdict(list)
    for suite in xml.etree.ElementTree.parse(junit).iter("testsuite"):
        suites[suite.get("name")] += [outcome(case) for case in suite.iter("testcase")]
    return suites


def outcomes_of(test, suites):
    """The outcomes of the cases of one of Meson's tests."""
    # Meson calls a TAP test's suite project.test, and those of a GoogleTest program project.test.suite.
    def belongs(suite):
        name = suite.partition(".")[2]
        return name == test["name"] or name.rpartition(".")[0] == test["name"]

    cases = [case for suite, its in suites.items() if belongs(suite) for case in its]
    good, skipped = test["result"] in GOOD, test["result"] in NEUTRAL
    if not good and not skipped:
        if not any(result == FAILED for result, _, _ in cases):
            printed = (test.get("stdout", "") + test.get("stderr", "")).splitlines()
            cases.append((FAILED, "", [test["result"], *printed]))
    elif not cases:
        googletest = any(argument.startswith("--gtest_output") for argument in test["command"])
        if googletest and good and "ucx" in test["env"].get("GTEST_FILTER", ""):
            return [(SKIPPED, "", ["no case is left by GTEST_FILTER"])]
        if googletest and good:
            return [(FAILED, "", ["no case ran"])]
        return [(SKIPPED if skipped else PASSED, "", [])]
    return cases


def main():
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    with open(newest(sys.argv[1], ".json"), encoding="utf-8") as file:
        tests = [json.loads(line) for line in file]
    suites = cases_by_suite(newest(sys.argv[1], ".junit.xml"))
    total = collections.Counter()
    for test in tests:
        for result, case, why in outcomes_of(test, suites):
            total[result] += 1
            if result != PASSED:
                print(": ".join(part for part in (result, test["name"], case, *why[:1]) if part))
                for line in why[1:][-SHOWN_LINES:]:
                    print("  " + line)
    print(f"{total[PASSED]} passed, {total[FAILED]} failed, {total[SKIPPED]} skipped")
    sys.exit(0 if total[PASSED] and not total[FAILED] else 1)


if __name__ == "__main__":
    main()
