"""The kernel interfaces that Python 3.11's standard library lacks: namespaces, mounts, capabilities."""
import ctypes
import os
import signal

libc = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
NAMES = {
    CLONE_NEWNS: "mount", CLONE_NEWUTS: "UTS", CLONE_NEWIPC: "IPC", CLONE_NEWUSER: "user",
    CLONE_NEWPID: "PID", CLONE_NEWNET: "network",
}

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_BIND, MS_REC, MS_SLAVE = 0x1000, 0x4000, 0x80000

PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER, PR_CAP_AMBIENT = 1, 15, 36, 47
CAP_NET_ADMIN, CAP_SYS_ADMIN = 12, 21


class LabError(Exception):
    """Something the user can act upon; printed without a traceback."""


class NotPermitted(LabError):
    """The kernel or the machine lacks what an emulated cluster needs."""


def check(result):
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def unshare(flags):
    """Leaves the given namespaces for new ones, one call each so that a failure names its kind."""
    for flag in sorted(NAMES):
        if flags & flag:
            try:
                check(libc.unshare(flag))
            except OSError as error:
                raise NotPermitted(f"no new {NAMES[flag]} namespace: {error.strerror}"
                                   + why_not(flag, error.errno)) from None


def why_not(flag, error):
    """What this machine says about a refused namespace, as far as it can be known."""
    reasons = []
    for path, refusing, remedy in (
            ("kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"),
            ("kernel/apparmor_restrict_unprivileged_userns", "1",
             "sysctl kernel.apparmor_restrict_unprivileged_userns=0"),
            ("user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=15000")):
        if (os.getuid() != 0 or flag == CLONE_NEWUSER) and read("/proc/sys/" + path) == refusing:
            reasons.append(f"/proc/sys/{path} is {refusing}; an administrator can run: {remedy}")
    if not os.path.exists("/proc/self/ns/" + {
            CLONE_NEWNS: "mnt", CLONE_NEWUTS: "uts", CLONE_NEWIPC: "ipc", CLONE_NEWUSER: "user",
            CLONE_NEWPID: "pid", CLONE_NEWNET: "net"}[flag]):
        reasons.append(f"this kernel is built without {NAMES[flag]} namespaces")
    if not reasons and flag == CLONE_NEWUSER:
        reasons.append("a container's seccomp filter or a chroot may forbid it; "
                       "root on the machine itself needs no user namespace")
    return "".join("\n  " + reason for reason in reasons)


def read(path):
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""


def mount(source, target, kind=None, flags=0, data=None):
    def encode(text):
        return None if text is None else os.fsencode(text)
    try:
        check(libc.mount(encode(source), encode(target), encode(kind), ctypes.c_ulong(flags),
                         encode(data)))
    except OSError as error:
        raise NotPermitted(f"cannot mount {kind or source} on {target}: {error.strerror}") from None


def prctl(option, *arguments):
    padded = [ctypes.c_ulong(value) for value in arguments] + [ctypes.c_ulong(0)] * (4 - len(arguments))
    check(libc.prctl(option, *padded))


def die_with_parent():
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def live_on():
    prctl(PR_SET_PDEATHSIG, 0)


def name_process(name):
    libc.prctl(PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def has_capability(capability):
    for line in read("/proc/self/status").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> capability & 1)
    return False


def set_inheritable(keep):
    """Makes CAP_NET_ADMIN pass (or not pass) to programs that this process executes.

    Without root, the processes of the lab own all capabilities over its namespaces, but lose them at
    exec unless they are inheritable and ambient: ip and tc need that, ranks must not get it.
    """
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable: low words, then high words
    check(libc.capget(header, sets))
    sets[2] = 1 << CAP_NET_ADMIN if keep else 0
    sets[5] = 0
    check(libc.capset(header, sets))
    if keep:
        prctl(PR_CAP_AMBIENT, 2, CAP_NET_ADMIN)
    else:
        prctl(PR_CAP_AMBIENT, 4)


def enter_user_namespace():
    """Makes this process the owner of everything it unshares next, under its own user id."""
    user, group = os.geteuid(), os.getegid()
    unshare(CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"),
                       ("gid_map", f"{group} {group} 1")):
        try:
            with open("/proc/self/" + name, "w") as file:
                file.write(text)
        except OSError as error:
            raise NotPermitted(f"cannot write /proc/self/{name}: {error.strerror}") from None
