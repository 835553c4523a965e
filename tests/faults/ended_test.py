#!/usr/bin/env python3
"""faults.py, ended by a signal, takes its emulated cluster down first.

    ended_test.py RANK_PROGRAM
"""
import glob
import os
import signal
import subprocess
import sys
import tempfile
import time

FAULTS = os.path.join(os.path.dirname(os.path.realpath(__file__)), "faults.py")


def processes_that_name(text):
    """Whose command line or environment does."""
    found = []
    for path in glob.glob("/proc/[0-9]*"):
        try:
            said = b"".join(open(f"{path}/{part}", "rb").read() for part in ("cmdline", "environ"))
        except OSError:
            continue
        if os.fsencode(text) in said:
            found.append(int(os.path.basename(path)))
    return found


def wait_for(what, seconds=60):
    end = time.monotonic() + seconds
    while not (found := what()) and time.monotonic() < end:
        time.sleep(0.02)
    return found


def end(program, number, pattern):
    """Returns what is wrong. `pattern`: of the file that there must be first."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        faults = subprocess.Popen([sys.executable, FAULTS, program, "--kills", "1000"], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  env={**os.environ, "TMPDIR": folder, "XDG_RUNTIME_DIR": ""})
        there = wait_for(lambda: glob.glob(f"{folder}/*/{pattern}") or faults.poll() is not None)
        if faults.poll() == 77:
            print(faults.stdout.read())
            sys.exit(77)
        faults.send_signal(number)
        said = faults.communicate(timeout=60)[0]
        wrong = [] if there and faults.returncode == 128 + number else [f"ended with {faults.returncode}: {said}"]
        if not wait_for(lambda: not processes_that_name(folder), 10):
            wrong.append(f"still there: {processes_that_name(folder)}")
        if left := os.listdir(folder):
            wrong.append(f"left {left}")
        return wrong


def main():
    program, failed = os.path.abspath(sys.argv[1]), False
    for number in (signal.SIGTERM, signal.SIGHUP):
        for when, pattern in (("while the cluster comes up", f"moeccl-lab-{os.getuid()}"), ("while a job runs", "*/joined")):
            wrong = end(program, number, pattern)
            print(f"{number.name} {when}: {'; '.join(wrong) or 'nothing is left'}", flush=True)
            failed |= bool(wrong)
    return failed


if __name__ == "__main__":
    sys.exit(main())
