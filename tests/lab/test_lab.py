#!/usr/bin/env python3
"""Tests moeccl-lab: python3 tests/lab/test_lab.py [--lab COMMAND] [TEST...]

Exit code 77 where this machine does not permit an emulated cluster. Only a lab's own namespaces carry
traffic, and only processes that the tests started are killed.
"""
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.realpath(__file__))
LAB = os.path.join(HERE, "..", "..", "perf", "moeccl-lab")
RUNTIME = ""  # set in main: a folder of our own, so that labs of the same user are out of reach

TRANSFER = """
import os, socket, sys, time
size, receiver = int(sys.argv[1]), sys.argv[2]
if os.environ["MOECCL_RANK"] == "1":
    listener = socket.create_server(("0.0.0.0", 7000))
    connection, _ = listener.accept()
    begun, got = time.monotonic(), 0
    while data := connection.recv(1 << 18):
        got += len(data)
    print(got, time.monotonic() - begun)
elif os.environ["MOECCL_RANK"] == "0":
    for _ in range(200):
        try:
            connection = socket.create_connection((receiver, 7000))
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    connection.sendall(bytes(size))
    connection.close()
"""


def environment():
    return {**os.environ, "XDG_RUNTIME_DIR": RUNTIME}


def lab(*arguments, timeout=60, prefix=(), **more):
    return subprocess.run([*prefix, LAB, *map(str, arguments)], capture_output=True, text=True,
                          timeout=timeout, env={**environment(), **more}, stdin=subprocess.DEVNULL)


def start(*arguments):
    return subprocess.Popen([LAB, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            stdin=subprocess.DEVNULL, text=True, env=environment())


def wait_for(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def processes():
    """process -> (parent, command line) of all processes that this one can see."""
    found = {}
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            with open(f"/proc/{entry}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                line = file.read().replace(b"\0", b" ").decode(errors="replace").strip()
            if fields[0] != "Z":
                found[int(entry)] = (int(fields[1]), line)
    return found


def descendants(pid):
    table = processes()
    found = [pid] if pid in table else []
    for parent in found:
        found += [child for child, (above, _) in table.items() if above == parent]
    return found


def namespaces(pids):
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/{pid}/ns/net"))
    return found


class LabTest(unittest.TestCase):
    """Each test leaves nothing behind, or fails."""

    def setUp(self):
        signal.alarm(150)
        self.links = set(os.listdir("/sys/class/net"))
        with open("/proc/self/mounts") as file:
            self.mounts = file.read()
        self.marker = f"{os.getpid()}.{time.monotonic_ns()}"

    def tearDown(self):
        for name in ("lab", "other"):
            lab("down", "--name", name)
        self.assertEqual(os.listdir(RUNTIME), [])
        self.assertEqual(set(os.listdir("/sys/class/net")), self.links)
        with open("/proc/self/mounts") as file:
            self.assertEqual(file.read(), self.mounts)
        self.assertTrue(wait_for(lambda: not self.marked()), self.marked())

    def marked(self):
        return [line for _, line in processes().values() if self.marker in line]

    def sleeper(self, more=""):
        """A shell line that can be found again, and leaves a process in a session of its own behind."""
        return f"{more} (setsid sh -c 'sleep 300; : {self.marker}' &); sleep 300; : {self.marker}"

    def up(self, *arguments):
        done = lab("up", *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def succeed(self, *arguments, **more):
        done = lab(*arguments, **more)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def lines(self, *arguments):
        return sorted(self.succeed(*arguments).splitlines())

    def supervisor(self):
        """(janitor, supervisor, node processes)"""
        janitor = json.loads(self.succeed("status", "--json"))["pid"]
        table = processes()
        first, = [pid for pid, (parent, _) in table.items() if parent == janitor]
        return janitor, first, [pid for pid, (parent, _) in table.items() if parent == first]


class RoundTrip(LabTest):
    def test_up_status_run_down(self):
        self.assertIn("2 nodes, 4 ranks (2 each), uplinks 1gbit each way",
                      self.up("--nodes", 2, "--ranks-per-node", 2, "--uplink", "1gbit"))
        status = json.loads(self.succeed("status", "--json"))
        self.assertTrue(status["up"])
        self.assertEqual([node["first_rank"] for node in status["nodes"]], [0, 2])
        self.assertIn("node1", self.succeed("status"))
        self.assertEqual(self.lines("run", "--", "sh", "-c",
                                    "echo $MOECCL_RANK/$MOECCL_NRANKS $MOECCL_LOCAL_RANK/"
                                    "$MOECCL_LOCAL_NRANKS $MOECCL_NODE $(hostname)"),
                         ["[0] 0/4 0/2 0 node0", "[1] 1/4 1/2 0 node0", "[2] 2/4 0/2 1 node1",
                          "[3] 3/4 1/2 1 node1"])
        # What a job keeps of the links is for this lab, and of the user only where the user says so.
        keep = ("--", "sh", "-c", "mkdir -p $XDG_CACHE_HOME; echo kept >> $XDG_CACHE_HOME/links; cat $XDG_CACHE_HOME/links")
        self.assertEqual(self.lines("run", "--no-prefix", "--per-node", "1", *keep)[-1], "kept")
        self.assertEqual(self.lines("run", "--no-prefix", "--env", "XDG_CACHE_HOME=/mine", "--", "sh", "-c",
                                    "echo $XDG_CACHE_HOME"), ["/mine"] * 4)
        self.assertIn("is down", self.succeed("down"))
        self.assertIn("is not up", self.succeed("down"))
        self.assertEqual(lab("status").returncode, 1)

    def test_uneven_nodes_and_per_node(self):
        self.up("--ranks-per-node", "3,1,2")
        rank = ("run", "--no-prefix", "--", "sh", "-c",
                "echo $MOECCL_RANK $MOECCL_NODE $MOECCL_LOCAL_RANK")
        self.assertEqual(self.lines(*rank), ["0 0 0", "1 0 1", "2 0 2", "3 1 0", "4 2 0", "5 2 1"])
        self.assertEqual(self.lines(rank[0], "--per-node", "1", *rank[1:]), ["0 0 0", "1 1 0", "2 2 0"])

    def test_variables_of_torchrun(self):
        self.up("--ranks-per-node", "1,2")
        show = ("--no-prefix", "--", "sh", "-c", "echo $RANK/$WORLD_SIZE $LOCAL_RANK $MASTER_ADDR $MASTER_PORT")
        for where, address in (((), "10.77.1.1"), (("--emulate", "1,2"), "127.0.0.1")):
            lines = self.lines("run", *where, *show)
            port = lines[0].split()[-1]
            self.assertIn(int(port), range(20000, 30000))
            self.assertEqual(lines, [f"{rank}/3 {local} {address} {port}" for rank, local in ((0, 0), (1, 0), (2, 1))])

    def test_two_labs_at_once(self):
        self.up("--nodes", 2)
        self.assertIn("is up already, and another one", lab("up", "--nodes", 3).stderr)
        self.up("--nodes", 3, "--name", "other")
        self.succeed("down")
        for name in (("run", "--name", "other"), ("--name", "other", "run")):
            self.assertEqual(len(self.lines(*name, "--", "hostname")), 3)

    def test_one_like_it_stays_up(self):
        self.up("--nodes", 2, "--ranks-per-node", 2, "--uplink", "1gbit")
        before = json.loads(self.succeed("status", "--json"))
        self.assertIn("is up already: 2 nodes", self.succeed("up", "--nodes", "2x2", "--uplink", "1gbit"))
        self.assertEqual(json.loads(self.succeed("status", "--json")), before)
        for other in (("--nodes", "2x2", "--uplink", "100mbit"), ("--nodes", "2,2,1", "--uplink", "1gbit"),
                      ("--nodes", "2x2", "--uplink", "1gbit", "--bus", "100mbit")):
            self.assertEqual(lab("up", *other).returncode, 1, other)

    def test_nodes_are_spelled_as_other_tools_do(self):
        self.up("--nodes", "2x1,3")
        self.assertEqual(len(self.lines("run", "--", "hostname")), 5)

    def test_environment_folder_and_streams(self):
        self.up("--nodes", 2)
        done = lab("run", "--env", "A=b=c", "--", "sh", "-c",
                   "echo $A $KEPT $PWD; echo error >&2; printf end", KEPT="kept")
        self.assertEqual(sorted(done.stdout.splitlines()),
                         sorted(f"[{rank}] {text}" for rank in (0, 1) for text in
                                (f"b=c kept {os.getcwd()}", "end")))
        self.assertEqual(sorted(done.stderr.splitlines()), ["[0] error", "[1] error"])
        piped = subprocess.run([LAB, "run", "--", "cat"], input="text\n", capture_output=True, text=True,
                               env=environment(), timeout=30)
        self.assertEqual(piped.stdout, "[0] text\n")
        closed = subprocess.run(["bash", "-c", f"{LAB} run -- cat <&-"], capture_output=True, text=True,
                                env=environment(), timeout=30)
        self.assertEqual((closed.returncode, closed.stdout), (0, ""))

    def test_exec(self):
        self.up("--nodes", 2)
        self.assertEqual(self.succeed("exec", "1", "--", "hostname"), "node1\n")
        self.assertEqual(self.succeed("exec", "node0", "--", "hostname"), "node0\n")
        self.assertIn("port1", self.succeed("exec", "switch", "--", "ls", "/sys/class/net"))
        self.assertEqual(lab("exec", "1", "--", "sh", "-c", "exit 9").returncode, 9)
        self.assertEqual(lab("exec", "1", "--", "no-such-command").returncode, 127)

    def test_id_file_is_shared_by_all_nodes_and_removed(self):
        self.up("--nodes", 2, "--ranks-per-node", 2)
        shown = self.lines("run", "--no-prefix", "--", "sh", "-c", """
            f=$MOECCL_ID_FILE
            if [ $MOECCL_RANK = 0 ]; then sleep 0.2; echo secret > $f.new; mv $f.new $f
            else until [ -e $f ]; do sleep 0.05; done; fi
            echo $f $(cat $f)""")
        self.assertEqual(len(shown), 4)
        self.assertEqual(len(set(shown)), 1)
        path, word = shown[0].split()
        self.assertEqual(word, "secret")
        self.assertNotEqual(lab("exec", 0, "--", "ls", os.path.dirname(path)).returncode, 0)
        again = self.lines("run", "--no-prefix", "--per-node", "1", "--", "sh", "-c", "echo $MOECCL_ID_FILE")
        self.assertNotIn(path, again)


class Nodes(LabTest):
    def test_nodes_are_different_hosts(self):
        self.up("--nodes", 2, "--ranks-per-node", 2)
        for what in ("hostname", "cat /proc/sys/kernel/random/boot_id", "readlink /proc/self/ns/net",
                     "readlink /proc/self/ns/ipc", "readlink /proc/self/ns/pid",
                     "cat /sys/class/net/eth0/address"):
            seen = [line.partition(" ")[2] for line in self.lines("run", "--", "sh", "-c", what)]
            self.assertEqual((seen[0], seen[2]), (seen[1], seen[3]), what)
            self.assertNotEqual(seen[0], seen[2], what)
        self.assertEqual(self.succeed("exec", 0, "--", "ls", "/sys/class/net").split(), ["eth0", "lo"])
        self.assertIn("10.77.1.2", self.succeed("exec", 0, "--", "getent", "hosts", "node1"))

    def test_shared_memory_is_a_nodes_own(self):
        self.up("--nodes", 2, "--ranks-per-node", 2)
        self.lines("run", "--", "sh", "-c", "[ $MOECCL_LOCAL_RANK = 1 ] || echo $MOECCL_NODE > /dev/shm/mark")
        self.assertEqual(self.lines("run", "--", "cat", "/dev/shm/mark"), ["[0] 0", "[1] 0", "[2] 1", "[3] 1"])
        self.assertFalse(os.path.exists("/dev/shm/mark"))

    def test_ranks_share_one_scheduler_group(self):
        self.up("--nodes", 2, "--ranks-per-node", 2)
        shown = [line.split() for line in self.lines("run", "--no-prefix", "--", "sh", "-c",
                                                     "cat /proc/self/autogroup 2>/dev/null || echo none")]
        self.assertEqual(len({line[0] for line in shown}), 1)

    def test_ranks_have_sessions_of_their_own_where_asked_for(self):
        self.up("--nodes", 2, "--ranks-per-node", 2)
        code = "import os; print(os.getsid(0) == os.getpid())"
        for arguments, expected in ((("--sessions",), "True"), ((), "False")):
            self.assertEqual(self.lines("run", "--no-prefix", *arguments, "--", sys.executable, "-c", code), [expected] * 4)

    def test_ranks_get_no_capabilities_beyond_their_own(self):
        self.up("--nodes", 1)
        if os.getuid() == 0:
            self.skipTest("root has them all")
        self.assertIn("CapEff:\t0000000000000000",
                      self.succeed("exec", 0, "--", "cat", "/proc/self/status"))


class Traffic(LabTest):
    def transfer(self, size, to=1):
        """Sends from node 0 to node 1 or itself; returns (seconds, the counters' difference)."""
        before = os.path.join(RUNTIME, "before")
        with open(before, "w") as file:
            file.write(self.succeed("counters", "--json"))
        got, seconds = self.succeed("run", "--no-prefix", "--per-node", 2 - to, "--", sys.executable, "-c",
                                    TRANSFER, size, f"node{to}").split()
        self.assertEqual(int(got), size)
        counted = json.loads(self.succeed("counters", "--json", "--since", before))
        self.assertIn("total", self.succeed("counters", "--since", before))
        os.unlink(before)
        return float(seconds), counted

    def test_counters_count_what_tcp_sends(self):
        self.up("--nodes", 3)
        self.assertEqual(json.loads(self.succeed("counters", "--json"))["total"]["sent_bytes"], 0)
        size = 20_000_000
        _, counted = self.transfer(size)
        first, second, third = counted["nodes"]
        self.assertTrue(size <= first["sent_bytes"] <= 1.05 * size, counted)
        self.assertTrue(size <= second["received_bytes"] <= 1.05 * size, counted)
        self.assertLess(second["sent_bytes"], 0.05 * size)
        self.assertGreater(first["sent_packets"], size / 9000)
        self.assertEqual((third["sent_bytes"], third["received_bytes"]), (0, 0))

    def rate(self, *arguments):
        self.up("--nodes", 2, *arguments)
        # A busy machine slows a transfer down, and nothing speeds it up: the best of three tells.
        best = 0
        for _ in range(3):
            size = 10_000_000
            best = max(best, size * 8 / self.transfer(size)[0])
            if best > 90e6:
                break
        return best

    def test_shaped_rate(self):
        rate = self.rate("--uplink", "100mbit")
        self.assertTrue(90e6 < rate < 105e6, rate)

    def test_shaped_rate_of_egress_only(self):
        rate = self.rate("--uplink", "100mbit", "--shape", "egress")
        self.assertTrue(90e6 < rate < 105e6, rate)
        self.assertNotIn("tbf", self.succeed("exec", "switch", "--", "/sbin/tc", "qdisc"))

    def test_bus_limits_what_ranks_of_a_node_send_each_other(self):
        self.assertIn("uplinks unshaped, 100mbit within a node",
                      self.up("--nodes", 2, "--bus", "100mbit", "--ranks-per-node", 2))
        size = 10_000_000
        best = max(size * 8 / self.transfer(size, to=0)[0] for _ in range(3))
        self.assertTrue(80e6 < best < 105e6, best)
        seconds, counted = self.transfer(size)
        self.assertGreater(size * 8 / seconds, 150e6)
        self.assertGreater(counted["nodes"][0]["sent_bytes"], size)
        self.assertEqual(self.lines("run", "--no-prefix", "--", "sh", "-c", "echo $MOECCL_TRANSPORT"),
                         ["tcp"] * 4)
        self.assertEqual(self.lines("run", "--no-prefix", "--env", "MOECCL_TRANSPORT=ucx", "--", "sh",
                                    "-c", "echo $MOECCL_TRANSPORT"), ["ucx"] * 4)

    def test_snapshots_of_another_lab_are_refused(self):
        self.up("--nodes", 2)
        snapshot = self.succeed("counters", "--json")
        self.succeed("down")
        self.up("--nodes", 2)
        done = subprocess.run([LAB, "counters", "--since", "-"], input=snapshot, text=True,
                              capture_output=True, env=environment(), timeout=30)
        self.assertEqual(done.returncode, 2)
        self.assertIn("another lab", done.stderr)


class Failures(LabTest):
    def test_exit_code_of_the_first_failure_and_the_others_are_stopped(self):
        self.up("--nodes", 2, "--ranks-per-node", 2)
        begun = time.monotonic()
        done = lab("run", "--", "sh", "-c", self.sleeper("[ $MOECCL_RANK = 2 ] && exit 7;"))
        self.assertEqual(done.returncode, 7)
        self.assertIn("rank 2 (node1) exited with 7; stopping the others", done.stderr)
        self.assertNotIn("killing", done.stderr)
        self.assertLess(time.monotonic() - begun, 30)
        self.assertEqual(self.marked(), [])

    def test_ranks_that_ignore_sigterm_are_killed(self):
        self.up("--nodes", 2)
        done = lab("run", "--grace", "0.3", "--", "sh", "-c",
                   self.sleeper("trap '' TERM; [ $MOECCL_RANK = 1 ] && { sleep 0.5; kill -9 $$; };"))
        self.assertEqual(done.returncode, 128 + signal.SIGKILL)
        self.assertIn("was killed by SIGKILL", done.stderr)
        self.assertEqual(self.marked(), [])

    def run_sleepers(self, *arguments):
        running = start(*arguments, "--", "sh", "-c", self.sleeper("echo begun;"))
        while "begun" not in (line := running.stdout.readline()):
            self.assertTrue(line, "ended before it began")
        return running

    def test_interrupt_stops_all(self):
        self.up("--nodes", 2)
        for arguments in (("run",), ("run", "--sessions"), ("exec", "0")):
            running = self.run_sleepers(*arguments)
            running.send_signal(signal.SIGINT)
            self.assertEqual(running.wait(30), 130)
            running.stdout.close()
            self.assertEqual(self.marked(), [])

    def test_killing_run_itself_ends_its_ranks(self):
        self.up("--nodes", 2)
        for arguments in (("run",), ("run", "--emulate", "2x2"), ("exec", "1")):
            running = self.run_sleepers(*arguments)
            running.kill()
            running.wait()
            running.stdout.close()
            self.assertTrue(wait_for(lambda: not self.marked()), self.marked())
        self.assertEqual(self.lines("run", "--", "echo", "fine"), ["[0] fine", "[1] fine"])

    def test_killing_a_handler_ends_its_ranks(self):
        self.up("--nodes", 2)
        running = self.run_sleepers("run")
        node = self.supervisor()[2][0]
        for pid, (parent, _) in processes().items():
            if parent == node:
                os.kill(pid, signal.SIGKILL)
        self.assertEqual(running.wait(30), 1)
        self.assertIn("was lost", running.stdout.read())
        running.stdout.close()
        self.assertTrue(wait_for(lambda: not self.marked()), self.marked())

    def test_down_ends_runs(self):
        self.up("--nodes", 2)
        running = self.run_sleepers("run")
        self.succeed("down")
        self.assertNotEqual(running.wait(30), 0)
        self.assertIn("was lost", running.stdout.read())
        running.stdout.close()

    def kill_one(self, choose):
        self.up("--nodes", 2, "--uplink", "1gbit")
        running = self.run_sleepers("run")
        janitor, supervisor, nodes = self.supervisor()
        everyone = descendants(janitor)
        networks = namespaces(everyone)
        self.assertEqual(len(networks - namespaces([os.getpid()])), 3)
        os.kill(choose(janitor, supervisor, nodes), signal.SIGKILL)
        self.assertTrue(wait_for(lambda: not set(everyone) & set(processes())))
        self.assertEqual(namespaces(processes()) & networks, namespaces([os.getpid()]) & networks)
        running.wait(30)
        running.stdout.close()
        self.assertEqual(self.marked(), [])

    def test_killed_supervisor_leaves_nothing(self):
        self.kill_one(lambda janitor, supervisor, nodes: supervisor)
        self.assertTrue(wait_for(lambda: os.listdir(RUNTIME) == []))

    def test_killed_node_ends_the_lab(self):
        self.kill_one(lambda janitor, supervisor, nodes: nodes[1])
        self.assertTrue(wait_for(lambda: os.listdir(RUNTIME) == []))

    def test_killed_janitor_leaves_a_stale_record_that_the_next_command_clears(self):
        self.kill_one(lambda janitor, supervisor, nodes: janitor)
        self.assertIn("had been killed", self.succeed("down"))
        self.kill_one(lambda janitor, supervisor, nodes: janitor)
        self.assertEqual(lab("status").returncode, 1)
        self.assertEqual(os.listdir(RUNTIME), [])

    def test_interrupted_up_leaves_nothing(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            for pause in (0.05, 0.1, 0.2, 0.3):
                coming = start("up", "--nodes", 8, "--uplink", "1gbit", "--name", "other")
                time.sleep(pause)
                children = descendants(coming.pid)
                coming.send_signal(number)
                coming.wait(30)
                coming.stdout.close()
                lab("down", "--name", "other")
                self.assertTrue(wait_for(lambda: not set(children) & set(processes())), (number, pause))
                self.assertEqual(os.listdir(RUNTIME), [], (number, pause))

    def test_up_that_fails_half_way_leaves_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(folder + "/tc", "w") as file:
                file.write("#!/bin/sh\necho 'Error: Specified qdisc kind is unknown.' >&2; exit 1\n")
            os.chmod(folder + "/tc", 0o755)
            done = lab("up", "--nodes", 2, "--uplink", "1gbit", PATH=folder + ":" + os.environ["PATH"])
        self.assertEqual(done.returncode, 3)
        for word in ("CONFIG_NET_SCH_TBF", "qdisc kind is unknown", "--emulate"):
            self.assertIn(word, done.stderr)
        self.assertEqual(os.listdir(RUNTIME), [])

    def test_kernel_that_forbids_says_what_is_missing(self):
        forbid = ["unshare", "--user", "--map-root-user", "sh", "-c",
                  'echo 0 > /proc/sys/user/max_user_namespaces && '
                  'exec setpriv --bounding-set=-all --inh-caps=-all "$@"', "sh"]
        if subprocess.run([*forbid, "true"], capture_output=True).returncode:
            self.skipTest("cannot forbid namespaces to a child here")
        done = lab("up", "--nodes", 2, prefix=forbid)
        self.assertEqual(done.returncode, 3)
        for word in ("no new user namespace", "max_user_namespaces is 0", "MOECCL_NODE_ID", "--emulate"):
            self.assertIn(word, done.stderr)

    def test_closed_output_stops_the_run(self):
        self.up("--nodes", 2)
        line = f"{LAB} run -- yes | head -n 3"
        done = subprocess.run(["bash", "-c", f"set -o pipefail; {line}"], capture_output=True, text=True,
                              env=environment(), timeout=30)
        self.assertEqual(len(done.stdout.splitlines()), 3)
        self.assertEqual(done.returncode, 141)


class Unshaped(LabTest):
    def test_emulate(self):
        done = lab("run", "--emulate", "2x2", "--", "sh", "-c",
                   "echo $MOECCL_RANK $MOECCL_NODE $MOECCL_NODE_ID; cd $(dirname $MOECCL_ID_FILE)")
        self.assertEqual(done.returncode, 0)
        self.assertEqual(sorted(done.stdout.splitlines()),
                         ["[0] 0 0 node0", "[1] 1 0 node0", "[2] 2 1 node1", "[3] 3 1 node1"])
        self.assertIn("nothing shaped", done.stderr)
        done = lab("run", "--emulate", "2,1", "--", "sh", "-c", self.sleeper("[ $MOECCL_RANK = 2 ] && exit 3;"))
        self.assertEqual(done.returncode, 3)
        self.assertEqual(self.marked(), [])


class Arguments(LabTest):
    def test_errors_name_the_argument_and_say_what_is_right(self):
        for arguments, words in (
                (("up",), ("--nodes", "as in")),
                (("up", "--nodes", "0"), ("--nodes 0", "1 to")),
                (("up", "--nodes", "many"), ("--nodes", "many")),
                (("up", "--nodes", "2x0"), ("--nodes 2x0", "as in 2x4")),
                (("up", "--nodes", "2x2x2"), ("--nodes 2x2x2", "as in 2x4")),
                (("up", "--nodes", "251x1"), ("--nodes 251x1", "250 at most")),
                (("up", "--nodes", "2x2", "--ranks-per-node", "2"), ("--ranks-per-node", "one of the two")),
                (("up", "--nodes", "2", "--ranks-per-node", "1,2,3"),
                 ("--ranks-per-node 1,2,3", "--nodes says 2")),
                (("up", "--nodes", "2", "--ranks-per-node", "0"), ("--ranks-per-node 0", "1 or more")),
                (("up", "--nodes", "2", "--uplink", "10mbps"), ("--uplink 10mbps", "100mbit")),
                (("up", "--nodes", "2", "--uplink", "fast"), ("--uplink fast", "100mbit")),
                (("up", "--nodes", "2", "--bus", "wide"), ("--bus wide", "100mbit")),
                (("up", "--nodes", "2", "--shape", "x"), ("--shape", "egress")),
                (("up", "--nodes", "2", "--name", "../x"), ("--name ../x", "letters")),
                (("up", "--nodes", "2", "--", "x"), ("up", "--")),
                (("run",), ("after '--'",)),
                (("run", "--env", "X", "--", "true"), ("--env X", "NAME=VALUE")),
                (("run", "--per-node", "0", "--", "true"), ("--per-node 0", "1 or more")),
                (("run", "--emulate", "3xx", "--", "true"), ("--emulate 3xx", "2x4")),
                (("frobnicate",), ("frobnicate", "counters"))):
            done = lab(*arguments)
            self.assertEqual(done.returncode, 2, arguments)
            for word in words:
                self.assertIn(word, done.stderr, arguments)

    def test_no_lab(self):
        for arguments in (("run", "--", "true"), ("mpirun", "--", "true"), ("exec", "0", "--", "true"),
                          ("counters",)):
            done = lab(*arguments)
            self.assertEqual(done.returncode, 1)
            self.assertIn("no lab 'lab' is up", done.stderr)

    def test_node_and_snapshot(self):
        self.up("--nodes", 2)
        for arguments, word in ((("exec", "2", "--", "true"), "from 0 to 1"),
                                (("counters", "--since", "/nowhere"), "No such file"),
                                (("counters", "--since", "/dev/null"), "counters --json")):
            done = lab(*arguments)
            self.assertEqual(done.returncode, 2)
            self.assertIn(word, done.stderr)

    def test_help(self):
        for command in ("up", "run", "mpirun", "exec", "counters", "status", "down"):
            self.assertIn(command, self.succeed("--help"))
            self.assertIn("--name", self.succeed(command, "--help"))

    def test_version(self):
        self.assertRegex(self.succeed("--version"), r"^moeccl-lab \(moeccl\) \d+\.\d+\.\d+\n$")


class Libraries(LabTest):
    def perftest(self, server, client, transports):
        command = ["env", f"UCX_TLS={transports}", "ucx_perftest", "-p", "13337"]
        with contextlib.ExitStack() as stack:
            serving = start("exec", server, "--", *command)
            stack.callback(serving.stdout.close)
            stack.callback(serving.wait)
            stack.callback(serving.terminate)
            wait_for(lambda: "13337" in self.succeed(
                "exec", server, "--", "sh", "-c", "grep -q ':3419 0*:0000 0A' /proc/net/tcp && echo 13337"
                " || true"))
            return lab("exec", client, "--", *command, f"node{server}", "-t", "tag_bw", "-s", "1000", "-n",
                       "200")

    @unittest.skipUnless(shutil.which("ucx_perftest"), "needs ucx_perftest (ucx-utils)")
    def test_ucx_sees_several_hosts(self):
        self.up("--nodes", 2)
        self.assertEqual(self.perftest(0, 1, "tcp,self").returncode, 0)
        self.assertEqual(self.perftest(0, 0, "sm,self").returncode, 0)
        apart = self.perftest(0, 1, "sm,self")
        self.assertNotEqual(apart.returncode, 0)
        self.assertIn("unreachable", apart.stdout + apart.stderr)

    @unittest.skipUnless(shutil.which("mpirun"), "needs mpirun (openmpi-bin)")
    def test_mpirun_starts_ranks_in_all_nodes(self):
        self.up("--ranks-per-node", "2,1,1")
        self.assertEqual(self.lines("mpirun", "--", "hostname"), ["node0", "node0", "node1", "node2"])
        self.assertEqual(self.lines("mpirun", "--", "-np", "2", "--map-by", "node", "hostname"),
                         ["node0", "node1"])
        self.assertEqual(lab("mpirun", "--", "-np", "4", "sh", "-c", "exit 5").returncode, 5)
        self.assertGreater(json.loads(self.succeed("counters", "--json"))["nodes"][2]["sent_bytes"], 0)

    @unittest.skipUnless(shutil.which("mpicc") and shutil.which("mpirun"), "needs mpicc (libopenmpi-dev)")
    def test_mpi_sees_several_hosts(self):
        self.up("--nodes", 2, "--ranks-per-node", 2)
        with tempfile.TemporaryDirectory() as folder:
            with open(folder + "/hosts.c", "w") as file:
                file.write("""
                    #include <mpi.h>
                    #include <stdio.h>
                    int main(int argc, char** argv) {
                      int all, near;
                      MPI_Comm node;
                      MPI_Init(&argc, &argv);
                      MPI_Comm_size(MPI_COMM_WORLD, &all);
                      MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
                      MPI_Comm_size(node, &near);
                      MPI_Barrier(MPI_COMM_WORLD);
                      printf("%d of %d\\n", near, all);
                      return MPI_Finalize();
                    }""")
            subprocess.run(["mpicc", "-o", folder + "/hosts", folder + "/hosts.c"], check=True)
            self.assertEqual(self.lines("mpirun", "--", folder + "/hosts"), ["2 of 4"] * 4)


def overdue(*_):
    raise TimeoutError("this test takes too long")


def main():
    global LAB, RUNTIME
    arguments = sys.argv[1:]
    if arguments[:1] == ["--lab"]:
        LAB = os.path.realpath(arguments[1])
        del arguments[:2]
    signal.signal(signal.SIGALRM, overdue)
    RUNTIME = tempfile.mkdtemp(prefix="moeccl-lab-test-")
    try:
        probe = lab("up", "--nodes", 2, "--uplink", "1gbit")
        if probe.returncode == 3:
            print(re.sub(r"^", "skipped: ", probe.stderr), file=sys.stderr)
            return 77
        lab("down")
        return 0 if unittest.main(argv=[sys.argv[0], *arguments], exit=False).result.wasSuccessful() else 1
    finally:
        signal.alarm(0)
        for name in ("lab", "other"):
            lab("down", "--name", name)
        shutil.rmtree(RUNTIME, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
