#!/usr/bin/env python3
"""Holds the figures of a run of tests/run_gpu.sh against what the GPU could do, and what others do in the same run.

    bars.py RESULTS_JSON

A floor is the longer of two times: of the bytes that must move, at the rate of the run's copy, and of the operations, at
that of the run's matrix product in bfloat16. "x floor" is how many floors a figure took. "beside" is the time of a copy of
as many bytes, or of PyTorch; the ratio is that time by ours, so above 1 ours is the faster one. Bars that no figure of the
run is for are named too.
"""
import json
import pathlib
import sys

SIZES = ("type", "tokens", "embedding", "experts", "choices")
LAYOUTS = ("permute", "un-permute", "permute backward", "un-permute backward", "pack", "unpack", "clear unused")


class Figures:
    """What a run has measured, of all of its parts."""

    def __init__(self, results):
        self.gpu = results["machine"]["gpu"]
        rows = [row for part in results["parts"] for row in part["numbers"]]
        self.kernels = [row for row in rows if "kernel" in row]
        self.rivals = {}
        for row in rows:
            if "rival" in row:
                self.rivals.setdefault(self.key(row["rival"], row), []).append(row)
        self.layers = [row for row in rows if "layer" in row]
        self.exchanges = [row for row in rows if "executor_us" in row]
        ceilings = {row["ceiling"]: row["rate"] for row in rows if "ceiling" in row}
        self.copy, self.products = ceilings.get("copy"), ceilings.get("matrix product")

    @staticmethod
    def key(name, row):
        return (name, *(row.get(size) for size in SIZES))

    def floor(self, row):
        """Microseconds; None where nothing is known of them."""
        times = [row[what] / rate * 1e6 for what, rate in (("bytes", self.copy), ("flops", self.products))
                 if row.get(what) and rate]
        return max(times, default=None)

    def rival(self, row):
        """The fastest one."""
        return min(self.rivals.get(self.key(row["kernel"], row), []), key=lambda other: other["us"], default=None)

    def of(self, kernel, **sizes):
        return [row for row in self.kernels
                if row["kernel"] == kernel and all(row.get(size) == value for size, value in sizes.items())]


class Bar:
    """A figure, what it is held against, and whether it keeps that."""

    def __init__(self, letter, what, us, floor=None, beside=None, by="", ratio=None, limit="", keeps=None):
        self.letter, self.what, self.us, self.floor, self.beside, self.by = letter, what, us, floor, beside, by
        self.ratio = ratio if ratio is not None else beside / us if beside and us else None
        self.limit, self.keeps = limit, keeps

    def state(self):
        if self.keeps is not None:
            return "kept" if self.keeps else "MISSED"
        return "not measured" if self.us is None else "nothing beside it" if self.limit else ""

    def line(self):
        def number(value, digits):
            return f"{value:.{digits}f}" if value is not None else "-"

        times = self.us / self.floor if self.floor and self.us is not None else None
        return (f"{self.letter:4}{self.what:44}{number(self.us, 1):>11}{number(self.floor, 1):>11}{number(times, 2):>9}"
                f"{number(self.beside, 1):>11} {self.by:22}{number(self.ratio, 2):>7}  {self.limit:16}{self.state()}".rstrip())


HEAD = (f"{'':4}{'':44}{'us':>11}{'floor, us':>11}{'x floor':>9}{'beside, us':>11} {'which is':22}{'ratio':>7}  "
        f"{'bar':16}")


def named(row):
    sizes = [f"{row['tokens']} tokens"] if "tokens" in row else []
    if row.get("experts"):
        sizes.append(f"E={row['experts']}")
    return f"{row['kernel']}, {', '.join(sizes)}"


def copied(figures, letter, kernel, least, **sizes):
    """Bars of kernels that only move rows: so much of the copy's rate."""
    limit = f">= {least} copies"
    rows = [row for row in figures.of(kernel, **sizes) if row.get("copy_us")]
    for row in rows:
        ratio = row["copy_us"] / row["us"]
        yield Bar(letter, named(row), row["us"], figures.floor(row), row["copy_us"], "a copy", ratio, limit,
                  ratio >= least)
    if not rows:
        yield Bar(letter, kernel, None, limit=limit)


def timed(figures, letter, kernel, most, **sizes):
    limit = f"<= {most} us"
    rows = figures.of(kernel, **sizes)
    for row in rows:
        rival = figures.rival(row)
        yield Bar(letter, named(row), row["us"], figures.floor(row), rival and rival["us"], rival["by"] if rival else "",
                  None, limit, row["us"] <= most)
    if not rows:
        yield Bar(letter, f"{kernel}, {sizes['tokens']} tokens", None, limit=limit)


def beside(figures, letter, kernel):
    limit = ">= 1"
    rows = [(row, figures.rival(row)) for row in figures.of(kernel)]
    for row, rival in rows:
        keeps = rival["us"] >= row["us"] if rival else None
        yield Bar(letter, named(row), row["us"], figures.floor(row), rival and rival["us"], rival["by"] if rival else "",
                  None, limit, keeps)
    if not rows:
        yield Bar(letter, kernel, None, limit=limit)


def layers(figures):
    def key(row):
        return tuple(row.get(size) for size in ("layer", *SIZES, "hidden"))

    # It is measured once more beside what is compiled.
    own = list({key(row): row for row in figures.layers if row["by"] == "moeccl"}.values())
    for row in own:
        others = [other for other in figures.layers if other["by"] != "moeccl" and key(other) == key(row)]
        best = min(others, key=lambda other: other["forward_ms"], default=None)
        for pass_, field in (("forward", "forward_ms"), ("both passes", "both_ms")):
            if field not in row:
                continue
            us, theirs = row[field] * 1e3, best[field] * 1e3 if best and field in best else None
            limit, keeps = (">= 1", theirs >= us if theirs else None) if field == "forward_ms" else ("", None)
            # Backward each matrix takes two products, one for each of its factors.
            passes = 1 if field == "forward_ms" else 3
            work = {what: row.get(what, 0) * passes for what in ("flops", "bytes")}
            yield Bar("f", f"{row['layer']} {pass_}, {row['tokens']} tokens, E={row['experts']}", us,
                      figures.floor(work), theirs, best["by"] if best else "", None, limit, keeps)
    if not own:
        yield Bar("f", "a layer's forward pass", None, limit=">= 1")


def enqueued(figures):
    for row in figures.exchanges:
        ours, theirs = row["executor_host_us"], row["by_hand_host_us"]
        yield Bar("g", f"enqueuing, {row['lanes']} lanes, {row['bytes']} bytes", ours, None, theirs, "by hand", None,
                  "<= 2 us more", ours <= theirs + 2)
    if not figures.exchanges:
        yield Bar("g", "enqueuing an exchange", None, limit="<= 2 us more")


def bars(figures):
    for kernel in LAYOUTS:
        yield from copied(figures, "a", kernel, 0.85, tokens=8192)
    yield from timed(figures, "a", "permute", 160 if "H200" in figures.gpu else 210, tokens=4096)
    yield from timed(figures, "a", "permute", 13, tokens=128)
    yield from timed(figures, "b", "choosing", 13, tokens=8192, experts=256)
    yield from timed(figures, "b", "choosing", 2.5, tokens=128, experts=256)
    yield from timed(figures, "c", "router product", 4.5, tokens=16, experts=256)
    for kernel in ("quantise", "dequantise"):
        yield from copied(figures, "d", kernel, 0.75, tokens=8192)
    yield from beside(figures, "e", "expert product")
    yield from layers(figures)
    yield from enqueued(figures)


def head(results, figures):
    def rate(value, unit, name):
        return f"{name} {value / 1e12:.2f} {unit}" if value else f"{name} not measured"

    versions = results["versions"]
    return (f"{figures.gpu or 'no GPU'}; CUDA {versions['cuda']}, NCCL {versions['nccl'] or 'none'}, "
            f"PyTorch {versions['torch'] or 'none'}; {results['date']}\n"
            f"{rate(figures.copy, 'TB/s', 'copy')}, {rate(figures.products, 'TFLOP/s', 'matrix product in bfloat16')}\n")


def summary(results):
    """The bars alone. Those with nothing beside them are not kept: nobody has measured what they are held against."""
    figures = Figures(results)
    all_bars = list(bars(figures))
    states = [bar.state() for bar in all_bars if bar.limit]
    kept, missed = states.count("kept"), states.count("MISSED")
    return "\n".join([head(results, figures), HEAD, *(bar.line() for bar in all_bars),
                      f"bars: {kept} kept, {missed} missed, {len(states) - kept - missed} not measured", ""])


def page(results):
    """The bars, and all other figures."""
    figures = Figures(results)
    lines = []
    for row in figures.kernels:
        rival = figures.rival(row)
        other, by = (rival["us"], rival["by"]) if rival else (row.get("copy_us"), "a copy" if "copy_us" in row else "")
        lines.append(Bar("", named(row), row["us"], figures.floor(row), other, by).line())
    return "\n".join([summary(results), HEAD, *lines, ""])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    print(page(json.loads(pathlib.Path(sys.argv[1]).read_text())))
