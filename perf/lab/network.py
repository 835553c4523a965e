"""The lab's network: one bridge in the switch's namespace, one veth pair per node, tc tbf on both ends.

And each node's bus: its lo, through a tbf of its own.
"""
import contextlib
import os
import shutil
import subprocess

from .kernel import LabError, NotPermitted

# With 9000 bytes a gigabit is 14,000 packets a second per direction, which a laptop forwards for
# several nodes at once; with 1500 it is 83,000, and the processor becomes the network.
MTU = 9000
FRAME = MTU + 14
# Deep enough that TCP's windows, bounded below, never overflow it: as on a lossless fabric, a busy
# port makes senders wait instead of dropping their packets.
QUEUE_BYTES = 256 << 20
UNITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9, "tbit": 10**12}


def hostname(node):
    return f"node{node}"


def address(node):
    return f"10.77.{1 + node // 200}.{1 + node % 200}"


def mac(node):
    return f"02:4d:4f:45:{node >> 8:02x}:{node & 255:02x}"


def port(node):
    return f"port{node}"


def parse_rate(argument, text):
    """Bits per second of '1gbit', or None for 'none'."""
    if text == "none":
        return None
    lowered = text.lower()
    number = lowered.rstrip("abcdefghijklmnopqrstuvwxyz")
    try:
        rate = int(float(number) * UNITS[lowered[len(number):]])
        if not 8 * 10**3 <= rate <= 10**12:
            raise ValueError
    except (KeyError, ValueError, OverflowError):
        raise LabError(f"{argument} {text}: give bits per second with a unit, from 8kbit to 1tbit, "
                       "for instance 100mbit, 1gbit, 2.5gbit; or none, for no limit") from None
    return rate


def burst_bytes(rate):
    """What may pass at once after a pause: two frames, or what the rate moves while timers are late."""
    return max(2 * FRAME, int(rate / 8 * 200e-6))


def segments(rate):
    """TCP segments that the kernel may send as one packet, as network cards cut up packets themselves: what passes at once.

    tbf would cut larger packets itself and drop their tails. Half a frame is left for the rounding of its burst.
    """
    return max(1, (burst_bytes(rate) - FRAME // 2) // FRAME) if rate else 1


def shape(device, rate):
    return (f"qdisc add dev {device} root tbf rate {rate}bit burst {burst_bytes(rate)}b "
            f"limit {QUEUE_BYTES}b\n")


def find_tools():
    """ip, tc and bridge; Debian's PATH for users lacks their folder."""
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    tools = {name: shutil.which(name, path=path) for name in ("ip", "tc", "bridge")}
    missing = [name for name, found in tools.items() if not found]
    if missing:
        raise NotPermitted(f"missing command {', '.join(missing)}: install Debian's package iproute2")
    return tools


def batch(tool, lines, needs):
    """Runs many commands of ip, tc or bridge in one process."""
    done = subprocess.run([tool, "-batch", "-"], input=lines, text=True, capture_output=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        said = "; ".join(line for line in lines if not line.startswith("Command failed"))
        raise NotPermitted(f"{os.path.basename(tool)} cannot set up {needs}: {said}")


def set_sysctl(name, value):
    # Kernels without the feature lack the file, and then need no setting.
    with contextlib.suppress(OSError):
        with open("/proc/sys/net/" + name, "w") as file:
            file.write(str(value))


def quiet():
    """Keeps the namespace from sending anything by itself, so that counters count only the ranks."""
    set_sysctl("ipv6/conf/all/disable_ipv6", 1)
    set_sysctl("ipv6/conf/default/disable_ipv6", 1)


def wire_switch(tools, pids, rate, ingress):
    """In the switch's namespace: the bridge, and a veth pair that ends in each node's namespace."""
    quiet()
    batch(tools["ip"], f"link add name switch mtu {MTU} type bridge stp_state 0 mcast_snooping 0 "
          "forward_delay 0\nlink set lo up\nlink set switch up\n",
          "a bridge (kernel option CONFIG_BRIDGE)")
    batch(tools["ip"], "".join(
        f"link add name {port(node)} mtu {MTU} type veth peer name eth0 mtu {MTU} "
        f"address {mac(node)} netns {pid}\nlink set {port(node)} master switch up\n"
        for node, pid in enumerate(pids)), "a veth pair per node (kernel option CONFIG_VETH)")
    # Known from the start, no address is ever asked for or flooded to nodes it does not concern.
    batch(tools["bridge"], "".join(f"fdb add {mac(node)} dev {port(node)} master static\n"
                                   for node in range(len(pids))), "the bridge's forwarding table")
    if rate and ingress:
        batch(tools["tc"], "".join(shape(port(node), rate) for node in range(len(pids))),
              "rate limits (kernel option CONFIG_NET_SCH_TBF)")


def wire_node(tools, node, count, rate, bus):
    """In a node's namespace: lo and eth0, addresses, neighbours, TCP's limits, the egress and bus rates."""
    quiet()
    lines = [f"link set lo mtu {MTU} gso_max_segs 1"] if bus else []
    lines += ["link set lo up",
             f"link set eth0 gso_max_segs {segments(rate)}",
             "link set eth0 up",
             f"addr add {address(node)}/16 dev eth0",
             # The kernel's ten segments are meant for 1500-byte packets; two jumbo ones are as much.
             f"route replace 10.77.0.0/16 dev eth0 src {address(node)} initcwnd 2"]
    lines += [f"neigh add {address(other)} lladdr {mac(other)} dev eth0 nud permanent"
              for other in range(count) if other != node]
    batch(tools["ip"], "\n".join(lines) + "\n", "a node's eth0")
    # What one connection has learnt about a queue must not slow the next one down.
    set_sysctl("ipv4/tcp_no_metrics_save", 1)
    # Where nothing is dropped the windows decide, not the algorithm. Reno is the one that every kernel
    # has and allows in a namespace, so that labs behave alike whatever the machine's default is.
    set_sysctl("ipv4/tcp_congestion_control", "reno")
    shaped = {device: limit for device, limit in (("eth0", rate), ("lo", bus)) if limit}
    if shaped:
        # Bounds what all connections together can put into a queue.
        window = max(256 << 10, int(max(shaped.values()) / 8 * 4e-3))
        set_sysctl("ipv4/tcp_rmem", f"4096 131072 {window}")
        set_sysctl("ipv4/tcp_wmem", f"4096 16384 {window}")
        batch(tools["tc"], "".join(shape(device, limit) for device, limit in shaped.items()),
              "rate limits (kernel option CONFIG_NET_SCH_TBF)")


def read_counters(nodes):
    """What each uplink carried, seen from the switch, where a packet counts once no queue can drop it.

    A port receives what the node sent after the node's own queue, and sends what has left the port's.
    """
    rows = {}
    with open("/proc/self/net/dev") as file:
        for line in file.readlines()[2:]:
            device, values = line.split(":")
            rows[device.strip()] = [int(value) for value in values.split()]
    return [{"node": hostname(node), "sent_bytes": rows[port(node)][0],
             "sent_packets": rows[port(node)][1], "received_bytes": rows[port(node)][8],
             "received_packets": rows[port(node)][9]} for node in range(nodes)]
