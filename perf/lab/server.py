"""What runs inside a node: a server that starts commands there on request, and ends them.

One connection is one request. A handler process, forked per connection, starts the processes, reports
their exits, forwards signals, and when the connection closes, for whatever reason, kills everything
that descends from them. So a command in a node never outlives who asked for it.
"""
import contextlib
import os
import resource
import select
import shutil
import signal
import socket
import traceback

from . import kernel, network, wire

LIMITS = [name for name in dir(resource) if name.startswith("RLIMIT_")]


def surroundings():
    """What a command in a node takes over from the process that asks for it."""
    return {"env": dict(os.environ), "cwd": os.getcwd(), "cpus": sorted(os.sched_getaffinity(0)),
            "umask": current_umask(),
            "limits": {name: resource.getrlimit(getattr(resource, name)) for name in LIMITS}}


def current_umask():
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def take_over(around):
    os.umask(around["umask"])
    for name, (soft, hard) in around["limits"].items():
        with contextlib.suppress(ValueError, OSError, AttributeError):
            resource.setrlimit(getattr(resource, name), (soft, hard))
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, around["cpus"])
    os.chdir(around["cwd"])


def start(around, argv, env, fds, session=False):
    """Forks and executes argv with fds as its standard streams; returns its process number."""
    # Signals that arrive before the child is ready for them wait until it is.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    pid = os.fork()
    if pid:
        # On both sides of the fork, so that the group exists whoever comes first. A leader of a group
        # could make no session.
        if not session:
            with contextlib.suppress(OSError):
                os.setpgid(pid, pid)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return pid
    code = 127
    try:
        # A group of its own, to be signalled with what it starts. A session of its own only where that
        # is asked for: the scheduler shares the cores by session, and all ranks shall share them alike.
        os.setsid() if session else os.setpgid(0, 0)
        kernel.die_with_parent()
        for target, fd in enumerate(fds):
            os.dup2(fd, target, inheritable=True)
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGTERM, signal.SIGINT,
                       signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if os.getuid() != 0 and kernel.has_capability(kernel.CAP_NET_ADMIN):
            kernel.set_inheritable(False)
        take_over(around)
        os.execvpe(argv[0], argv, {**around["env"], **env})
    except BaseException as error:
        code = 126 if isinstance(error, PermissionError) else 127
        reason = error.strerror if isinstance(error, OSError) else error
        os.write(2, os.fsencode(f"moeccl-lab: cannot run {argv[0]} in {around['cwd']}: {reason}\n"))
    finally:
        os._exit(code)


def children():
    """Direct children of this process."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            fields = kernel.read(f"/proc/{entry}/stat").rpartition(")")[2].split()
            if len(fields) > 1 and int(fields[1]) == os.getpid():
                found.append(int(entry))
    return found


def kill_descendants():
    """Kills children until none is left; those of a killed child become this process's own."""
    while True:
        for pid in children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def wakeup_pipe():
    """A descriptor that becomes readable when a child has ended."""
    readable, writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    return readable


def drain(fd):
    with contextlib.suppress(BlockingIOError):
        while os.read(fd, 512):
            pass


def handle(connection, shared=None, nodes=0):
    """Serves one request from start to end, in a process of its own."""
    kernel.name_process("moeccl-lab run")
    request, _ = wire.receive(connection)
    if request is None:
        return
    if request["do"] == "count":
        wire.send(connection, network.read_counters(nodes))
        return
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    # A run's own folder, seen by all nodes, gone with the run: for the ID file and MPI's session files.
    run_folder = os.path.join(shared, request["folder"]) if request.get("folder") else None
    if run_folder:
        os.mkdir(run_folder, 0o700)
    try:
        supervise(connection, request)
    finally:
        kill_descendants()
        if run_folder:
            shutil.rmtree(run_folder, ignore_errors=True)


def supervise(connection, request):
    ended = wakeup_pipe()
    tags = {}
    for _ in range(request["processes"]):
        process, fds = wire.receive(connection)
        if process is None:
            return
        tags[start(request, process["argv"], process["env"], fds, request["sessions"])] = process["tag"]
        for fd in fds:
            os.close(fd)
    while True:
        ready, _, _ = select.select([connection, ended], [], [])
        if ended in ready:
            drain(ended)
            with contextlib.suppress(ChildProcessError):
                while True:
                    pid, status = os.waitpid(-1, os.WNOHANG)
                    if pid == 0:
                        break
                    if pid in tags:
                        wire.send(connection, {"tag": tags.pop(pid),
                                               "code": os.waitstatus_to_exitcode(status)})
        if connection in ready:
            message, _ = wire.receive(connection)
            if message is None or "signal" not in message:
                return
            for pid in tags:
                with contextlib.suppress(ProcessLookupError):
                    try:
                        os.killpg(pid, message["signal"])
                    except ProcessLookupError:  # it has no session yet
                        os.kill(pid, message["signal"])


def spawn_handler(connection, *arguments, asker=None):
    """Forks the handler of one connection.

    Outside a lab there is no server between the asker and the handler. The handler then leaves the
    asker's session, whose terminal would signal it, and outlives the asker, to clear up after it.
    """
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.set_wakeup_fd(-1)
        if asker:
            asker.close()
            os.setsid()
        else:
            kernel.die_with_parent()
        handle(connection, *arguments)
    except ConnectionError:
        pass
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(0)


def serve(listener, shared, nodes, vital=()):
    """Accepts connections until one of the vital children ends; returns that child's number."""
    ended = wakeup_pipe()
    handlers = set()
    while True:
        ready, _, _ = select.select([listener, ended], [], [])
        if ended in ready:
            drain(ended)
            with contextlib.suppress(ChildProcessError):
                while True:
                    pid, status = os.waitpid(-1, os.WNOHANG)
                    if pid == 0:
                        break
                    if pid in vital:
                        return pid
                    # A handler leaves no process behind, unless it was killed itself; then what it
                    # ran, and later what that ran, become children of this process.
                    if pid not in handlers or os.WIFSIGNALED(status):
                        kill_orphans((handlers - {pid}).union(vital))
                    handlers.discard(pid)
        if listener in ready:
            connection, _ = listener.accept()
            handlers.add(spawn_handler(connection, shared, nodes))
            connection.close()


def kill_orphans(known):
    for pid in set(children()) - known:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def listen(path):
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(128)
    return listener
