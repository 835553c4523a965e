"""Where labs are recorded: <runtime folder>/moeccl-lab-<uid>/<name>/.

A lab's processes hold a lock on its folder. The kernel drops it with the last of them, so a folder
that can be locked is stale, whatever process numbers it names.
"""
import contextlib
import fcntl
import json
import os
import shutil
import time

from .kernel import LabError, read


def root():
    base = os.environ.get("XDG_RUNTIME_DIR") or ""
    if not (os.path.isabs(base) and os.path.isdir(base) and os.access(base, os.W_OK)):
        base = "/tmp"
    return os.path.join(base, f"moeccl-lab-{os.getuid()}")


def folder(name):
    path = os.path.join(root(), name)
    if len(os.fsencode(path)) > 85:
        raise LabError(f"{path} is too long a path for sockets (85 bytes); "
                       "set XDG_RUNTIME_DIR to a shorter folder")
    return path


@contextlib.contextmanager
def locked_root():
    """Holds all other commands off while labs are claimed or removed."""
    path = root()
    while True:
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o700)
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise LabError(f"cannot use {path}: {error.strerror}") from None
        status = os.fstat(fd)
        if status.st_uid != os.getuid() or status.st_mode & 0o077:
            os.close(fd)
            raise LabError(f"{path} must belong to you and be closed to others (mode 0700)")
        fcntl.flock(fd, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if os.stat(path).st_ino == status.st_ino:
                break
        os.close(fd)  # removed while this process waited for the lock
    try:
        yield path
    finally:
        with contextlib.suppress(OSError):
            os.rmdir(path)
        os.close(fd)


def lock(path):
    """A descriptor that locks the folder, or None where a living lab holds it."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return fd
    except BlockingIOError:
        os.close(fd)
        return None


def sweep():
    """Removes what labs left that were killed; returns their names."""
    stale = []
    if not os.path.isdir(root()):
        return stale
    with locked_root() as path:
        for name in sorted(os.listdir(path)):
            fd = None
            with contextlib.suppress(OSError):  # nothing of ours
                fd = lock(os.path.join(path, name))
            if fd is not None:
                shutil.rmtree(os.path.join(path, name))
                os.close(fd)
                stale.append(name)
    return stale


def claim(path):
    """Creates the folder of a new lab and returns the descriptor whose lock keeps it."""
    with locked_root():
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            name = os.path.basename(path)
            raise LabError(f"lab '{name}' is up already, and another one: take it down (moeccl-lab down --name {name}) "
                           "or give the new one another --name") from None
        return lock(path)


def release(path):
    with locked_root():
        shutil.rmtree(path, ignore_errors=True)


def start_time(pid):
    """The kernel's start time of a process, which tells it from a later one of the same number."""
    stat = read(f"/proc/{pid}/stat")
    return int(stat.rpartition(")")[2].split()[19]) if stat else None


def save(path, lab):
    with open(path + "/lab.json.new", "w") as file:
        json.dump(lab, file, indent=1)
    os.rename(path + "/lab.json.new", path + "/lab.json")


def load(name):
    """The record of a lab that is up, or None."""
    path = folder(name)
    sweep()
    try:
        with open(path + "/lab.json") as file:
            return json.load(file)
    except FileNotFoundError:
        if os.path.isdir(path):
            raise LabError(f"lab '{name}' is only just coming up") from None
        return None


def load_or_fail(name):
    lab = load(name)
    if lab is None:
        raise LabError(f"no lab '{name}' is up (looked in {root()}); bring one up with, for instance:\n"
                       f"  moeccl-lab up --nodes 4x4 --uplink 1gbit"
                       + (f" --name {name}" if name != "lab" else ""))
    return lab


def wait_until_free(path, seconds):
    """Whether all processes of the lab end within this time."""
    deadline = time.monotonic() + seconds
    while os.path.isdir(path):
        with contextlib.suppress(FileNotFoundError):
            fd = lock(path)
            if fd is not None:
                os.close(fd)
                return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
