"""Messages between the command and the lab's processes: a length, JSON, and file descriptors."""
import json
import socket
import struct

MAX_FDS = 8


def send(sock, message, fds=()):
    data = json.dumps(message).encode()
    data = struct.pack("!I", len(data)) + data
    sent = socket.send_fds(sock, [data], list(fds)) if fds else 0
    sock.sendall(data[sent:])


def receive(sock):
    """Returns (message, fds), or (None, []) once the other side has gone."""
    fds = []
    data = b""
    wanted = 4
    try:
        while len(data) < wanted:
            if len(data) < 4:
                chunk, new, _, _ = socket.recv_fds(sock, 4 - len(data), MAX_FDS,
                                                     socket.MSG_CMSG_CLOEXEC)
                fds += new
            else:
                chunk = sock.recv(wanted - len(data))
            if not chunk:
                return None, []
            data += chunk
            if len(data) == 4:
                wanted = 4 + struct.unpack("!I", data)[0]
    except ConnectionError:
        return None, []
    return json.loads(data[4:]), fds
