#!/usr/bin/env python3
"""Sums up what `meson test` has just run.

    tally.py LOGS_FOLDER

Prints "N passed, N failed, N skipped" and exits with 1 when anything failed or nothing ran. Cases of
GoogleTest and TAP count one by one, any other test as one. Meson's result of a test has the last word:
one that fails although each of its cases passed (a crash at exit, a leak, a timeout) counts as one more
failure, and so does a GoogleTest program that ran no case, unless a filter was set: then it was skipped.
"""
import collections
import glob
import json
import os
import sys
import xml.etree.ElementTree

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
GOOD = {"OK", "EXPECTEDFAIL"}
NEUTRAL = {"SKIP"}


def newest(folder, ending):
    files = glob.glob(os.path.join(folder, "testlog*" + ending))
    if not files:
        raise SystemExit(f"tally.py: {folder} holds no testlog*{ending}: did meson test run?")
    return max(files, key=os.path.getmtime)


def outcome(case):
    if case.find("failure") is not None or case.find("error") is not None:
        return FAILED
    if case.find("skipped") is not None or case.get("status") == "notrun":
        return SKIPPED
    return PASSED


def cases_by_suite(junit):
    """Name of each JUnit suite -> how its cases ended."""
    suites = collections.defaultdict(collections.Counter)
    for suite in xml.etree.ElementTree.parse(junit).iter("testsuite"):
        suites[suite.get("name")].update(outcome(case) for case in suite.iter("testcase"))
    return suites


def tally_test(test, suites):
    """How the cases of one of Meson's tests ended."""
    # Meson calls a TAP test's suite project.test, and those of a GoogleTest program project.test.suite.
    def belongs(suite):
        name = suite.partition(".")[2]
        return name == test["name"] or name.rpartition(".")[0] == test["name"]

    cases = sum((counts for suite, counts in suites.items() if belongs(suite)), collections.Counter())
    googletest = any(argument.startswith("--gtest_output") for argument in test["command"])
    if test["result"] not in GOOD | NEUTRAL:
        cases[FAILED] = max(cases[FAILED], 1)
    elif not cases:
        if googletest and test["result"] in GOOD:
            cases[SKIPPED if "GTEST_FILTER" in test["env"] else FAILED] = 1
        else:
            cases[PASSED if test["result"] in GOOD else SKIPPED] = 1
    return cases


def main():
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    with open(newest(sys.argv[1], ".json"), encoding="utf-8") as file:
        tests = [json.loads(line) for line in file]
    suites = cases_by_suite(newest(sys.argv[1], ".junit.xml"))
    total = sum((tally_test(test, suites) for test in tests), collections.Counter())
    print(f"{total[PASSED]} passed, {total[FAILED]} failed, {total[SKIPPED]} skipped")
    sys.exit(0 if total[PASSED] and not total[FAILED] else 1)


if __name__ == "__main__":
    main()
