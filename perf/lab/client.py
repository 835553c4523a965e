"""Starting commands in nodes, and everything between their output and the caller's terminal."""
import contextlib
import os
import random
import resource
import selectors
import signal
import socket
import sys
import time

from . import server, wire
from .kernel import LabError


def say(text):
    print(f"moeccl-lab: {text}", file=sys.stderr, flush=True)


def connect(folder, name):
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(f"{folder}/{name}.sock")
    except OSError as error:
        raise LabError(f"{name} does not answer ({error.strerror})") from None
    return sock


def raise_file_limit():
    """Two pipes a rank and more: uses what the hard limit allows. Ranks get the caller's own limits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Lines:
    """Copies one stream of one rank to one of ours, whole lines at a time, so that lines never mix."""

    LIMIT = 1 << 16

    def __init__(self, target, prefix):
        self.target, self.prefix, self.pending = target, prefix, b""

    def feed(self, data):
        *lines, self.pending = (self.pending + data).split(b"\n")
        if len(self.pending) > self.LIMIT:
            lines.append(self.pending)
            self.pending = b""
        self.put(lines)

    def finish(self):
        if self.pending:
            self.put([self.pending])
            self.pending = b""

    def put(self, lines):
        if lines:
            self.target.write(b"".join(self.prefix + line + b"\n" for line in lines))
            self.target.flush()


class Job:
    """Processes started through connections to handlers; ends as one, and with one exit code."""

    def __init__(self, grace, prefix=False, name_of=None, sessions=False):
        self.grace, self.prefix, self.name_of, self.sessions = grace, prefix, name_of, sessions
        self.selector = selectors.DefaultSelector()
        self.running = {}   # connection -> tags of its running processes
        self.code = 0
        self.stopping = False
        self.deadline = None
        self.interrupts = 0
        self.around = server.surroundings()
        raise_file_limit()

    def begin(self, connection, processes, folder=None):
        """Starts (tag, argv, env, fds) through one handler; fds None stands for pipes to this job."""
        self.running[connection] = {tag for tag, *_ in processes}
        self.selector.register(connection, selectors.EVENT_READ)
        try:
            wire.send(connection, {"do": "run", "processes": len(processes), "folder": folder,
                                   "sessions": self.sessions, **self.around})
            for tag, argv, env, fds in processes:
                owned = [] if fds else self.pipes(tag)
                wire.send(connection, {"tag": tag, "argv": argv, "env": env}, fds or owned)
                for fd in owned:
                    os.close(fd)
        except ConnectionError:
            pass  # the handler's death shows as the end of its connection

    def pipes(self, tag):
        prefix = os.fsencode(f"[{tag}] ") if self.prefix else b""
        fds = [os.dup(0) if tag == 0 else os.open("/dev/null", os.O_RDONLY)]
        for target in (sys.stdout.buffer, sys.stderr.buffer):
            readable, writable = os.pipe()
            self.selector.register(readable, selectors.EVENT_READ, Lines(target, prefix))
            fds.append(writable)
        return fds

    def run(self):
        """Waits for all processes; returns the exit code."""
        wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        received = []
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, lambda number, _: received.append(number))
        signal.set_wakeup_fd(wake[1], warn_on_full_buffer=False)
        self.selector.register(wake[0], selectors.EVENT_READ)
        while any(self.running.values()):
            timeout = max(0, self.deadline - time.monotonic()) if self.deadline else None
            for key, _ in self.selector.select(timeout):
                if key.fileobj == wake[0]:
                    server.drain(wake[0])
                elif isinstance(key.data, Lines):
                    self.copy(key.fileobj, key.data)
                else:
                    self.heed(key.fileobj)
            while received:
                self.interrupt(received.pop(0))
            if self.deadline and time.monotonic() >= self.deadline and any(self.running.values()):
                say(f"not stopped within {self.grace:g} s: killing the rest")
                break
        self.finish()
        return self.code

    def copy(self, fd, lines):
        data = os.read(fd, 1 << 16)
        try:
            if data:
                lines.feed(data)
            else:
                self.selector.unregister(fd)
                os.close(fd)
                lines.finish()
        except BrokenPipeError:
            # Whoever reads our output has gone, as in "moeccl-lab run ... | head".
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, lines.target.fileno())
            os.close(null)
            self.fail(128 + signal.SIGPIPE)

    def heed(self, connection):
        message, _ = wire.receive(connection)
        tags = self.running[connection]
        if message is None:
            self.selector.unregister(connection)
            lost = sorted(tags)
            tags.clear()
            if lost:
                if not self.stopping:
                    what = self.name_of(lost[0]) if self.name_of else "the command"
                    say(f"{what} was lost: its node or the whole lab was taken down")
                self.fail(1)
            return
        tags.discard(message["tag"])
        code = message["code"]
        if code:
            if not self.stopping and self.name_of:
                how = f"exited with {code}" if code > 0 else f"was killed by {signal_name(-code)}"
                rest = any(self.running.values())
                say(f"{self.name_of(message['tag'])} {how}" + ("; stopping the others" if rest else ""))
            self.fail(code if code > 0 else 128 - code)

    def fail(self, code, number=signal.SIGTERM):
        if not self.stopping:
            self.stopping = True
            self.code = code
            self.deadline = time.monotonic() + self.grace
            self.signal_all(number)

    def interrupt(self, number):
        self.interrupts += 1
        if self.interrupts > 1:
            self.deadline = time.monotonic()
        self.fail(128 + number, number)

    def signal_all(self, number):
        for connection, tags in self.running.items():
            if tags:
                with contextlib.suppress(OSError):
                    wire.send(connection, {"signal": int(number)})

    def finish(self):
        """Has the handlers kill what is left, waits for them, and shows the last output."""
        deadline = time.monotonic() + 10
        for connection in self.running:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
        for connection in self.running:
            connection.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                while wire.receive(connection)[0] is not None:
                    pass
            except TimeoutError:
                say("a process of this run does not die: see moeccl-lab status")
            connection.close()
        for key in list(self.selector.get_map().values()):
            if isinstance(key.data, Lines):
                os.set_blocking(key.fileobj, False)
                with contextlib.suppress(BlockingIOError):
                    while key.fileobj in self.selector.get_map():
                        self.copy(key.fileobj, key.data)
                key.data.finish()


def signal_name(number):
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def placement(ranks):
    """(rank, node, local rank, ranks of the node), node by node."""
    rank = 0
    for node, count in enumerate(ranks):
        for local in range(count):
            yield rank, node, local, count
            rank += 1


def rank_environment(ranks, id_file, address):
    """The environment of each rank, by rank: moeccl's variables, and torchrun's with rank 0 at `address`."""
    port = str(random.randrange(20000, 30000))  # the kernel gives connections higher ones
    return [{"MOECCL_RANK": str(rank), "MOECCL_NRANKS": str(sum(ranks)), "MOECCL_LOCAL_RANK": str(local),
             "MOECCL_LOCAL_NRANKS": str(count), "MOECCL_NODE": str(node), "MOECCL_ID_FILE": id_file,
             "RANK": str(rank), "WORLD_SIZE": str(sum(ranks)), "LOCAL_RANK": str(local),
             "MASTER_ADDR": address, "MASTER_PORT": port}
            for rank, node, local, count in placement(ranks)]


def run_once(folder, name, argv, env=None, grace=5.0, run_folder=None):
    """One command in one node on the caller's own standard streams; returns its exit code."""
    job = Job(grace)
    job.begin(connect(folder, name), [(0, argv, env or {}, [0, 1, 2])], run_folder)
    return job.run()


def count(folder):
    sock = connect(folder, "switch")
    wire.send(sock, {"do": "count"})
    rows, _ = wire.receive(sock)
    if rows is None:
        raise LabError("the lab was taken down meanwhile")
    return rows
