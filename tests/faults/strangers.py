#!/usr/bin/env python3
"""Does to every port that anything listens on in this network namespace what strangers do.

    strangers.py SECONDS IDLE

Looks for ports all the time. Each new one gets its share of IDLE connections, which say nothing; then, some 50 times a
second, a random port gets random bytes, HTTP, what a rank of another job has said, data without a proof of the job's
secret, or with a wrong one. Prints how many ports and attacks that were; exit code 1 where a port answered more than a
challenge.
"""
import hashlib
import hmac
import os
import random
import resource
import socket
import struct
import sys
import time

CHALLENGE = 72
PORTS_OF_A_NODE = 4


def listening():
    """Addresses that are listened on: (family, address, port)."""
    for family, path, raw in ((socket.AF_INET, "/proc/net/tcp", 4), (socket.AF_INET6, "/proc/net/tcp6", 16)):
        with open(path, encoding="ascii") as file:
            for line in file.readlines()[1:]:
                fields = line.split()
                if fields[3] != "0A":
                    continue
                address, port = fields[1].split(":")
                packed = b"".join(bytes.fromhex(address[i:i + 8])[::-1] for i in range(0, 2 * raw, 8))
                if not any(packed):
                    packed = packed[:-1] + b"\x01" if raw == 16 else b"\x7f\0\0\x01"
                yield family, socket.inet_ntop(family, packed), int(port, 16)


def dial(target):
    family, address, port = target
    connection = socket.socket(family, socket.SOCK_STREAM)
    connection.settimeout(0.5)
    connection.connect((address, port))
    return connection


def message(kind):
    """A frame of data (tcp_frames.h), a message on a control connection, or a part of an all-gather."""
    return random.choice((
        struct.pack("<B3xIIIQQ", kind, 64, 1, 0, random.getrandbits(64), 64) + b"\xaa" * 64,
        struct.pack("<IiQQ", 2, 0, 1, 248) + struct.pack("<ii240s", 0, 0, b"its process 1 has ended"),
        struct.pack("<IiQ", 3, 0, 64) + b"\xaa" * 64))


def greeting(version, nonce):
    return b"moeccl" + version + b"\x01" + nonce


def answer(version, theirs, ours):
    """With the secret of another job."""
    said = struct.pack("<III", 0, random.choice((1, 2)), 0) if version == b">" else struct.pack("<iiq80s", 2, 1, 5000, b"x")
    label = b"moeccl connection, dialer" if version == b">" else b"moeccl rank"
    return said + hmac.new(b"\x07" * 32, label + ours + theirs + said, hashlib.sha256).digest()


def attack(target):
    """Returns what came back."""
    kind = random.randrange(5)
    version = random.choice((b">", b"?"))
    nonce = os.urandom(32)
    with dial(target) as connection:
        if kind == 0:
            connection.sendall(os.urandom(random.randrange(1, 4000)))
        elif kind == 1:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        elif kind == 2:  # as recorded
            connection.sendall(greeting(version, nonce) + answer(version, os.urandom(32), nonce) + message(2))
        elif kind == 3:
            connection.sendall(message(random.randrange(1, 11)) * 3)
        else:
            connection.sendall(greeting(version, nonce))
            challenge = connection.recv(CHALLENGE, socket.MSG_WAITALL)
            if len(challenge) != CHALLENGE:
                return challenge
            connection.sendall(answer(version, challenge[8:40], nonce) + message(2) * 3)
        back = b""
        connection.settimeout(0.05)
        while more := connection.recv(4096):
            back += more
        return back


def main():
    seconds, idle = float(sys.argv[1]), int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    end = time.monotonic() + seconds
    ports, now, held, attacks, answered, look, start = set(), set(), [], 0, [], 0, None
    while time.monotonic() < end:
        # A look costs more than an attack. Ports of the start are soon closed.
        if time.monotonic() > look:
            now = set(listening())
            start = start or (time.monotonic() if now else None)
            look = time.monotonic() + (0.5 if start and time.monotonic() > start + 1 else 0.01)
        for target in now - ports:
            for _ in range(idle // PORTS_OF_A_NODE):
                try:
                    held.append(dial(target))
                except OSError:
                    break
        ports |= now
        if now:
            try:
                attacks += 1
                back = attack(random.choice(sorted(now)))
                if len(back) > CHALLENGE:
                    answered.append(back[:200])
            except OSError:
                pass
        time.sleep(0.02)
    print(f"{len(ports)} ports, {len(held)} idle connections, {attacks} attacks, {len(answered)} answered {answered[:1]}, "
          f"{time.process_time():.2f} s of a processor")
    return len(answered) > 0


if __name__ == "__main__":
    sys.exit(main())
