#!/usr/bin/env python3
"""Does to jobs what another user of their machine can do, and looks what becomes of them.

    neighbours.py NEIGHBOUR_PROGRAM [SECONDS]

NEIGHBOUR_PROGRAM is build/tests/faults/faults_neighbour. Its ranks run as one user; the stranger is another, of another
group and of theirs. He goes round for SECONDS (default 3): Unix sockets with a name and without a file, ports, /dev/shm,
System V's shared memory, queues and semaphores, /proc, and the files of the job. All this is in namespaces of the
script's own, so that nobody else's job is met.

Prints what he could reach. Exit code 1 where he could read or change anything, where a rank ended or got a wrong sum, or
where he woke a rank more than 100 times a second; 77 where this is not root, or the kernel permits no namespaces.
"""
import collections
import contextlib
import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

import strangers

RANKS = 3
JOB, STRANGER = 12001, 65534
WAKES_PER_SECOND = 100
INSIDE = "MOECCL_TEST_NEIGHBOURS_INSIDE"

libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p


def reachable(program):
    """The program by a path that all users may go: a folder above the build may be its owner's alone. In a mount namespace."""
    build = os.path.realpath(os.path.join(os.path.dirname(program), "..", ".."))
    place = "/mnt"
    subprocess.run(["mount", "--bind", build, place], check=True)
    return os.path.join(place, os.path.relpath(os.path.realpath(program), build))


class Job:
    """Ranks as processes of a user of their own."""

    def __init__(self, program, folder, transport, ranks=RANKS, limits=None):
        self.folder = folder
        self.ranks = []
        for rank in range(ranks):
            environment = {"PATH": os.environ["PATH"], "HOME": folder, "MOECCL_RANK": str(rank), "MOECCL_NRANKS": str(ranks),
                           "MOECCL_ID_FILE": folder + "/id", "MOECCL_TRANSPORT": transport, "MOECCL_TIMEOUT": "60000"}
            self.ranks.append(subprocess.Popen(
                [program, "sleep"], env=environment, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, user=JOB, group=JOB, extra_groups=[], preexec_fn=limits))

    def ready(self):
        said = []
        for rank in self.ranks:
            # Who has to wait says for whom.
            while ", waits for " in (line := rank.stdout.readline()):
                pass
            said.append(line.strip())
        return all(each == "ready" for each in said), said

    def pids(self):
        return [rank.pid for rank in self.ranks]

    def sleeps(self):
        """By rank and thread, how often it went to sleep by itself."""
        return [{task: switches(f"/proc/{pid}/task", task) for task in os.listdir(f"/proc/{pid}/task")} for pid in self.pids()]

    def finish(self):
        """What each rank has to say."""
        for rank in self.ranks:
            with contextlib.suppress(BrokenPipeError):
                rank.stdin.close()
        said = []
        for rank in self.ranks:
            try:
                rank.wait(60)
            except subprocess.TimeoutExpired:
                rank.kill()
                rank.wait()
            said.append((rank.returncode, rank.stdout.read().strip()))
        return said


def switches(folder, task):
    with open(f"{folder}/{task}/status", encoding="ascii") as file:
        return int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", file.read(), re.M)[1])


def unix_sockets():
    """(type, address) of those with a name."""
    with open("/proc/net/unix", encoding="utf-8", errors="surrogateescape") as file:
        for line in file.readlines()[1:]:
            fields = line.split()
            if len(fields) == 8:
                yield int(fields[4], 16), fields[7].replace("@", "\0", 1) if fields[7].startswith("@") else fields[7]


def send_datagrams():
    """Returns whether a file's socket took one; one without a file takes them of anybody."""
    reached = set()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        for kind, address in unix_sockets():
            if kind != socket.SOCK_DGRAM:
                continue
            for payload in (b"", b"x", b"y" * 5000):
                with contextlib.suppress(OSError):
                    sender.sendto(payload, address)
                    if address.startswith("/"):
                        reached.add(f"a datagram to {address}")
    return reached


def dial_sockets():
    reached = set()
    for kind, address in unix_sockets():
        if kind != socket.SOCK_STREAM:
            continue
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(0.1)
            connection.connect(address)
            connection.sendall(os.urandom(200))
            if address.startswith("/"):
                reached.add(f"a connection to {address}")
            if len(connection.recv(4096)) > strangers.CHALLENGE:
                reached.add(f"an answer of {address!r}")
    return reached


def attack_ports():
    reached = set()
    for target in strangers.listening():
        with contextlib.suppress(OSError):
            if len(strangers.attack(target)) > strangers.CHALLENGE:
                reached.add(f"an answer of port {target[2]}")
    return reached


def open_files(folder):
    """Reads, writes and removes what lies in a folder."""
    reached = set()
    for where, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(where, name)
            for flags, what in ((os.O_RDONLY, "reads"), (os.O_WRONLY, "writes")):
                if what == "reads" and "/.cache/" in path:
                    continue  # what links cost is no secret
                with contextlib.suppress(OSError):
                    os.close(os.open(path, flags | os.O_NONBLOCK))
                    reached.add(f"{what} {path}")
            with contextlib.suppress(OSError):
                os.unlink(path)
                reached.add(f"removes {path}")
    return reached


def attach_sysv():
    reached = set()
    for kind, get in (("shm", lambda key: libc.shmat(key, None, 0)), ("msg", lambda key: libc.msgrcv(key, None, 0, 0, 0o4000)),
                      ("sem", lambda key: libc.semctl(key, 0, 12))):
        with open(f"/proc/sysvipc/{kind}", encoding="ascii") as file:
            for line in file.readlines()[1:]:
                number, size = int(line.split()[1]), int(line.split()[3])
                at = get(number)
                if at in (-1, ctypes.c_void_p(-1).value):
                    continue
                reached.add(f"attaches System V's {kind}")
                if kind == "shm":
                    ctypes.memset(at, 0xff, size)
    return reached


def pry(pids):
    """What the kernel shows of processes, and lets be done to them."""
    reached = set()
    for pid in pids:
        for name in ("environ", "maps", "mem", "fd", "map_files", "cwd", "exe", "auxv", "syscall", "stack"):
            path = f"/proc/{pid}/{name}"
            with contextlib.suppress(OSError):
                if os.path.isdir(path):
                    for entry in os.listdir(path):
                        os.close(os.open(f"{path}/{entry}", os.O_RDWR | os.O_NONBLOCK))
                        reached.add(f"opens {name}/{entry} of a rank")
                    continue
                with open(path, "rb") as file:
                    file.read(1)
                    reached.add(f"reads {name} of a rank")
        for number in (signal.SIGTERM, signal.SIGSTOP):
            with contextlib.suppress(OSError):
                os.kill(pid, number)
                reached.add(f"sends signal {number} to a rank")
        if libc.ptrace(16, pid, None, None) == 0:  # PTRACE_ATTACH
            reached.add("traces a rank")
    return reached


def go_round(pids, folder, seconds):
    reached, rounds = set(), 0
    end = time.monotonic() + seconds
    reached |= open_files("/dev/shm") | open_files(folder) | attach_sysv() | pry(pids)
    while time.monotonic() < end:
        # Datagrams come a thousand times a second, the rest now and then.
        if rounds % 200 == 0:
            reached |= dial_sockets() | attack_ports()
        reached |= send_datagrams()
        rounds += 1
        time.sleep(0.001)
    return {"reached": sorted(reached), "rounds": rounds}


def as_stranger(group, work):
    """What `work` returns, by a child that is another user."""
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(group)
            os.setuid(STRANGER)
            os.write(writable, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(writable)
    with open(readable, encoding="utf-8") as file:
        told = file.read()
    os.waitpid(pid, 0)
    return json.loads(told)


def beside(program, transport, group, seconds):
    """Returns what is wrong."""
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, JOB, JOB)
        os.chmod(folder, 0o755)
        job = Job(program, folder, transport)
        ready, said = job.ready()
        if not ready:
            job.finish()
            return [f"ranks did not join: {said}"]
        time.sleep(1)  # until all sleep
        begun, before = time.monotonic(), job.sleeps()
        told = as_stranger(group, lambda: go_round(job.pids(), folder, seconds))
        passed = time.monotonic() - begun
        alive = all(rank.poll() is None for rank in job.ranks)
        woken = [max(count - first[task] for task, count in after.items()) / passed
                 for after, first in zip(job.sleeps(), before)] if alive else []
        wrong += told["reached"]
        wrong += [f"wakes rank {rank} {per_second:.0f} times a second"
                  for rank, per_second in enumerate(woken) if per_second > WAKES_PER_SECOND]
        wrong += [f"rank {rank} ends with {code}: {text[-300:]}" for rank, (code, text) in enumerate(job.finish())
                  if (code, text) != (0, "right")]
        whose = "the same group" if group == JOB else "another group"
        print(f"{transport}, a stranger of {whose}, {told['rounds']} rounds: woken "
              f"{', '.join(f'{per_second:.0f}' for per_second in woken)} times a second; {wrong or 'no fault'}", flush=True)
    return wrong


def enter_namespaces():
    if os.geteuid() != 0:
        print("needs root: the ranks and the stranger are two users")
        sys.exit(77)
    inside = ["unshare", "--net", "--mount", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if subprocess.run([*inside, "true"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
        print("this machine permits no namespaces")
        sys.exit(77)
    sys.exit(subprocess.run([*inside, sys.executable, *sys.argv], env={**os.environ, INSIDE: "1"}, check=False).returncode)


def main():
    if INSIDE not in os.environ:
        enter_namespaces()
    for command in (["ip", "link", "set", "lo", "up"], ["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/dev/shm"]):
        subprocess.run(command, check=True)
    program, seconds = reachable(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 3
    faults = collections.Counter()
    for transport in ("auto", "tcp"):
        for group in (STRANGER, JOB):
            faults.update(beside(program, transport, group, seconds))
    return len(faults) > 0


if __name__ == "__main__":
    sys.exit(main())
