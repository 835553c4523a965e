#!/usr/bin/env python3
"""Jobs on hosts that have little of something, or none: memory in /dev/shm, descriptors.

    small_hosts.py NEIGHBOUR_PROGRAM

NEIGHBOUR_PROGRAM is build/tests/faults/faults_neighbour. A job either runs or says on every rank what is missing; no rank
is ended by a library. Exit code 1 where one does not; 77 where this is not root, or the kernel permits no namespaces.
"""
import json
import os
import resource
import stat
import subprocess
import sys
import tempfile

from neighbours import Job, reachable

# What is mounted, ranks, MOECCL_TRANSPORT, the limit of descriptors, and a text that every rank may fail with.
SHM = {"64 MiB": "size=64m", "1 MiB": "size=1m", "read-only": "ro", "none": None, "enough": "size=1g"}
CASES = [
    ("64 MiB", 16, "auto", None, None),
    ("1 MiB", 8, "auto", None, None),
    ("read-only", 4, "auto", None, None),
    ("read-only", 4, "tcp", None, None),
    ("none", 4, "auto", None, None),
    ("none", 4, "tcp", None, None),
    ("1 MiB", 4, "ucx", None, "of 1.0 MiB free, 4 ranks that share memory need 18.0 MiB; MOECCL_TRANSPORT=tcp"),
    *(("enough", 4, "auto", limit, "ulimit -n") for limit in range(16, 44, 3)),
    ("enough", 8, "auto", 32, "ulimit -n"),
    ("enough", 16, "auto", 64, "ulimit -n"),
    ("enough", 8, "auto", 200, None),
]


def prepare(shm):
    """The mounts of a namespace of its own."""
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    if SHM[shm] is not None:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=1777," + SHM[shm], "tmpfs", "/dev/shm"], check=True)
        return
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/dev"], check=True)
    os.mknod("/dev/null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    os.chmod("/dev/null", 0o666)


def run(program, shm, ranks, transport, limit, text):
    """Returns what is wrong."""
    prepare(shm)
    program = reachable(program)
    limits = (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))) if limit else None
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        job = Job(program, folder, transport, ranks, limits)
        joined, first = job.ready()
        said = [(code, line + more) for line, (code, more) in zip(first, job.finish())]
    right = joined and all(each == (0, "readyright") for each in said)
    told = text is not None and all(code == 1 for code, _ in said) and all(text in more or "failed: " in more for _, more in said) \
        and any(text in more for _, more in said)
    return [] if right or told else said


def main():
    program = os.path.abspath(sys.argv[1])
    if len(sys.argv) == 3:  # in a namespace
        wrong = run(program, *json.loads(sys.argv[2]))
        print(*wrong, sep="\n")
        return len(wrong) > 0
    inside = ["unshare", "--mount", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if os.geteuid() != 0 or subprocess.run([*inside, "true"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
        print("needs root, and namespaces")
        return 77
    failed = 0
    for case in CASES:
        done = subprocess.run([*inside, sys.executable, sys.argv[0], program, json.dumps(case)], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
        failed += done.returncode != 0
        print(f"/dev/shm {case[0]}, {case[1]} ranks, {case[2]}, {case[3] or 'any'} descriptors: "
              f"{'no fault' if done.returncode == 0 else done.stdout}", flush=True)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
