#!/usr/bin/env python3
"""Does to jobs on an emulated cluster what happens to jobs, and counts what becomes of the survivors.

    faults.py RANK_PROGRAM --kills 1000 --cuts 20 --nodes 2 --ranks-per-node 4

RANK_PROGRAM is build/tests/faults/faults_rank. Each case is one job: every rank runs random collectives of which it knows
the results; then

  --kills    a rank is killed (SIGKILL) at a random moment, and the survivors shrink and go on
  --kills-at-start  a rank is killed while ranks join: only one that has not joined is waited for
  --stops    a rank is stopped for longer than config.failureDetectionMs, and goes on: nothing may happen
  --hangs    a rank is stopped for good: after MOECCL_TIMEOUT all the others name it, whoever they waited for
  --outages  a node's uplink goes down for less than config.failureDetectionMs: nothing may happen
  --resets   connections by which ranks watch each other are reset, again and again: nothing may happen
  --cuts     a node's uplink goes down, and each side shrinks and goes on
  --cuts-at-start  the same, while ranks join
  --strangers      all ports get what strangers.py does, before and during collectives: nothing may happen

  --lives N        a job is made N times, a rank is killed in each, the others shrink and go on, in the same processes
  --soak N         so many collectives: neither these nor lives may leave anything behind

Prints each case that is not as it must be, and a summary. Exit code 1 where a survivor crashed, hung, got a wrong block,
named an innocent or did not name the lost; 77 where this machine does not permit an emulated cluster. Times are reported,
and hold against no limit unless --within is given.
"""
import argparse
import contextlib
import functools
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

STRANGERS = os.path.join(os.path.dirname(os.path.realpath(__file__)), "strangers.py")
LAB = os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..", "perf", "moeccl-lab")
LONGEST_OUTAGE = 2.7  # seconds; config.failureDetectionMs is 3000
ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


class Lab:
    """An emulated cluster, up while this is entered. `runtime`: a folder of its own."""

    def __init__(self, runtime, nodes, ranks_per_node):
        self.runtime, self.nodes, self.per_node = runtime, nodes, ranks_per_node
        self.ranks = nodes * ranks_per_node
        self.start_us = None  # what the set-up takes, once that is known

    def command(self, *arguments):
        return [LAB, *map(str, arguments)]

    def environment(self, **more):
        return {**os.environ, "XDG_RUNTIME_DIR": self.runtime, **more}

    def call(self, *arguments, timeout=60):
        return subprocess.run(self.command(*arguments), env=self.environment(), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout)

    def __enter__(self):
        with contextlib.ExitStack() as failing:
            failing.callback(self.down)  # a signal may come when all is up
            done = self.call("up", "--nodes", self.nodes, "--ranks-per-node", self.per_node)
            if done.returncode == 3:
                print(done.stdout, end="")
                sys.exit(77)
            if done.returncode:
                sys.exit(done.stdout)
            failing.pop_all()
        return self

    def start(self, node, *command):
        return subprocess.Popen(self.command("exec", node, "--", *command), env=self.environment(),
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def __exit__(self, *_):
        self.down()

    def down(self):
        """With all that runs in it. Another signal must not leave it up."""
        for number in ENDING:
            signal.signal(number, signal.SIG_IGN)
        self.call("down")

    def node_of(self, rank):
        return rank // self.per_node

    def uplink(self, node, state):
        done = self.call("exec", node, "--", "ip", "link", "set", "eth0", state)
        if done.returncode:
            sys.exit(f"cannot set eth0 {state}: {done.stdout}")


def wait_for_file(path, process, seconds=60):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with open(path, encoding="ascii") as file:
                if text := file.read().strip():
                    return int(text)
        except FileNotFoundError:
            pass
        time.sleep(0.005)
    return None


class Case:
    """One job, and what its ranks have written."""

    def __init__(self, lab, program, seed, seconds, shrinks=False, victim=None, after_ms=0, limit=90, more=None, **environment):
        self.lab, self.seed, self.limit = lab, seed, limit
        self.out = tempfile.mkdtemp(dir=lab.runtime)
        arguments = [program, self.out, str(seed), str(seconds)]
        arguments += map(str, more) if more else ["1" if shrinks else "0"]
        if victim is not None:
            arguments += [str(victim), str(after_ms)]
        self.log = open(os.path.join(self.out, "log"), "w+", encoding="utf-8", errors="replace")
        # The lab stops all ranks when one fails.
        self.process = subprocess.Popen(lab.command("run", "--", "sh", "-c", '"$@"; true', "sh", *arguments), stdin=subprocess.DEVNULL, stdout=self.log,
                                        stderr=subprocess.STDOUT, env=lab.environment(**environment))

    def stamp(self, name, seconds=60):
        return wait_for_file(os.path.join(self.out, name), self.process, seconds)

    def says(self, text, times, seconds=60):
        """Waits until the ranks have printed this text so often."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.process.poll() is None:
            with open(self.log.name, encoding="utf-8", errors="replace") as file:
                if file.read().count(text) >= times:
                    return True
            time.sleep(0.002)
        return False

    def finish(self):
        """Returns what ranks have written, by rank, and whether the job ended by itself."""
        try:
            self.process.wait(self.limit)
            ended = True
        except subprocess.TimeoutExpired:
            self.process.terminate()
            self.process.wait(30)
            ended = False
        self.log.close()
        reports = {}
        for rank in range(self.lab.ranks):
            try:
                with open(os.path.join(self.out, f"{rank}.json"), encoding="utf-8") as file:
                    reports[rank] = json.load(file)
            except (FileNotFoundError, json.JSONDecodeError):
                pass
        return reports, ended


class Tally:
    def __init__(self):
        self.cases = self.survivors = 0
        self.times, self.shrinks, self.slower, self.later = [], [], [], []
        self.faults = {}

    def fault(self, what, case, rank, text):
        self.faults[what] = self.faults.get(what, 0) + 1
        print(f"seed {case.seed}, rank {rank}: {what}: {text}", flush=True)

    def summary(self, name):
        print(f"{name}: {self.cases} cases, {self.survivors} survivors: "
              + (", ".join(f"{count} {what}" for what, count in sorted(self.faults.items())) or "no fault"))
        for what, times in (("error after", self.times), ("shrunk after", self.shrinks)):
            if times:
                times = sorted(times)
                at = lambda share: times[min(len(times) - 1, int(share * len(times)))]  # noqa: E731
                print(f"  {what} {statistics.median(times):.3f} s in the median, p95 {at(0.95):.3f}, p99 {at(0.99):.3f}, "
                      f"at most {times[-1]:.3f}")
        if self.slower:
            print(f"  collectives took {statistics.median(self.slower):.2f} as long among strangers, in the median; "
                  f"the start {statistics.median(self.later):.2f} s longer, at most {max(self.later):.2f}")


def judge(tally, case, lost, since, shrinks, reports, ended, cut_off=(), judged=()):
    """Holds the reports of a job that has lost some ranks against what must be. `cut_off`: ranks that live, but see it
    the other way round. `judged`: ranks to leave out."""
    lab = case.lab
    tally.cases += 1
    for rank in range(lab.ranks):
        if rank in judged or (rank in lost and rank not in cut_off):
            continue
        tally.survivors += 1
        report = reports.get(rank)
        if report is None:
            tally.fault("crashed" if ended else "hung", case, rank, open(case.log.name, errors="replace").read()[-2000:])
            continue
        if report.get("wrong"):
            tally.fault("wrong numbers", case, rank, report["wrong"])
        gone = [other for other in range(lab.ranks) if other not in cut_off] if rank in cut_off else lost
        text = report["text"]
        if report["result"] == "success":
            tally.fault("saw nothing", case, rank, report)
            continue
        tally.times.append((report["returned"] - since) / 1e9)
        if tally.times[-1] > 1:
            print(f"seed {case.seed}, rank {rank}: its error came after {tally.times[-1]:.3f} s: {text}", flush=True)
        if report["joined"] is None:
            named = re.findall(r"ranks? (\d+)", text)
            hosts = {host for other in gone for host in (f"node{lab.node_of(other)}", f"10.77.1.{1 + lab.node_of(other)}:")}
            if not any(int(name) in gone for name in named) and not any(host in text for host in hosts):
                tally.fault("did not name the lost at the start", case, rank, text)
            continue
        if "another rank failed" not in report["result"]:
            tally.fault("another error", case, rank, report["result"] + ": " + text)
        dead = {(int(name), host) for name, host in re.findall(r"rank (\d+) on (\w+) is dead", text)}
        if not dead:
            tally.fault("did not name the lost", case, rank, text)
        for name, host in dead:
            if name not in gone or host != f"node{lab.node_of(name)}":
                tally.fault("named an innocent", case, rank, text)
        others = {int(name) for name in re.findall(r"rank (\d+)", text)} - set(gone) - {rank}
        if others:
            tally.fault("mentions an innocent", case, rank, text)
        # Survivors that do not shrink abort, and then count as lost too.
        if not set(report["failed"]) & set(gone) or (shrinks and not set(report["failed"]) <= set(gone)):
            tally.fault("GetFailedRanks is wrong", case, rank, report["failed"])
        if cut_off and "has not answered for 3000 ms" not in text:
            tally.fault("did not say that the host is silent", case, rank, text)
        if shrinks:
            if report["after"] != "success" or report["remaining"] != lab.ranks - len(gone):
                tally.fault("did not go on", case, rank, report["after"] + " " + report["afterText"])
            else:
                tally.shrinks.append((report["shrunk"] - report["returned"]) / 1e9)


def judge_start(tally, case, rank, report, victim, accepted):
    """Of a rank whose set-up failed because `victim` was killed. `accepted`: by rank, whether the rendezvous took it in."""
    text = report["text"]
    # Who has not come yet is mentioned rightly.
    mentioned = {int(name) for name in re.findall(r"rank (\d+)", re.sub(r"left while ranks? .* of \d+ ha(s|ve) not arrived", "", text))}
    if mentioned - {victim, rank}:
        tally.fault("mentions an innocent at the start", case, rank, text)
    host = f"node{case.lab.node_of(victim)}"
    named = re.search(rf"rank {victim} (\(|on ){host}\b", text) or (victim == 0 and f"made the id ({host}:" in text)
    if victim not in accepted and "in time" in report["result"]:
        named = f"rank {victim} of {case.lab.ranks} has not arrived" in text
    elif rank not in accepted and re.search("no(body answers| answer) for this id", text):
        named = True  # the process that made the id has ended, perhaps since it knew of the victim
    elif "another rank failed" not in report["result"]:
        tally.fault("another error at the start", case, rank, report["result"] + ": " + text)
    if not named:
        tally.fault("did not name the lost at the start", case, rank, text)


def kill_at_start(lab, program, seed, tally):
    chance = random.Random(seed)
    victim = chance.randrange(lab.ranks)
    environment = {"MOECCL_DEBUG": "INFO", "MOECCL_TIMEOUT": "5000"}
    if lab.start_us is None:  # how long the set-up takes
        reports, _ = Case(lab, program, seed, 0, **environment).finish()
        lab.start_us = max(report["joined"] - report["began"] for report in reports.values()) // 1000
    case = Case(lab, program, seed, 20, victim=victim, after_ms=-1 - chance.randrange(lab.start_us), limit=30, **environment)
    since = case.stamp("killed")
    reports, ended = case.finish()
    log = open(case.log.name, errors="replace").read()
    if since is None:
        tally.fault("never began", case, victim, log[-2000:])
        return
    accepted = {int(rank) for rank in re.findall(r"rank (\d+)\S* .*found the rendezvous", log)}
    # Rank 0 takes the id away when it fails: a process that begins later has no id to ask with. It says so when its
    # time is over, or its launcher ends it before.
    late = [rank for rank in range(lab.ranks)
            if rank in reports and "rank 0 has not written MOECCL_ID_FILE" in reports[rank].get("text", "") or
            rank not in reports and re.search(rf"rank {rank} of {lab.ranks}, .*waits for rank 0 to write MOECCL_ID_FILE", log)]
    alone = [rank for rank, report in reports.items() if rank not in (victim, *late) and report["joined"] is None]
    for rank in alone:
        tally.survivors += 1
        judge_start(tally, case, rank, reports[rank], victim, accepted)
        if victim in accepted:
            tally.times.append((reports[rank]["returned"] - since) / 1e9)
    # Those that had joined see it as at any later time.
    judge(tally, case, [victim], since, False, reports, ended, judged=alone + late)


def kill(lab, program, seed, tally):
    chance = random.Random(seed)
    victim = chance.randrange(lab.ranks)
    case = Case(lab, program, seed, 60, shrinks=True, victim=victim, after_ms=chance.randrange(600))
    since = case.stamp("killed")
    reports, ended = case.finish()
    if since is None:
        tally.fault("never began", case, victim, open(case.log.name, errors="replace").read()[-2000:])
        return
    judge(tally, case, [victim], since, True, reports, ended)


def cut(lab, program, seed, tally, at_start=False):
    chance = random.Random(seed)
    # Cut off at the start, the node that all meet at is missed by all the others.
    node = chance.randrange(lab.nodes)
    lost = [rank for rank in range(lab.ranks) if lab.node_of(rank) == node]
    # Later, each side goes on by itself.
    case = Case(lab, program, seed, 60, MOECCL_DEBUG="INFO") if at_start else Case(lab, program, seed, 60, shrinks=True)
    try:
        if not case.says("found the rendezvous", lab.ranks) if at_start else case.stamp("joined") is None:
            tally.fault("never began", case, -1, open(case.log.name, errors="replace").read()[-2000:])
            return
        time.sleep(chance.random() * (0.1 if at_start else 0.5))
        lab.uplink(node, "down")
        since = time.monotonic_ns()
        reports, ended = case.finish()
    finally:
        lab.uplink(node, "up")
    judge(tally, case, lost, since, not at_start, reports, ended, cut_off=lost)


def process_of(lab, rank):
    """The process of a job's rank, as its node numbers it."""
    find = ["sh", "-c", f"grep -lz '^MOECCL_RANK={rank}$' /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3 | "
            f"while read p; do grep -q faults_rank /proc/$p/comm && echo $p; done"]
    pids = lab.call("exec", lab.node_of(rank), "--", *find).stdout.split()
    if len(pids) != 1:
        sys.exit(f"cannot find rank {rank}: {pids}")
    return pids[0]


def stop(lab, program, seed, tally):
    chance = random.Random(seed)
    victim = chance.randrange(lab.ranks)
    case = Case(lab, program, seed, 8)
    tally.cases += 1
    if case.stamp("joined") is None:
        tally.fault("never began", case, victim, open(case.log.name, errors="replace").read()[-2000:])
        return
    pid = process_of(lab, victim)
    lab.call("exec", lab.node_of(victim), "--", "kill", "-STOP", pid)
    time.sleep(5)
    lab.call("exec", lab.node_of(victim), "--", "kill", "-CONT", pid)
    undisturbed(tally, case, "took a stopped rank for dead")


def mentions(text, rank):
    """Whether it is in a text's "rank 3" or "ranks 0, 2-5"."""
    for listed in re.findall(r"\branks? (\d+(?:-\d+)?(?:, \d+(?:-\d+)?)*)", text):
        for part in listed.split(", "):
            first, _, last = part.partition("-")
            if int(first) <= rank <= int(last or first):
                return True
    return False


def hang(lab, program, seed, tally):
    chance = random.Random(seed)
    victim = chance.randrange(lab.ranks)
    case = Case(lab, program, seed, 60, MOECCL_TIMEOUT="2000")
    tally.cases += 1
    if case.stamp("joined") is None:
        tally.fault("never began", case, victim, open(case.log.name, errors="replace").read()[-2000:])
        return
    pid = process_of(lab, victim)
    time.sleep(chance.random() * 0.5)
    since = time.monotonic_ns()
    lab.call("exec", lab.node_of(victim), "--", "kill", "-STOP", pid)
    others = set(range(lab.ranks)) - {victim}
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and not all(os.path.exists(os.path.join(case.out, f"{rank}.json")) for rank in others):
        time.sleep(0.05)
    lab.call("exec", lab.node_of(victim), "--", "kill", "-CONT", pid)
    reports, ended = case.finish()
    for rank in others:
        tally.survivors += 1
        report = reports.get(rank)
        if report is None:
            tally.fault("crashed" if ended else "hung", case, rank, open(case.log.name, errors="replace").read()[-2000:])
            continue
        tally.times.append((report["returned"] - since) / 1e9)
        if report["result"] == "success":
            tally.fault("saw nothing", case, rank, report)
        elif not mentions(report["text"], victim):
            tally.fault("did not name the stopped rank", case, rank, report["text"])


def outage(lab, program, seed, tally):
    chance = random.Random(seed)
    node, seconds = chance.randrange(lab.nodes), chance.uniform(2, 2.5)
    script = f"ip link set eth0 down; begin=$(date +%s%N); sleep {seconds}; ip link set eth0 up; echo $(($(date +%s%N) - begin))"
    for _ in range(10):
        case = Case(lab, program, seed, 8)
        if case.stamp("joined") is None:
            tally.cases += 1
            tally.fault("never began", case, -1, open(case.log.name, errors="replace").read()[-2000:])
            return
        took = int(lab.call("exec", node, "--", "sh", "-c", script).stdout) / 1e9
        if took < LONGEST_OUTAGE:
            tally.cases += 1
            undisturbed(tally, case, "took a short outage for an end")
            return
        case.finish()
    sys.exit(f"an outage of {seconds:.1f} s takes {took:.1f} s: this machine is too busy")


def control_port(lab, node):
    """Of one of its ranks, each of which opens that one before the port for data."""
    ports = {}
    for line in lab.call("exec", node, "--", "ss", "-Htlnp").stdout.splitlines():
        if found := re.search(r":(\d+)\s.*\"faults_rank\",pid=(\d+),fd=(\d+)", line):
            port, pid, fd = map(int, found.groups())
            ports[pid] = min(ports.get(pid, (fd, port)), (fd, port))
    return random.choice(sorted(ports.values()))[1] if ports else None


def resets(lab, program, seed, tally):
    case = Case(lab, program, seed, 6)
    tally.cases += 1
    if case.stamp("joined") is None:
        tally.fault("never began", case, -1, open(case.log.name, errors="replace").read()[-2000:])
        return
    count = 0
    for i in range(20):
        port = control_port(lab, i % lab.nodes)
        done = lab.call("exec", i % lab.nodes, "--", "ss", "-HKt", "state", "established", f"( sport = :{port} or dport = :{port} )")
        count += len(done.stdout.splitlines())
        time.sleep(0.1)
    if count == 0:
        tally.fault("had no connection to reset", case, -1, done.stdout)
    undisturbed(tally, case, "took a reset for an end")


def undisturbed(tally, case, what):
    reports, ended = case.finish()
    for rank in range(case.lab.ranks):
        tally.survivors += 1
        report = reports.get(rank)
        if report is None:
            tally.fault("crashed" if ended else "hung", case, rank, open(case.log.name, errors="replace").read()[-2000:])
        elif report["result"] != "success" or report["failed"] or report["wrong"]:
            tally.fault(what, case, rank, report)
    return reports


def strangers(lab, program, seed, tally):
    seconds, medians, starts = 4, [], []
    tally.cases += 1
    for idle in (0, 2000):  # alone, then in company
        crowd = [lab.start(node, sys.executable, STRANGERS, seconds + 3, idle) for node in range(lab.nodes if idle else 0)]
        time.sleep(0.5)
        case = Case(lab, program, seed, seconds)
        reports = undisturbed(tally, case, "was disturbed")
        for each in crowd:
            said = each.communicate(timeout=60)[0]
            if each.returncode or " 0 attacks" in said:
                tally.fault("a stranger got in, or found nothing", case, -1, said)
        if len(reports) == lab.ranks:
            medians.append(statistics.median(report["median"] for report in reports.values()))
            starts.append((max(r["joined"] for r in reports.values()) - min(r["began"] for r in reports.values())) / 1e9)
    if len(medians) == 2:
        tally.slower.append(medians[1] / medians[0])
        tally.later.append(starts[1] - starts[0])


def hold(lab, program, seed, tally, lives, collectives):
    """No descriptor and no thread more at the end than after a tenth of the lives, or half of one; of memory at most a MiB."""
    tally.cases += 1
    victim = random.Random(seed).randrange(1, lab.ranks) if lives > 1 else -1
    case = Case(lab, os.path.join(os.path.dirname(program), "faults_lives"), seed, lives, limit=48 * 3600,
                more=(collectives, victim))
    reports, ended = case.finish()
    grown = 0
    for rank in set(range(lab.ranks)) - {victim}:
        tally.survivors += 1
        report = reports.get(rank)
        if report is None:
            tally.fault("failed" if ended else "hung", case, rank, open(case.log.name, errors="replace").read()[-2000:])
            continue
        if report["wrong"]:
            tally.fault("wrong numbers", case, rank, report["wrong"])
        (fds, threads, kib), (fds2, threads2, kib2) = report["early"], report["late"]
        grown = max(grown, kib2 - kib)
        if fds2 > fds or threads2 > threads or kib2 > kib + 1024:
            tally.fault("grows", case, rank, f"{report['early']} to {report['late']}")
    print(f"  {lives} lives, {collectives} collectives each: at most {grown} KiB more than at first")


KINDS = {"strangers": strangers, "kills": kill, "kills-at-start": kill_at_start, "stops": stop, "hangs": hang, "outages": outage,
         "resets": resets, "cuts": cut,
         "cuts-at-start": functools.partial(cut, at_start=True)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    for kind in KINDS:
        parser.add_argument(f"--{kind}", type=int, default=0, metavar="N")
    parser.add_argument("--lives", type=int, default=0, metavar="N")
    parser.add_argument("--soak", type=int, default=0, metavar="N")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--ranks-per-node", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--within", type=float, help="seconds after which an error is late")
    options = parser.parse_args()
    if not os.access(options.program, os.X_OK):
        sys.exit(f"there is no {options.program}; build it (ninja -C build tests/faults/faults_rank)")
    failed = False
    for number in ENDING:
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    with tempfile.TemporaryDirectory() as runtime, Lab(runtime, options.nodes, options.ranks_per_node) as lab:
        for lives, collectives in ((options.lives, 0), (1, options.soak)):
            if lives > 1 or collectives:
                tally = Tally()
                hold(lab, os.path.realpath(options.program), options.seed, tally, lives, collectives)
                tally.summary(f"{'soak' if collectives else 'lives'}, {options.nodes}x{options.ranks_per_node}")
                failed |= bool(tally.faults)
        for kind, function in KINDS.items():
            tally, count = Tally(), getattr(options, kind.replace("-", "_"))
            for i in range(count):
                function(lab, os.path.realpath(options.program), options.seed * 1000003 + i, tally)
                if (i + 1) % 20 == 0:
                    print(f"{kind}: {i + 1} of {count}", flush=True)
            if count:
                tally.summary(f"{kind}, {options.nodes}x{options.ranks_per_node}")
                late = sum(options.within is not None and t > options.within for t in tally.times)
                if late:
                    print(f"  {late} errors came after more than {options.within} s")
                failed |= bool(tally.faults) or late > 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
