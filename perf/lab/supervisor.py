"""The processes that are the lab.

    janitor      outside all namespaces; waits for the supervisor's end, then removes the lab's folder
    supervisor   process 1 of the lab's PID namespace; lives in the switch's namespaces
    node         process 1 of its node's PID namespace, one per node

Nothing has a name in the file system: namespaces, bridge, veth pairs and tmpfs live as long as these
processes, and the kernel kills all of them, and every rank, with the supervisor. Each dies with its
parent, so that killing any of them ends the lab.
"""
import contextlib
import os
import shlex
import signal
import socket
import sys
import traceback
import uuid

from . import kernel, network, server, state, wire
from .kernel import (CLONE_NEWIPC, CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUTS, LabError,
                     NotPermitted)


def launch(spec, lock_fd):
    """Forks the janitor. Returns its process number and the socket on which it and the supervisor report.

    Until the caller sends "go", the lab dies with the caller.
    """
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid:
        theirs.close()
        return pid, ours
    try:
        ours.close()
        kernel.die_with_parent()
        os.setsid()
        janitor(spec, theirs, lock_fd)
    except BaseException as error:
        report(theirs, error)
    finally:
        os._exit(1)


def report(control, error):
    """Tells the waiting command why there will be no lab, and the log in any case."""
    traceback.print_exception(error)
    sys.stderr.flush()
    known = isinstance(error, LabError)
    with contextlib.suppress(OSError):
        wire.send(control, {"error": str(error) if known else f"{type(error).__name__}: {error}",
                            "not_permitted": isinstance(error, NotPermitted)})


def janitor(spec, control, lock_fd):
    kernel.name_process("moeccl-lab")
    detach_files(spec["folder"], {control.fileno(), lock_fd})
    os.umask(0o022)
    if not (os.geteuid() == 0 and kernel.has_capability(kernel.CAP_SYS_ADMIN)):
        kernel.enter_user_namespace()
    kernel.die_with_parent()
    kernel.unshare(CLONE_NEWPID)
    alive, held = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(held)
            kernel.die_with_parent()
            supervisor(spec, control, alive)
        except BaseException as error:
            report(control, error)
        finally:
            os._exit(1)
    os.close(alive)

    def stop(*_):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    message, _ = wire.receive(control)
    if message is None:
        stop()
        os.waitpid(pid, 0)
        os._exit(0)
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    kernel.live_on()
    wire.send(control, {"gone": True})
    control.close()
    os.waitpid(pid, 0)
    state.release(spec["folder"])
    os._exit(0)


def detach_files(folder, keep):
    """Lets go of the caller's terminal, pipes and working folder, all of which outlive the command."""
    null = os.open("/dev/null", os.O_RDWR)
    log = os.open(folder + "/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for target, source in ((0, null), (1, log), (2, log)):
        os.dup2(source, target)
    for entry in os.listdir("/proc/self/fd"):
        if int(entry) > 2 and int(entry) not in keep:
            with contextlib.suppress(OSError):
                os.close(int(entry))
    os.chdir("/")


def supervisor(spec, control, alive):
    kernel.name_process("moeccl-lab sw")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.set_blocking(alive, False)
    with contextlib.suppress(BlockingIOError):
        if os.read(alive, 1) == b"":
            return  # the janitor died before the kernel had been told that this process depends on it
    folder, tools, nodes = spec["folder"], spec["tools"], spec["ranks"]
    if os.getuid() != 0:
        kernel.set_inheritable(True)
    kernel.unshare(CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS)
    socket.sethostname("switch")
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_SLAVE)
    shared = folder + "/shared"
    os.mkdir(shared, 0o700)
    kernel.mount("moeccl-lab", shared, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=0700")
    write_shared_files(spec, shared)
    mount_kernel_views()

    own = os.open("/proc/self/ns/pid", os.O_RDONLY)
    pids, links = [], []
    for node in range(len(nodes)):
        kernel.unshare(CLONE_NEWPID)
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(own)
                for link in links:
                    link.close()
                ours.close()
                kernel.die_with_parent()
                node_process(spec, node, theirs, shared)
            except BaseException as error:
                report(theirs, error)
            finally:
                os._exit(1)
        # Back home, or the next node's PID namespace could not be made: it would lie inside this one.
        kernel.check(kernel.libc.setns(own, CLONE_NEWPID))
        theirs.close()
        pids.append(pid)
        links.append(ours)
        expect(ours, node)
        wire.send(control, {"progress": f"{node + 1} of {len(nodes)} nodes created"})
    os.close(own)
    network.wire_switch(tools, pids, spec["rate"], spec["ingress"])
    for link in links:
        wire.send(link, {"wired": True})
    for node, link in enumerate(links):
        expect(link, node)
        link.close()
        wire.send(control, {"progress": f"{node + 1} of {len(nodes)} nodes connected"})
    listener = server.listen(folder + "/switch.sock")
    wire.send(control, {"ready": True})
    control.close()
    lost = server.serve(listener, shared, len(nodes), set(pids))
    print(f"node{pids.index(lost)} was killed: the lab ends", flush=True)


def expect(link, node):
    message, _ = wire.receive(link)
    if message is None or "error" in message:
        kind = NotPermitted if message and message["not_permitted"] else LabError
        raise kind(f"node{node}: " + (message["error"] if message else "its first process died"))


def write_shared_files(spec, shared):
    """What nodes see in place of the machine's own files, and what is common to all nodes."""
    nodes = range(len(spec["ranks"]))
    with open(shared + "/hosts", "w") as file:
        file.write("127.0.0.1 localhost\n")
        file.writelines(f"{network.address(node)} {network.hostname(node)}\n" for node in nodes)
    with open(shared + "/hostfile", "w") as file:
        file.writelines(f"{network.hostname(node)} slots={spec['ranks'][node]}\n" for node in nodes)
    with open(shared + "/remote-shell", "w") as file:
        file.write(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(spec['command'])} "
                   f"remote-shell {shlex.quote(spec['folder'])} \"$@\"\n")
    os.chmod(shared + "/remote-shell", 0o700)
    for node in nodes:
        with open(f"{shared}/boot_id.{node}", "w") as file:
            file.write(f"{uuid.uuid4()}\n")


def mount_kernel_views():
    """A /proc of the new PID namespace and a /sys of the new network namespace."""
    flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    kernel.mount("proc", "/proc", "proc", flags)
    cgroups = None
    with contextlib.suppress(OSError):
        cgroups = os.open("/sys/fs/cgroup", os.O_PATH)
    try:
        kernel.mount("sysfs", "/sys", "sysfs", flags)
    except NotPermitted:
        kernel.mount("sysfs", "/sys", "sysfs", flags | kernel.MS_RDONLY)
    if cgroups is not None:
        # The new /sys hides the control groups, in which hwloc looks for the allowed cores.
        kernel.mount(f"/proc/self/fd/{cgroups}", "/sys/fs/cgroup", None, kernel.MS_BIND | kernel.MS_REC)
        os.close(cgroups)


def node_process(spec, node, link, shared):
    kernel.name_process(f"moeccl-lab n{node}")
    kernel.unshare(CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS)
    socket.sethostname(network.hostname(node))
    mount_kernel_views()
    kernel.mount("tmpfs", os.path.realpath("/dev/shm"), "tmpfs",
                 kernel.MS_NOSUID | kernel.MS_NODEV, "mode=1777")
    # UCX, Open MPI and NCCL tell hosts apart by it.
    kernel.mount(f"{shared}/boot_id.{node}", "/proc/sys/kernel/random/boot_id", None, kernel.MS_BIND)
    kernel.mount(shared + "/hosts", os.path.realpath("/etc/hosts"), None, kernel.MS_BIND)
    wire.send(link, {"unshared": True})
    message, _ = wire.receive(link)
    if message is None:
        return
    network.wire_node(spec["tools"], node, len(spec["ranks"]), spec["rate"], spec["bus"])
    listener = server.listen(f"{spec['folder']}/{network.hostname(node)}.sock")
    wire.send(link, {"ready": True})
    link.close()
    server.serve(listener, shared, len(spec["ranks"]))
