"""The commands of moeccl-lab."""
import argparse
import contextlib
import json
import os
import re
import signal
import socket
import sys
import time
import uuid

from . import VERSION, client, network, server, state, supervisor, wire
from .kernel import LabError, NotPermitted

NOT_PERMITTED = 3
MAX_NODES = 250

DESCRIPTION = """\
An emulated cluster on this machine, to see what an algorithm does to the bytes and messages on slow
links. A node is a set of namespaces with a host name, addresses, /dev/shm and boot id of its own;
nodes are joined by a switch through uplinks of a chosen rate. It needs root, or a kernel that lets
users make user namespaces, and Debian's iproute2. It leaves nothing behind."""

EXAMPLES = """\
examples:
  moeccl-lab up --nodes 4x4 --uplink 1gbit
  moeccl-lab run -- ./program
  moeccl-lab mpirun -- -np 16 ./mpi-program
  moeccl-lab exec node2 -- ip addr
  moeccl-lab counters --json > before;  ...;  moeccl-lab counters --since before
  moeccl-lab down

exit codes: 0 success; 1 the lab could not do it; 2 wrong arguments; 3 this kernel or machine does not
permit an emulated cluster; run, mpirun and exec: that of the first command that failed."""


class Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog):
        super().__init__(prog, max_help_position=32, width=100)


def parser():
    top = argparse.ArgumentParser(prog="moeccl-lab", description=DESCRIPTION, epilog=EXAMPLES,
                                  formatter_class=Help, allow_abbrev=False)
    top.add_argument("--name", default="lab", help="which lab, if there are several (default: lab); also behind COMMAND")
    top.add_argument("--version", action="version", version=f"moeccl-lab (moeccl) {VERSION}", help="print the version and exit")
    commands = top.add_subparsers(dest="do", metavar="COMMAND", required=True)

    def add(name, text, more="", command=False):
        sub = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ". " + more,
                                  formatter_class=Help, allow_abbrev=False)
        if command:
            sub.usage = f"moeccl-lab {name} [options] " + command
        sub.add_argument("--name", default=argparse.SUPPRESS, help="which lab, if there are several (default: lab)")
        return sub

    up = add("up", "bring a lab up", "No error if one like it is up: then that one stays.")
    up.add_argument("--nodes", metavar="N[xG]",
                    help="number of nodes, 1 to %d; or also the ranks of each, as in 2x4, or of every node, as in "
                         "4,4,3" % MAX_NODES)
    up.add_argument("--ranks-per-node", metavar="G[,G...]",
                    help="ranks that run starts in each node: one number for all nodes (default: 1), or "
                         "one for each, as in 3,5,1")
    up.add_argument("--uplink", default="none", metavar="RATE",
                    help="rate of each node's uplink, as in 100mbit or 1gbit (default: none, unshaped)")
    up.add_argument("--bus", default="none", metavar="RATE",
                    help="let the ranks of a node reach each other not through memory but through a bus "
                         "that carries RATE for all of them together (default: none)")
    up.add_argument("--shape", choices=["both", "egress"], default="both",
                    help="limit what a node sends and what it receives, each to RATE (both, the "
                         "default), or only what it sends (egress)")

    run = add("run", "start a command once per rank, in the rank's node",
              "Each rank finds MOECCL_RANK, MOECCL_NRANKS, MOECCL_LOCAL_RANK, MOECCL_LOCAL_NRANKS, "
              "MOECCL_NODE and MOECCL_ID_FILE in its environment, and RANK, WORLD_SIZE, LOCAL_RANK, "
              "MASTER_ADDR and MASTER_PORT as from torchrun; ranks are numbered node by node. The ID "
              "file does not exist at first; every node sees its folder, which is removed after the "
              "run. When a rank fails, or at Ctrl-C, all others get SIGTERM (SIGINT), then SIGKILL. "
              "Rank 0 reads this command's standard input.", "-- CMD [ARGS]")
    run.add_argument("--per-node", type=int, metavar="N", help="start N ranks in every node instead")
    run.add_argument("--env", action="append", default=[], metavar="K=V", help="set K to V for all ranks")
    run.add_argument("--no-prefix", dest="prefix", action="store_false",
                     help="do not put [rank] before every line of output")
    run.add_argument("--sessions", action="store_true",
                     help="a session of its own for each rank, as some launchers make them: Linux then "
                          "shares the cores among ranks in another way")
    run.add_argument("--grace", type=float, default=5, metavar="SECONDS",
                     help="time between SIGTERM and SIGKILL (default: 5)")
    run.add_argument("--emulate", metavar="NODESxRANKS",
                     help="no lab: plain processes that are told by MOECCL_NODE_ID which node to take "
                          "themselves for, as in 2x4 or, uneven, 3,5,1; unshaped")

    add("mpirun", "run Open MPI's mpirun in node 0, with all nodes as its hosts",
        "Slots are the lab's ranks per node; arguments are mpirun's own. Processes are not bound to "
        "cores, and yield them when there are more ranks than cores.", "-- MPIRUN_ARGS")
    execute = add("exec", "run one command in one node", "", "NODE -- CMD [ARGS]")
    execute.add_argument("node", metavar="NODE", help="an index, a host name as in node2, or switch")
    counters = add("counters", "show what each node's uplink has carried",
                   "Bytes are whole Ethernet frames; what a full queue dropped is not counted.")
    counters.add_argument("--json", action="store_true", help="as JSON, which --since reads")
    counters.add_argument("--since", metavar="FILE",
                          help="only what was carried since FILE was written by counters --json; '-' is "
                               "standard input")
    status = add("status", "show the lab; exit code 1 if it is not up")
    status.add_argument("--json", action="store_true", help="as JSON")
    add("down", "take the lab down, with everything that runs in it; no error if it is not up")
    return top


def main(arguments, command):
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:  # closed by the caller: keep the number from one of our own sockets
            os.open("/dev/null", os.O_RDWR)
    own, dashes, rest = arguments, False, []
    if "--" in arguments:
        at = arguments.index("--")
        own, dashes, rest = arguments[:at], True, arguments[at + 1:]
    try:
        if own[:1] == ["remote-shell"]:
            return remote_shell(arguments[1], arguments[2], arguments[3:])
        options = parser().parse_args(own)
        if options.do in ("run", "mpirun", "exec"):
            if not rest:
                raise Usage(f"{options.do}: give what to start after '--', as in: moeccl-lab "
                            f"{options.do} {'0 ' if options.do == 'exec' else ''}-- "
                            f"{'-np 4 hostname' if options.do == 'mpirun' else 'hostname'}")
        elif dashes:
            raise Usage(f"{options.do} starts no command: nothing may follow it after '--'")
        check_name(options.name)
        return {"up": up, "run": run, "mpirun": mpirun, "exec": execute, "counters": counters,
                "status": status, "down": down}[options.do](options, rest, command)
    except Usage as error:
        client.say(str(error))
        return 2
    except NotPermitted as error:
        client.say(f"no emulated cluster here: {error}\n  Without one, ranks can still run on this "
                   "machine, unshaped, told their node by MOECCL_NODE_ID:\n"
                   "  moeccl-lab run --emulate 4x4 -- CMD")
        return NOT_PERMITTED
    except LabError as error:
        client.say(str(error))
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141


class Usage(LabError):
    """A wrong argument."""


def check_name(name):
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}", name):
        raise Usage(f"--name {name}: give 1 to 32 letters, digits, '-', '_' or '.', "
                    "the first a letter or digit")


def whole_numbers(text, argument, example):
    try:
        values = [int(word) for word in text.split(",")]
        if min(values) < 1:
            raise ValueError
        return values
    except ValueError:
        raise Usage(f"{argument} {text}: give whole numbers of 1 or more, as in {example}") from None


def ranks_of_nodes(text, argument):
    """Ranks of each node, of 2x4 (nodes x ranks), of 4,4,3 or of 2x4,3."""
    ranks = []
    try:
        for word in text.split(","):
            numbers = [int(number) for number in word.split("x")]
            nodes, each = numbers if "x" in word else (1, *numbers)
            if min(nodes, each) < 1:
                raise ValueError
            if len(ranks) + nodes > MAX_NODES:
                raise Usage(f"{argument} {text}: too many nodes, {MAX_NODES} at most")
            ranks += [each] * nodes
    except ValueError:
        raise Usage(f"{argument} {text}: give nodes and ranks in each, as in 2x4, or the ranks of every node, as in "
                    "3,5,1") from None
    return ranks


def shape_of(options):
    """Ranks of each node."""
    if options.nodes is not None and not options.nodes.lstrip("-").isdecimal():
        if options.ranks_per_node is not None:
            raise Usage(f"--ranks-per-node: --nodes {options.nodes} says how many there are; give one of the two")
        return ranks_of_nodes(options.nodes, "--nodes")
    ranks = whole_numbers(options.ranks_per_node or "1", "--ranks-per-node", "4 or 3,5,1")
    if options.nodes is None:
        if len(ranks) == 1:
            raise Usage("--nodes: say how many nodes, as in: moeccl-lab up --nodes 4x4")
    elif not 1 <= int(options.nodes) <= MAX_NODES:
        raise Usage(f"--nodes {options.nodes}: give 1 to {MAX_NODES}")
    elif len(ranks) == 1:
        ranks *= int(options.nodes)
    elif len(ranks) != int(options.nodes):
        raise Usage(f"--ranks-per-node {options.ranks_per_node} is for {len(ranks)} nodes, --nodes says "
                    f"{options.nodes}: give one number for all nodes, or one for each")
    if len(ranks) > MAX_NODES:
        raise Usage(f"--ranks-per-node: {len(ranks)} nodes are too many, {MAX_NODES} at most")
    return ranks


def up(options, _, command):
    ranks = shape_of(options)
    try:
        rate = network.parse_rate("--uplink", options.uplink)
        bus = network.parse_rate("--bus", options.bus)
    except LabError as error:
        raise Usage(str(error)) from None
    tools = network.find_tools()
    for name in state.sweep():
        client.say(f"cleared what the killed lab '{name}' had left")
    folder = state.folder(options.name)
    # Before anything exists that would have to be removed.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    wanted = {"ranks": ranks, "uplink": options.uplink, "shape": options.shape if rate else "none", "bus": options.bus}
    there = state.load(options.name)
    if there and all(there[key] == value for key, value in wanted.items()):
        print(f"lab '{options.name}' is up already: {describe(there)}")
        return 0
    lock_fd = state.claim(folder)
    lab = {"name": options.name, "id": str(uuid.uuid4()), **wanted, "mtu": network.MTU, "since": int(time.time())}
    pid = None
    try:
        pid, control = supervisor.launch(
            {"folder": folder, "tools": tools, "ranks": ranks, "rate": rate, "bus": bus,
             "ingress": options.shape == "both", "command": command}, lock_fd)
        wait_until_ready(control)
        state.save(folder, {**lab, "pid": pid, "start": state.start_time(pid)})
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
        wire.send(control, {"go": True})
        if wire.receive(control)[0] is None:
            raise LabError("the lab died when it was all but up")
    except BaseException:
        os.close(lock_fd)
        if pid:
            # The supervisor and all nodes die with the janitor.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        state.wait_until_free(folder, 10)
        state.release(folder)
        raise
    print(f"lab '{options.name}' is up: {describe(lab)}")
    return 0


def wait_until_ready(control):
    begun = said = time.monotonic()
    while True:
        message, _ = wire.receive(control)
        if message is None:
            raise LabError("the lab's supervisor died while it came up")
        if "error" in message:
            raise (NotPermitted if message["not_permitted"] else LabError)(message["error"])
        if "ready" in message:
            return
        if time.monotonic() - begun > 2 and time.monotonic() - said > 1:
            said = time.monotonic()
            client.say(message["progress"])


def plural(count, word):
    return f"{count} {word}" + ("" if count == 1 else "s")


def describe(lab):
    ranks, uplink = lab["ranks"], lab["uplink"]
    each = f"{ranks[0]} each" if len(set(ranks)) == 1 else ",".join(map(str, ranks))
    way = {"both": "each way", "egress": "sending only", "none": ""}[lab["shape"]]
    return (f"{plural(len(ranks), 'node')}, {plural(sum(ranks), 'rank')} ({each}), uplinks "
            + (f"{uplink} {way}" if way else "unshaped")
            + ("" if lab["bus"] == "none" else f", {lab['bus']} within a node"))


def positive(value, argument):
    if value is not None and value < 1:
        raise Usage(f"{argument} {value}: give 1 or more")
    return value


def run(options, argv, command):
    positive(options.per_node, "--per-node")
    extra = {}
    for setting in options.env:
        key, equals, value = setting.partition("=")
        if not key or not equals:
            raise Usage(f"--env {setting}: give NAME=VALUE, as in --env UCX_TLS=tcp,sm")
        extra[key] = value
    if options.emulate:
        return emulate(options, argv, extra)
    lab = state.load_or_fail(options.name)
    ranks = [options.per_node or count for count in lab["ranks"]]
    if lab["bus"] != "none":
        extra = {"MOECCL_TRANSPORT": "tcp", **extra}  # memory would pass the bus by
    folder = state.folder(options.name)
    # An uplink has the speed that tc gives it, of which its interface knows nothing: what programs
    # keep of it is for this lab.
    extra = {"XDG_CACHE_HOME": f"{folder}/shared/cache", **extra}
    token = f"run-{uuid.uuid4().hex[:12]}"
    environment = client.rank_environment(ranks, f"{folder}/shared/{token}/id", network.address(0))
    job = client.Job(options.grace, options.prefix,
                     lambda rank: f"rank {rank} (node{environment[rank]['MOECCL_NODE']})",
                     options.sessions)
    places = list(client.placement(ranks))
    for node in range(len(ranks)):
        connection = client.connect(folder, network.hostname(node))
        job.begin(connection, [(rank, argv, {**environment[rank], **extra}, None)
                               for rank, at, _, _ in places if at == node],
                  token if node == 0 else None)
    return job.run()


def emulate(options, argv, extra):
    """Ranks as plain processes, for where no lab can be."""
    ranks = [options.per_node or count for count in ranks_of_nodes(options.emulate, "--emulate")]
    client.say(f"{plural(len(ranks), 'node')} only by name (MOECCL_NODE_ID): one host, shared memory "
               "between all ranks, no uplinks, nothing shaped or counted")
    state.sweep()
    folder = state.folder(f"emulated-{os.getpid()}")
    state.claim(folder)
    try:
        environment = client.rank_environment(ranks, folder + "/run/id", "127.0.0.1")
        ours, theirs = socket.socketpair()
        job = client.Job(options.grace, options.prefix,
                         lambda rank: f"rank {rank} (node{environment[rank]['MOECCL_NODE']})",
                         options.sessions)
        handler = server.spawn_handler(theirs, folder, asker=ours)
        theirs.close()
        job.begin(ours, [(rank, argv, {**environment[rank], "MOECCL_NODE_ID": f"node{node}", **extra},
                          None) for rank, node, _, _ in client.placement(ranks)], "run")
        code = job.run()
        os.waitpid(handler, 0)
        return code
    finally:
        state.release(folder)


def mpirun(options, argv, _):
    lab = state.load_or_fail(options.name)
    folder = state.folder(options.name)
    if not any(os.access(os.path.join(path, "mpirun"), os.X_OK) for path in os.get_exec_path()):
        raise LabError("missing command mpirun: install Debian's package openmpi-bin")
    token = f"mpirun-{uuid.uuid4().hex[:12]}"
    # As defaults in the environment, all of these give way to mpirun's own arguments.
    environment = {
        "OMPI_MCA_plm_rsh_agent": f"{folder}/shared/remote-shell",
        "OMPI_MCA_orte_default_hostfile": f"{folder}/shared/hostfile",
        "OMPI_MCA_orte_tmpdir_base": f"{folder}/shared/{token}",
        # Every node believes it has all cores; bound, the first ranks of all nodes would share one.
        "OMPI_MCA_hwloc_base_binding_policy": "none",
    }
    cache = {"XDG_CACHE_HOME": f"{folder}/shared/cache"}
    if sum(lab["ranks"]) > len(os.sched_getaffinity(0)):
        environment["OMPI_MCA_mpi_yield_when_idle"] = "1"
    if os.getuid() == 0:
        environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    environment = {key: value for key, value in environment.items() if key not in os.environ}
    return client.run_once(folder, network.hostname(0), ["mpirun", *argv], {**environment, **cache},
                           run_folder=token)


def remote_shell(folder, host, words):
    """What mpirun in node 0 calls as if it were ssh: the words are a line for the host's shell."""
    return client.run_once(folder, host, ["/bin/sh", "-c", " ".join(words)])


def execute(options, argv, _):
    lab = state.load_or_fail(options.name)
    node = options.node.removeprefix("node")
    if options.node == "switch":
        name = "switch"
    elif node.isdecimal() and int(node) < len(lab["ranks"]):
        name = network.hostname(int(node))
    else:
        raise Usage(f"exec {options.node}: give a node from 0 to {len(lab['ranks']) - 1}, its host name "
                    "as in node0, or switch")
    return client.run_once(state.folder(options.name), name, argv)


COLUMNS = ("sent_bytes", "sent_packets", "received_bytes", "received_packets")


def counters(options, _, __):
    lab = state.load_or_fail(options.name)
    before = read_snapshot(options.since, lab) if options.since else None
    rows = client.count(state.folder(options.name))
    if before:
        for row, old in zip(rows, before):
            for column in COLUMNS:
                row[column] -= old[column]
    total = {column: sum(row[column] for row in rows) for column in COLUMNS}
    if options.json:
        print(json.dumps({"lab": lab["name"], "id": lab["id"], "time": time.time(),
                          "since": options.since, "nodes": rows, "total": total}, indent=1))
        return 0
    print(f"{'node':<8}" + "".join(f"{column.replace('_', ' '):>18}" for column in COLUMNS))
    for row in rows + [{"node": "total", **total}]:
        print(f"{row['node']:<8}" + "".join(f"{row[column]:>18}" for column in COLUMNS))
    return 0


def read_snapshot(path, lab):
    try:
        with contextlib.ExitStack() as stack:
            file = sys.stdin if path == "-" else stack.enter_context(open(path))
            snapshot = json.load(file)
        rows = [{column: int(row[column]) for column in COLUMNS} for row in snapshot["nodes"]]
        differs, delta = snapshot["id"] != lab["id"], snapshot["since"]
    except OSError as error:
        raise Usage(f"--since {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise Usage(f"--since {path}: not what 'moeccl-lab counters --json' prints") from None
    if differs:
        raise Usage(f"--since {path}: is of another lab, or of one before lab '{lab['name']}' last came up")
    if delta:
        raise Usage(f"--since {path}: is itself a difference; save one without --since")
    return rows


def status(options, _, __):
    lab = state.load(options.name)
    if lab is None:
        if options.json:
            print(json.dumps({"name": options.name, "up": False}))
        else:
            print(f"lab '{options.name}' is not up")
        return 1
    first = 0
    nodes = []
    for node, count in enumerate(lab["ranks"]):
        nodes.append({"node": network.hostname(node), "address": network.address(node),
                      "first_rank": first, "ranks": count})
        first += count
    if options.json:
        print(json.dumps({**{key: lab[key] for key in ("name", "uplink", "shape", "bus", "mtu", "since", "pid")},
                          "up": True, "nodes": nodes}, indent=1))
        return 0
    print(f"lab '{lab['name']}' is up since {time.strftime('%F %T', time.localtime(lab['since']))}: "
          f"{describe(lab)}, MTU {lab['mtu']}, process {lab['pid']}")
    for node in nodes:
        last = node["first_rank"] + node["ranks"] - 1
        print(f"  {node['node']:<8} {node['address']:<12} "
              + (f"ranks {node['first_rank']} to {last}" if node["ranks"] > 1 else f"rank {last}"))
    return 0


def down(options, _, __):
    folder = state.folder(options.name)
    if options.name in state.sweep():
        print(f"lab '{options.name}' had been killed; cleared what it had left")
        return 0
    if not os.path.isdir(folder):
        print(f"lab '{options.name}' is not up")
        return 0
    lab = state.load(options.name)
    if lab is not None:
        with contextlib.suppress(ProcessLookupError):
            pidfd = os.pidfd_open(lab["pid"])
            # Checked after the process is pinned, so that its number cannot have changed hands.
            if state.start_time(lab["pid"]) == lab["start"]:
                signal.pidfd_send_signal(pidfd, signal.SIGTERM)
            os.close(pidfd)
    if not state.wait_until_free(folder, 20):
        raise LabError(f"lab '{options.name}' does not end: a process in it cannot be killed; "
                       f"look for children of process {lab['pid']} in state D")
    state.sweep()
    print(f"lab '{options.name}' is down")
    return 0
