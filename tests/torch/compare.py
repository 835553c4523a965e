#!/usr/bin/env python3
"""torch.distributed on moeccl beside Gloo, and DeepSpeed's MoE layer with and without moeccl.

    perf/moeccl-lab run --no-prefix -- VENV/bin/python tests/torch/compare.py PART... [--csv FILE --cluster NAME]

PART is one or more of

    exchanges   all_to_all_single and all_reduce of several sizes
    overlap     an exchange beside as much compute
    groups      20 new_group of half of the ranks
    layers      DeepSpeed's MoE layer, forward and backward, of the shapes below
    lengths     moeccl.torch.MoE, whose number of tokens changes in every pass, beside one whose number stays

Both backends live in one job and take turns, so that whatever disturbs one disturbs the other. A time is that of the
slowest rank; a ratio is the median over repetitions of Gloo's time divided by moeccl's. Rank 0 prints Markdown. VENV
is what tests/torch/run.sh makes; ranks and their file come from moeccl-lab run, or from RANK, WORLD_SIZE and
MOECCL_ID_FILE.
"""
import argparse
import contextlib
import csv
import datetime
import os
import statistics
import sys
import time

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("OMP_NUM_THREADS", "1")
if os.path.exists("/sys/class/net/eth0"):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "eth0")  # a namespace's host name has no address

try:
    import torch
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import GroupMember
except ImportError:
    sys.exit("compare.py needs torch and moeccl's package; tests/torch/run.sh installs both")

KIB = 1024
EXCHANGES = (64, KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, 1024 * KIB)  # bytes per peer
REDUCTIONS = (8, KIB, 16 * KIB, 64 * KIB, 1024 * KIB)
GROUPS = 20

# DeepSpeed's layers. skew: a bias of the gate, which fills one expert. mp: so many ranks in a row have the same tokens,
# as tensor parallelism makes them; told: DeepSpeed knows that, and exchanges each token once.
LAYERS = {
    "dropless": dict(experts=8, k=1, model=256, hidden=256, tokens=512, capacity=None),
    "dropless, imbalance 4": dict(experts=8, k=1, model=256, hidden=256, tokens=128, capacity=None, skew=0.32),
    "capacity 1.0": dict(experts=8, k=2, model=256, hidden=256, tokens=512, capacity=1.0),
    "top-8 of 64, dropless": dict(experts=64, k=8, model=256, hidden=88, tokens=256, capacity=None),
    "dropless, MP of 2": dict(experts=8, k=1, model=256, hidden=256, tokens=512, capacity=None, mp=2),
    "capacity 1.0, MP of 2": dict(experts=8, k=2, model=256, hidden=256, tokens=512, capacity=1.0, mp=2),
    "capacity 1.0, MP of 2, told": dict(experts=8, k=2, model=256, hidden=256, tokens=512, capacity=1.0, mp=2, told=True),
}


class TensorParallel:
    """What DeepSpeed asks of Megatron's mpu: groups of so many ranks in a row."""

    def __init__(self, job, name, size):
        for first in range(0, job.ranks, size):
            made = dist.new_group(list(range(first, first + size)), backend="gloo" if name == "gloo" else "cpu:moeccl")
            if first <= job.rank < first + size:
                self.group = made
        self.rank, self.size = job.rank % size, size

    def get_tensor_model_parallel_rank(self):
        return self.rank

    def get_tensor_model_parallel_world_size(self):
        return self.size

    def get_tensor_model_parallel_group(self):
        return self.group


class Job:
    """Both backends: the default group is moeccl's."""

    def __init__(self, budget):
        self.budget = budget
        rank = int(os.environ.get("MOECCL_RANK", os.environ.get("RANK", 0)))
        ranks = int(os.environ.get("MOECCL_NRANKS", os.environ.get("WORLD_SIZE", 1)))
        dist.init_process_group("cpu:moeccl", init_method=f"file://{os.environ['MOECCL_ID_FILE']}.torch", rank=rank,
                                world_size=ranks, timeout=datetime.timedelta(seconds=300))
        self.rank, self.ranks = rank, ranks
        self.moeccl = GroupMember.WORLD
        self.gloo = dist.new_group(backend="gloo")
        self.backends = {"gloo": self.gloo, "moeccl": self.moeccl}

    @contextlib.contextmanager
    def default(self, name):
        """Calls without a group, and groups that are made, are of that backend."""
        make = dist.new_group

        def made(*arguments, **options):
            return make(*arguments, **{"backend": "gloo" if name == "gloo" else "cpu:moeccl", **options})
        before = GroupMember.WORLD
        GroupMember.WORLD, dist.new_group = self.backends[name], made
        try:
            yield
        finally:
            GroupMember.WORLD, dist.new_group = before, make

    def slowest(self, seconds):
        """Each rank's times, one per repetition, as the largest over ranks."""
        times = torch.tensor(seconds, dtype=torch.float64)
        dist.all_reduce(times, dist.ReduceOp.MAX, group=self.moeccl)
        return times.tolist()

    def turns(self, calls, budget=None, least=7, most=200):
        """name -> call: times of each call, which take turns, by repetition; the first two are not counted."""
        once = {}
        for name, call in calls.items():
            call()
            began = time.perf_counter()
            call()
            once[name] = time.perf_counter() - began
        budget = budget or self.budget
        repetitions = int(budget * len(calls) / max(self.slowest([sum(once.values())])[0], 1e-6))
        repetitions = min(max(repetitions, least), most)
        times = {name: [] for name in calls}
        names = list(calls)
        for repetition in range(repetitions):
            for name in names[repetition % len(names):] + names[:repetition % len(names)]:
                dist.barrier(group=self.moeccl)
                began = time.perf_counter()
                calls[name]()
                times[name].append(time.perf_counter() - began)
        return {name: self.slowest(each) for name, each in times.items()}


def summary(times, base="gloo"):
    """Median milliseconds, and for all but the base the ratio's quartiles."""
    result = {"repetitions": len(times[base])}
    for name, each in times.items():
        result[name] = {"ms": 1e3 * statistics.median(each)}
        if name != base:
            ratios = sorted(slow / fast for slow, fast in zip(times[base], each))
            result[name]["ratio"] = [ratios[len(ratios) // 4], statistics.median(ratios), ratios[3 * len(ratios) // 4]]
    return result


def line(what, result):
    cells = [what, f"{result['gloo']['ms']:.2f}" if "gloo" in result else "refuses"]
    for name, each in result.items():
        if name not in ("gloo", "repetitions"):
            low, middle, high = each.get("ratio", (None, None, None))
            cells.append(f"{each['ms']:.2f} | {f'{middle:.2f} ({low:.2f} to {high:.2f})' if middle else '-'}")
    return "| " + " | ".join(cells) + " |"


def size_text(count):
    return f"{count // KIB // KIB} MiB" if count >= KIB * KIB else f"{count // KIB} KiB" if count >= KIB else f"{count} B"


def exchanges(job, say):
    results = {}
    say("| call | Gloo, ms | moeccl, ms | times faster (quartiles) |", "|---|---|---|---|")
    for size in EXCHANGES:
        source = torch.ones(job.ranks * size, dtype=torch.uint8)
        target = torch.empty_like(source)
        what = f"all_to_all_single, {size_text(size)} per peer"
        results[what] = summary(job.turns({name: lambda group=group: dist.all_to_all_single(target, source, group=group)
                                           for name, group in job.backends.items()}))
        say(line(what, results[what]))
    for size in REDUCTIONS:
        tensor = torch.zeros(size // 4)
        what = f"all_reduce, {size_text(size)}"
        results[what] = summary(job.turns({name: lambda group=group: dist.all_reduce(tensor, group=group)
                                           for name, group in job.backends.items()}))
        say(line(what, results[what]))
    return results


def overlap(job, say):
    """The exchange is as large as takes Gloo some 85 ms; compute is sized to that."""
    def exchange(group, size, asynchronous=False):
        source = torch.ones(job.ranks * size, dtype=torch.uint8)
        return dist.all_to_all_single(torch.empty_like(source), source, group=group, async_op=asynchronous)

    size = 64 * KIB
    for _ in range(4):
        times = job.turns({"gloo": lambda: exchange(job.gloo, size)}, budget=1)["gloo"]
        size = max(KIB, int(size * min(max(0.085 / statistics.median(times), 0.25), 8)))
    matrix = torch.ones(192, 192)

    def compute(count):
        for _ in range(count):
            matrix @ matrix

    count = 8
    while True:
        seconds = statistics.median(job.turns({"compute": lambda: compute(count)}, budget=1)["compute"])
        if seconds > 0.06:
            count = max(1, int(count * 0.085 / seconds))
            break
        count *= 2

    def both(group):
        work = exchange(group, size, True)
        compute(count)
        work.wait()

    result = summary(job.turns({"gloo": lambda: both(job.gloo), "moeccl": lambda: both(job.moeccl)}))
    alone = summary(job.turns({"gloo": lambda: exchange(job.gloo, size), "moeccl": lambda: exchange(job.moeccl, size)}))
    say("| call | Gloo, ms | moeccl, ms | times faster (quartiles) |", "|---|---|---|---|")
    say(line(f"all_to_all_single, {size_text(size)} per peer, alone", alone))
    say(line("the same beside 85 ms of compute", result))
    return {"alone": alone, "beside compute": result}


def groups(job, say):
    half = list(range(0, job.ranks, 2))

    def make(name):
        made = [dist.new_group(half, backend="gloo" if name == "gloo" else "cpu:moeccl") for _ in range(GROUPS)]
        for group in made:
            if job.rank in half:
                dist.destroy_process_group(group)

    result = summary(job.turns({name: lambda name=name: make(name) for name in job.backends}, least=5))
    say("| call | Gloo, ms | moeccl, ms | times faster (quartiles) |", "|---|---|---|---|")
    say(line(f"{GROUPS} new_group of half of the ranks, and their ends", result))
    return {"groups": result}


def layers(job, say):
    import deepspeed
    import moeccl.torch
    from deepspeed.moe import utils  # noqa: F401  (the import registers names that the layer needs)
    from deepspeed.moe.layer import MoE
    from deepspeed.utils import groups as deepspeed_groups

    deepspeed.init_distributed()
    results = {}
    say("| layer, forward and backward | DeepSpeed on Gloo, ms | DeepSpeed on moeccl, ms | times faster | "
        "moeccl.torch.MoE, ms | times faster | expert modules' share |", "|---|---|---|---|---|---|---|")
    for what, shape in LAYERS.items():
        computing = [0.0]

        class Expert(torch.nn.Module):
            """Times itself: what of the layer's time is compute."""

            def __init__(self):
                super().__init__()
                self.first = torch.nn.Linear(shape["model"], shape["hidden"])
                self.second = torch.nn.Linear(shape["hidden"], shape["model"])

            def forward(self, rows):
                began = time.perf_counter()
                result = self.second(torch.relu(self.first(rows)))
                computing[0] += time.perf_counter() - began
                return result

        def made(backend, replace=False):
            torch.manual_seed(3)
            with job.default(backend), contextlib.redirect_stdout(None):
                for name in ("_EXPERT_PARALLEL_GROUP", "_EXPERT_DATA_PARALLEL_GROUP"):
                    getattr(deepspeed_groups, name).clear()
                layer = MoE(shape["model"], Expert(), num_experts=shape["experts"], ep_size=job.ranks, k=shape["k"],
                            capacity_factor=shape["capacity"] or 1.0, drop_tokens=shape["capacity"] is not None,
                            use_rts=False, top2_2nd_expert_sampling=False)
                layer.set_deepspeed_parallelism()
            model = torch.nn.ModuleDict({"layer": layer})
            if replace:
                moeccl.torch.replace_deepspeed(model, mp_size=shape.get("mp", 1))
            return model

        told = {name: TensorParallel(job, name, shape["mp"]) for name in job.backends} if "told" in shape else {}
        models = {"gloo": made("gloo"), "moeccl": made("moeccl"), "layer": made("moeccl", True)}
        base = "gloo"
        if told:  # Gloo refuses the flat buffer that DeepSpeed then gathers into
            del models["gloo"]
            base = "moeccl"
        generator = torch.Generator().manual_seed(job.rank // shape.get("mp", 1))
        tokens = torch.randn(1, shape["tokens"], shape["model"], generator=generator)
        if "skew" in shape:  # one direction that the gate's first expert likes
            with torch.no_grad():
                for model in models.values():
                    weight = next(each for name, each in model.named_parameters() if name.endswith("gate.wg.weight"))
                    weight[0] += shape["skew"] * tokens.mean((0, 1)).norm() * torch.ones(shape["model"]) / 16
                tokens += 0.1

        def step(name):
            model = models[name]
            deepspeed_groups.mpu = told.get(name)  # the layer of moeccl's asks nobody
            with job.default("gloo" if name == "gloo" else "moeccl"):
                model.zero_grad()
                source = tokens.clone().requires_grad_()
                output, auxiliary, _ = model["layer"](source)
                (output.square().sum() + auxiliary).backward()
            return output.detach(), source.grad

        outputs = {name: step(name) for name in models}
        if not all(map(torch.equal, outputs["moeccl"], outputs[base])):
            raise SystemExit(f"rank {job.rank}: {what}: DeepSpeed on moeccl gives other bits than on Gloo")
        for name, (output, _) in outputs.items():
            largest = (output - outputs[base][0]).abs().max().item()
            if largest > 1e-4:
                raise SystemExit(f"rank {job.rank}: {what}: outputs of {name} are off by {largest}")
        counts = models["layer"]["layer"].deepspeed_moe.exp_counts.float()
        dist.all_reduce(counts, group=job.moeccl)
        computing[0] = 0.0
        times = job.turns({name: lambda name=name: step(name) for name in models})
        share = computing[0] / sum(map(sum, times.values()))
        results[what] = summary(times, base)
        results[what]["imbalance"] = (counts.max() / counts.mean()).item()
        results[what]["share"] = share
        shown = {name: each for name, each in results[what].items() if name not in ("imbalance", "share")}
        what += f" (imbalance {results[what]['imbalance']:.1f}{'; beside DeepSpeed on moeccl' if told else ''})"
        say(line(what, shown)[:-1] + f"| {100 * share:.0f} % |")
    return results


def lengths(job, say):
    """Rounds of passes with as many tokens together, so their exchanges and products are of as many rows."""
    import moeccl.torch

    results = {}
    mean, model, experts, choices = 256, 256, 64, 8
    sizes = [mean + (1 if place % 2 else -1) * (place // 2 + 1) * mean // 8 for place in range(8)]
    assert sum(sizes) == mean * len(sizes) and len(set(sizes)) == len(sizes)
    generator = torch.Generator().manual_seed(job.rank)
    tokens = torch.randn(2 * mean, model, generator=generator)
    indices = torch.rand(2 * mean, experts, generator=generator).topk(choices).indices
    weights = torch.rand(2 * mean, choices, generator=generator)
    say("| 8 passes, forward and backward | 256 tokens each, ms | 128 to 384 tokens, ms | times faster (quartiles) |",
        "|---|---|---|---|")
    for what, options in {"dropless": {}, "capacity 1.0": {"capacity_factor": 1.0}}.items():
        def made():
            torch.manual_seed(job.rank)
            own = [torch.nn.Linear(model, model, bias=False) for _ in range(experts // job.ranks)]
            return moeccl.torch.MoE(own, num_experts=experts, **options)

        layers = {"fixed": made(), "changing": made()}

        def step(name):
            layer = layers[name]
            for size in sizes if name == "changing" else [mean] * len(sizes):
                layer.zero_grad()
                source = tokens[:size].clone().requires_grad_()
                layer(source, indices[:size], weights[:size]).sum().backward()

        results[what] = summary(job.turns({name: lambda name=name: step(name) for name in layers}, least=15), "fixed")
        low, middle, high = results[what]["changing"]["ratio"]
        say(f"| {what} | {results[what]['fixed']['ms']:.2f} | {results[what]['changing']['ms']:.2f} | "
            f"{middle:.3f} ({low:.3f} to {high:.3f}) |")
    return results


def write_csv(path, cluster, results):
    with open(path, "a", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        if file.tell() == 0:
            rows.writerow(("cluster", "part", "case", "by", "ms", "faster_first_quartile", "faster_median", "faster_third_quartile"))
        for part, cases in results.items():
            for case, each in cases.items():
                for name in ("gloo", "moeccl", "layer"):
                    if name in each:
                        ratio = [f"{number:.3f}" for number in each[name].get("ratio", ())]
                        rows.writerow((cluster, part, case, name, f"{each[name]['ms']:.4g}", *(ratio or ("", "", ""))))


PARTS = {"exchanges": exchanges, "overlap": overlap, "groups": groups, "layers": layers, "lengths": lengths}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=PARTS, metavar="PART")
    parser.add_argument("--csv", metavar="FILE", help="rows are added to it, for perf/scripts/plot_torch.py")
    parser.add_argument("--cluster", default="", metavar="NAME", help="the first column there")
    parser.add_argument("--budget", type=float, default=4, metavar="SECONDS", help="per row and backend")
    options = parser.parse_args()
    if "MOECCL_ID_FILE" not in os.environ:
        sys.exit("compare.py: MOECCL_ID_FILE is not set; start it by moeccl-lab run, or name a file for the start")
    torch.set_num_threads(1)
    job = Job(options.budget)

    def say(*lines):
        if job.rank == 0:
            print(*lines, sep="\n", flush=True)

    results = {}
    for part in options.parts:
        say(f"\n{part}, {job.ranks} ranks\n")
        results[part] = PARTS[part](job, say)
    if job.rank == 0 and options.csv:
        write_csv(options.csv, options.cluster, results)
    dist.barrier(group=job.moeccl)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
