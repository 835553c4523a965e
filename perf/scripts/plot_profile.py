#!/usr/bin/env python3
"""Shows a profile of moeccl-fit: what was measured, how well lines fit it, which schedule it makes the fastest.

    plot_profile.py --output report.html PROFILE.json                     one page with all pictures; takes matplotlib
    plot_profile.py --map MAP.json --output report.html PROFILE.json      with maps, from moeccl-fit --map
    plot_profile.py --png FOLDER [--map MAP.json] PROFILE.json            the pictures alone, as files

The page begins with pictures: what links carry, and which algorithm and schedule is the fastest where. Then, for each
group of ranks: samples and fitted lines of every collective, a colour for each algorithm, and below them the errors of
the lines at the samples. Errors are predicted / measured - 1. Bars are as long as the middle half of the repetitions
is wide. Behind each picture its numbers are folded: how sure a lead is; alpha, beta, R2 and the worst error of lines.
Curves that say little are marked there. Sizes in tables are rounded to powers of two.
"""
import argparse
import base64
import html
import math
import os
import re
import sys

import drawing
from tool_json import load_json

COLLECTIVES_PER_PICTURE = 4
NOISY = 0.2  # the median error of a curve from which on it says little
# Colours that all people can tell apart: none is red or green.
COLOURS = ("#0072b2", "#e69f00", "#56b4e9", "#cc79a7", "#5b4ea2", "#f0e442", "#7f7f7f", "#8c564b", "#17becf", "#000000",
           "#c5b0d5", "#c49c94", "#ffbb78", "#9edae5", "#1f3a5f")
SCHEDULE_COLOURS = {"baseline": "#bbbbbb", "S1": "#4c9be8", "S2": "#f2a541", "PPMoE": "#8f7cc3"}
OTHER_COLOUR = "#d98cb3"
MARKERS = "osD^vP*X<>"
STYLES = ("-", "--", "-.", ":")


def size_text(size):
    for unit, text in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if size >= unit:
            return f"{size / unit:g}{text}"
    return f"{size:g}"


def rounded_text(size):
    """The nearest power of two."""
    return size_text(2 ** round(math.log2(size)))


def time_text(seconds):
    for unit, text in ((1, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")):
        if seconds >= unit:
            break
    return f"{seconds / unit:.3g} {text}"


def predicted(fit, size):
    return fit["alpha"] + fit["beta"] * size


def error(curve, sample):
    return predicted(curve["fit"], sample["bytes"]) / sample["seconds"] - 1


def by_group(profile):
    """where -> collective -> curves."""
    groups = {}
    for curve in profile["curves"]:
        groups.setdefault(curve["where"], {}).setdefault(curve["collective"], []).append(curve)
    return groups


def base_name(curve):
    return curve["algorithm"].split(":")[0]


def colours_of(curves):
    """One colour for each algorithm, the same on the whole page."""
    names = sorted({base_name(curve) for curve in curves})
    return {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(names)}


def look(curves, index, colours):
    """A line style for each set of an algorithm's parameters, a marker for each curve."""
    name = base_name(curves[index])
    variant = sum(base_name(curve) == name for curve in curves[:index])
    return {"color": colours[name], "linestyle": STYLES[variant % len(STYLES)]}, MARKERS[index % len(MARKERS)]


def size_axis(axis, sizes):
    axis.set_xscale("log", base=2)
    low, high = min(sizes), max(sizes)
    ticks = [4 ** power for power in range(0, 32) if low / 2 <= 4 ** power <= high * 2]
    axis.set_xticks(ticks[::2] if len(ticks) > 6 else ticks)
    axis.xaxis.set_major_formatter(lambda size, _: size_text(size))
    axis.set_xticks([], minor=True)
    axis.grid(alpha=0.3)


def plot_curves(pyplot, where, collectives, colours):
    """Points and lines above, errors below, a legend at the foot; a column for each collective."""
    legend = 0.3 + 0.2 * max((len(curves) + 1) // 2 for _, curves in collectives)  # inches
    figure, axes = pyplot.subplots(3, len(collectives), figsize=(4.6 * len(collectives), 6.6 + legend),
                                   squeeze=False, height_ratios=(3.6, 2, legend))
    for (collective, curves), (above, below, foot) in zip(collectives, axes.T):
        sizes = [sample["bytes"] for curve in curves for sample in curve["samples"]]
        for index, curve in enumerate(curves):
            style, marker = look(curves, index, colours)
            mine = [sample["bytes"] for sample in curve["samples"]]
            seconds = [sample["seconds"] for sample in curve["samples"]]
            dense = sorted({*mine, *(min(mine) * (max(mine) / min(mine)) ** (i / 200) for i in range(201))})
            above.plot(dense, [predicted(curve["fit"], size) for size in dense], linewidth=1.2, **style)
            half = [min(0.5 * sample["spread"], 0.9) * sample["seconds"] for sample in curve["samples"]]
            above.errorbar(mine, seconds, yerr=half, fmt=marker, markersize=3.5, elinewidth=0.7,
                           color=style["color"])
            below.plot(mine, [100 * error(curve, sample) for sample in curve["samples"]],
                       marker=marker, markersize=3.5, linewidth=0.8, **style)
            foot.plot([], [], marker=marker, markersize=4, label=curve["algorithm"], **style)
        size_axis(above, sizes)
        size_axis(below, sizes)
        above.set_yscale("log")
        above.yaxis.set_major_formatter(lambda seconds, _: time_text(seconds))
        above.set_yticks([], minor=True)
        above.set_title(collective, fontsize=11)
        below.axhline(0, color="gray", linewidth=0.8)
        below.set_yscale("symlog", linthresh=20, linscale=1.5)
        largest = max(20, *(abs(100 * error(curve, sample)) for curve in curves for sample in curve["samples"]))
        below.set_yticks([tick for tick in (-1000, -100, -20, -10, 0, 10, 20, 100, 1000, 10000)
                          if abs(tick) <= 1.2 * largest and tick >= -100])
        below.set_ylim(bottom=-min(130, 1.4 * largest), top=1.4 * largest)
        below.yaxis.set_major_formatter(lambda percent, _: f"{percent:+g} %" if percent else "0")
        below.set_yticks([], minor=True)
        below.set_xlabel("bytes of a rank's send buffer")
        foot.axis("off")
        foot.legend(loc="upper center", ncol=2, fontsize=8, frameon=False, handlelength=3.2)
    axes[0][0].set_ylabel("time of a call, and the line")
    axes[1][0].set_ylabel("error of the line")
    figure.suptitle(f"ranks {where}", fontsize=12)
    figure.tight_layout()
    return figure


def plot_local(pyplot, name, samples):
    """Time of a pass over tokens, a line for each kind of layer."""
    kinds = {}
    for sample in samples:
        kind = tuple(sample[key] for key in ("embedding", "hidden", "experts", "choices"))
        room = sample["rows"] / (sample["tokens"] * sample["choices"])
        kinds.setdefault((*kind, round(room)), []).append(sample)
    figure, axis = pyplot.subplots(figsize=(9, 4.2))
    for index, (kind, mine) in enumerate(sorted(kinds.items())):
        text = "M {:g}, H {:g}, E {:g}, k {:g}".format(*kind[:4]) + (f", f {kind[4]}" if kind[4] > 1 else "")
        axis.plot([s["tokens"] for s in mine], [s["seconds"] for s in mine], marker=MARKERS[index % len(MARKERS)],
                  markersize=4, label=text, color=COLOURS[index % len(COLOURS)])
    size_axis(axis, [sample["tokens"] for sample in samples])
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter(lambda seconds, _: time_text(seconds))
    axis.set_yticks([], minor=True)
    axis.set(xlabel="tokens", ylabel=f"time of a {name} pass")
    axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    figure.tight_layout()
    return figure


def grid_text(grid):
    order = ", EP first" if grid["order"] == "EpEsp" else ""
    return f"N_MP {grid['nMp']}, N_EP {grid['nEp']}, N_ESP {grid['nEsp']}{order}"


def plot_maps(pyplot, maps):
    """The fastest schedule in each cell, and how many times faster than the next one it is."""
    figure, axes = pyplot.subplots(1, len(maps), figsize=(7.4 * len(maps), 4.2), squeeze=False)
    for one, axis in zip(maps, axes[0]):
        seen = set()
        for y, row in enumerate(one["cells"]):
            for x, cell in enumerate(row):
                ranking = sorted((choice["seconds"], name) for name, choice in cell.items())
                seen.add(ranking[0][1])
                colour = SCHEDULE_COLOURS.get(ranking[0][1], OTHER_COLOUR)
                lead = ranking[1][0] / ranking[0][0] if len(ranking) > 1 else 1
                axis.add_patch(pyplot.Rectangle((x, y), 1, 1, facecolor=colour, edgecolor="white",
                                                hatch=None if cell[ranking[0][1]]["measured"] else "///"))
                axis.text(x + 0.5, y + 0.5, f"{lead:.2f}" if lead < 9.95 else f"{lead:.0f}",
                          ha="center", va="center", fontsize=8)
        xs, ys = one["x"]["values"], one["y"]["values"]
        axis.set(xlim=(0, len(xs)), ylim=(0, len(ys)), xlabel="tokens of an MP group",
                 ylabel={"embedding": "embedding size M", "kf": "k f"}[one["y"]["name"]])
        axis.set_xticks([x + 0.5 for x in range(len(xs))], [f"{x:g}" for x in xs])
        axis.set_yticks([y + 0.5 for y in range(len(ys))], [f"{y:g}" for y in ys])
        axis.tick_params(length=0)
        handles = [pyplot.Rectangle((0, 0), 1, 1, color=SCHEDULE_COLOURS.get(name, OTHER_COLOUR))
                   for name in sorted(seen)]
        axis.legend(handles, sorted(seen), ncol=4, fontsize=9, frameon=False, loc="lower right",
                    bbox_to_anchor=(1, 1), borderaxespad=0.1)
        layer = one["layer"]
        fixed = f"f {layer['capacityFactor']:g}" if one["y"]["name"] == "embedding" else f"M {layer['embedding']}"
        axis.set_title(f"E {layer['experts']}, k {layer['topK']}, {fixed}, H {layer['hiddenPerEmbedding']} M",
                       loc="left", fontsize=9)
    figure.suptitle(grid_text(maps[0]["grid"]), fontsize=12)
    figure.tight_layout()
    return figure


def table(rows, head, marked=()):
    """Marked: the numbers of rows that need a second look."""
    text = "<table><tr>" + "".join(f"<th>{cell}</th>" for cell in head) + "</tr>\n"
    for number, row in enumerate(rows):
        text += '<tr class="marked">' if number in marked else "<tr>"
        text += "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>\n"
    return text + "</table>\n"


def is_noisy(curve):
    return curve["fit"]["medianError"] > NOISY


def noisy_text(curves):
    """The curves whose lines say little."""
    noisy = [f"{curve['collective']} {curve['algorithm']} of {curve['where']}" for curve in curves if is_noisy(curve)]
    if not noisy:
        return ""
    return f"<p>Half of the samples of these curves are more than {100 * NOISY:g} % off their lines. The cluster was " \
        "busy, the budget short, or their times jump. Their &alpha; and &beta; say little:</p>\n<ul>\n" \
        + "".join(f"<li>{html.escape(name)}</li>\n" for name in noisy) + "</ul>\n"


def least_alpha(profile, where):
    """Half of what a pair takes: no call on links of that kind takes less."""
    crosses = re.search(r"[+@]|\b(?!1x)\d+x", where.split(" on ")[-1])
    times = [seconds for (pair, _), times in pairs_of(profile).items() for _, seconds in times
             if (pair == "2x1") == bool(crosses)]
    return min(times, default=0) / 2


def curve_table(groups, least):
    """Least: below that an alpha says nothing."""
    rows, marked = [], set()
    for collective, curves in groups.items():
        for curve in curves:
            fit = curve["fit"]
            if is_noisy(curve):
                marked.add(len(rows))
            beta = f"{fit['beta'] * 1e9:.4g} ns" if fit["beta"] > 0 else "-"
            alpha = time_text(fit["alpha"]) if fit["alpha"] > 0 and fit["alpha"] >= least else "-"
            rows.append((collective, curve["algorithm"], alpha, beta, rate_text(fit["beta"]),
                         f"{fit['r2']:.4f}", f"{100 * fit['medianError']:.1f} %", f"{100 * fit['worstError']:.0f} %",
                         str(len(curve["samples"]))))
    return table(rows, ("collective", "algorithm", "&alpha;", "&beta; per byte", "1 / &beta;", "R<sup>2</sup>",
                        "median error", "worst error", "samples"), marked)


def local_table(fit):
    rows = [(name, f"{seconds * 1e9:.4g} ns") for name, seconds in fit["seconds"].items()]
    rows += [("R2", f"{fit['r2']:.4f}"), ("median error", f"{100 * fit['medianError']:.1f} %"),
             ("worst error", f"{100 * fit['worstError']:.0f} %")]
    return table(rows, ("term", "each"))


def rate_text(beta):
    return f"{1e-9 / beta:.3g} GB/s" if beta > 0 else "-"


# Of ranks in a node and of two nodes.
PAIRS = {"1x2": "in a node", "2x1": "between nodes"}


def pairs_of(profile):
    """(where, alone?) -> [(bytes that a rank gets, seconds of the fastest algorithm)]"""
    pairs = {}
    for curve in profile["curves"]:
        where, alone = re.fullmatch("(.*?)(, alone)?", curve["where"]).groups()
        if curve["collective"] == "alltoall" and where in PAIRS:
            fastest_at = pairs.setdefault((where, bool(alone)), {})
            for sample in curve["samples"]:
                size = sample["bytes"] / 2
                fastest_at[size] = min(sample["seconds"], fastest_at.get(size, math.inf))
    return {key: sorted(times.items()) for key, times in sorted(pairs.items())}


def sharing(profile, where, alone):
    """How many pairs exchange at once through what they share: an uplink of the first node."""
    return min((profile["fingerprint"]["ranksPerNode"] * 2)[:2]) if where == "2x1" and not alone else 1


def plot_links(pyplot, profile):
    """Time and rate of an exchange of two ranks over its size."""
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2))
    for (where, alone), times in pairs_of(profile).items():
        at_once = sharing(profile, where, alone)
        style = {"color": COLOURS[list(PAIRS).index(where)], "linestyle": "-" if alone else "--",
                 "marker": "o" if alone else "s", "markersize": 4,
                 "label": f"{PAIRS[where]}, " + ("one pair alone" if alone else f"{at_once} pairs together" if at_once > 1
                                                 else "all pairs at once")}
        sizes = [size for size, _ in times]
        left.plot(sizes, [seconds for _, seconds in times], **style)
        right.plot(sizes, [at_once * size / seconds for size, seconds in times], **style)
    for axis, label, text in ((left, "time of an exchange", time_text), (right, "bytes that pass in a second", rate_axis_text)):
        size_axis(axis, [size for times in pairs_of(profile).values() for size, _ in times])
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter(lambda value, _, text=text: text(value))
        axis.set_yticks([], minor=True)
        axis.set(xlabel="bytes that a rank gets from the other", ylabel=label)
    left.legend(fontsize=8, frameon=False)
    figure.suptitle("What links carry", fontsize=12)
    figure.tight_layout()
    return figure


def rate_axis_text(rate):
    return f"{rate / 1e9:g} GB/s" if rate >= 1e9 else f"{rate / 1e6:g} MB/s"


def links_table(profile):
    """Of what pairs have measured."""
    pairs = pairs_of(profile)
    rows = []
    for where, link in PAIRS.items():
        alone, together = (pairs.get((where, each)) for each in (True, False))
        latency = min((seconds for times in (alone, together) if times for _, seconds in times), default=None)
        row = [link, "not measured" if latency is None else time_text(latency)]
        for times, each in ((alone, True), (together, False)):
            row.append(rate_text(times[-1][1] / times[-1][0] / sharing(profile, where, each)) if times else "not measured")
        rows.append(row)
    text = table(rows, ("ranks", "latency", "bandwidth of a pair alone", "of all through an uplink, or of each in a node"))
    links = profile.get("links")
    if not links:
        return text
    return text + f"<p>Plans that were not measured are priced by links. Such prices are {100 * links['medianError']:.0f} % " \
        f"off what was measured in the median, {100 * links['worstError']:.0f} % at the most.</p>\n"


def fastest(curves):
    """Of each size at which several algorithms were measured: (bytes, fastest curve, times faster than the next,
    whether by more than the middle halves of both are wide)."""
    at = {}
    for curve in curves:
        for sample in curve["samples"]:
            at.setdefault(sample["bytes"], []).append((sample["seconds"], sample["spread"], curve["algorithm"]))
    for size, measured in sorted(at.items()):
        if len(measured) > 1:
            (first, spread, name), (second, other, _) = sorted(measured)[:2]
            yield size, name, second / first, second - first > (first * spread + second * other) / 2


def contests(profile):
    """(text, [(bytes, fastest algorithm, lead, clear?)]) of each collective and group with several algorithms."""
    parts = [(collective, where, curves) for where, collectives in by_group(profile).items()
             for collective, curves in collectives.items() if not where.endswith(", alone")]
    for collective, where, curves in sorted(parts, key=lambda part: part[0] != "alltoall"):
        if sizes := list(fastest(curves)):
            yield f"{collective} of {where}", sizes


def plot_fastest(pyplot, profile, colours):
    """A bar for each collective and group, along the sizes, in the colours of the fastest algorithms."""
    rows = list(contests(profile))
    figure, axis = pyplot.subplots(figsize=(11, 1.6 + 0.3 * len(rows)))
    all_sizes = [size for _, sizes in rows for size, *_ in sizes]
    widest = math.log(max(all_sizes) / min(all_sizes)) or 1
    for height, (_, sizes) in enumerate(reversed(rows)):
        edges = [sizes[0][0], *(math.sqrt(a[0] * b[0]) for a, b in zip(sizes, sizes[1:])), sizes[-1][0]]
        if len(sizes) == 1:
            edges = [sizes[0][0] / 1.2, sizes[0][0] * 1.2]
        for (_, name, _, clear), low, high in zip(sizes, edges, edges[1:]):
            axis.barh(height, high - low, left=low, height=0.8, color=colours[name.split(":")[0]],
                      hatch=None if clear else "///", edgecolor="white", linewidth=0.5)
            if math.log(high / low) > 0.012 * widest * len(name):
                axis.text(math.sqrt(low * high), height, name, ha="center", va="center", fontsize=7,
                          bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.8})
    size_axis(axis, all_sizes)
    axis.set_yticks(range(len(rows)), [text for text, _ in reversed(rows)], fontsize=8)
    axis.set(xlabel="bytes of a rank's send buffer", ylim=(-0.6, len(rows) - 0.4))
    names = sorted({name.split(":")[0] for _, sizes in rows for _, name, *_ in sizes})
    axis.legend([pyplot.Rectangle((0, 0), 1, 1, color=colours[name]) for name in names], names, fontsize=8, frameon=False,
                ncol=6, loc="lower left", bbox_to_anchor=(0, 1))
    figure.tight_layout()
    return figure


def fastest_table(profile):
    rows = []
    for text, measured in contests(profile):
        runs = []  # of neighbouring sizes with the same fastest algorithm
        for size, name, lead, clear in measured:
            if not runs or runs[-1][0] != name:
                runs.append((name, []))
            runs[-1][1].append((size, lead, clear))
        for name, sizes in runs:
            leads = sorted(lead for _, lead, _ in sizes)
            rows.append((text, name, f"{rounded_text(sizes[0][0])} to {rounded_text(sizes[-1][0])}",
                         f"{leads[len(leads) // 2]:.2f}", f"{sum(clear for _, _, clear in sizes)} of {len(sizes)}"))
    return table(rows, ("collective", "the fastest", "bytes of a rank", "times faster than the next",
                        "sizes where that is clear"))


def schedules_table(maps):
    """The share of the map's layers in which each schedule is the fastest."""
    rows, cells = [], {}
    for one in maps:
        cells.setdefault(grid_text(one["grid"]), []).extend(cell for row in one["cells"] for cell in row)
    for grid, mine in cells.items():
        won = {}
        for cell in mine:
            ranking = sorted((choice["seconds"], name) for name, choice in cell.items())
            lead = ranking[1][0] / ranking[0][0] if len(ranking) > 1 else 1
            won.setdefault(ranking[0][1], []).append((lead, cell[ranking[0][1]]["measured"]))
        for name, leads in sorted(won.items(), key=lambda each: -len(each[1])):
            rows.append((grid, name, f"{len(leads)} of {len(mine)}",
                         f"{sorted(lead for lead, _ in leads)[len(leads) // 2]:.2f}",
                         f"{sum(measured for _, measured in leads)} of {len(leads)}"))
    return table(rows, ("grid", "schedule", "fastest in", "times faster than the next",
                        "all exchanges of it measured"))


def folded(summary, text):
    return f"<details><summary>{html.escape(summary)}</summary>\n{text}</details>\n" if text else ""


def sections(pyplot, profile, maps):
    """Heading, pictures by name, HTML below them: the answers first."""
    colours = colours_of(profile["curves"])
    if pairs_of(profile):
        yield "Links", {"links": plot_links(pyplot, profile)}, folded("What links cost", links_table(profile))
    if any(contests(profile)):
        yield "The fastest algorithms", {"fastest": plot_fastest(pyplot, profile, colours)}, \
            "<p>Hatched: the lead is less than the middle halves of the repetitions of both are wide.</p>\n" \
            + folded("How much faster", fastest_table(profile))
    grids = {}
    for one in maps:
        grids.setdefault(grid_text(one["grid"]), []).append(one)
    if grids:
        yield "The fastest schedules", {f"map-{grid}": plot_maps(pyplot, mine) for grid, mine in grids.items()}, \
            "<p>Of a forward and a backward pass, predicted; the number is how many times faster than the next " \
            "one. Hatched: priced from links in part.</p>\n" + folded("How often", schedules_table(maps))
    for where, collectives in by_group(profile).items():
        parts = list(collectives.items())
        pictures = {f"group-{where}-{first // COLLECTIVES_PER_PICTURE}":
                    plot_curves(pyplot, where, parts[first:first + COLLECTIVES_PER_PICTURE], colours)
                    for first in range(0, len(parts), COLLECTIVES_PER_PICTURE)}
        yield f"Ranks {where}", pictures, folded("Lines", curve_table(collectives, least_alpha(profile, where)))
    for name, local in profile.get("local", {}).items():
        yield f"Local work, {name}", {f"local-{name}": plot_local(pyplot, name, local["samples"])}, \
            folded("Terms", local_table(local["fit"]))


STYLE = """body { font-family: sans-serif; margin: 2em auto; max-width: 1500px; padding: 0 1em }
img { max-width: 100% } details { margin: 0.5em 0 1.5em } summary { cursor: pointer } table { border-collapse: collapse; font-size: 85% }
td, th { padding: 0.15em 0.8em; text-align: right; border-bottom: 1px solid #ddd }
.marked, .doubt { background: #ffe9c7 } .doubt { padding: 0.3em 1em }
td:nth-child(-n+2), th:nth-child(-n+2) { text-align: left }"""


def about(profile):
    """The cluster, and when, how and in what time it was measured."""
    cluster = profile["fingerprint"]
    lines = [f"{cluster['processor']}, {cluster['processorsPerNode']} processors per node; {cluster['transport']}; "
             f"moeccl {cluster['library']}"]
    if profile.get("date"):
        seconds = round(profile.get("duration", 0))
        lines.append(f"Measured on {profile['date']}" + (f" in {seconds // 60}:{seconds % 60:02} min" if seconds else ""))
    text = "".join(f"<p>{html.escape(line)}</p>\n" for line in lines)
    if profile.get("command"):
        text += f"<pre>{html.escape(profile['command'])}</pre>\n"
    if profile.get("doubts"):
        first, *others = [f"<p>{html.escape(doubt)}</p>\n" for doubt in profile["doubts"]]
        text += f'<div class="doubt"><p>It may be wrong, as it was written by <code>--force</code>:</p>\n{first}' \
            + folded(f"and {len(others)} more", "".join(others)) + "</div>\n"
    return text


def page(profile, parts):
    nodes = "+".join(map(str, profile["fingerprint"]["ranksPerNode"]))
    contents = body = ""
    for number, (heading, pictures, text) in enumerate(parts):
        contents += f'<li><a href="#{number}">{html.escape(heading)}</a></li>\n'
        body += f'<h2 id="{number}">{html.escape(heading)}</h2>\n'
        for figure in pictures.values():
            body += f'<p><img src="data:image/png;base64,{base64.b64encode(finished(figure)).decode()}"></p>\n'
        body += text
    return f"<!DOCTYPE html>\n<html><head><meta charset=\"utf-8\"><title>moeccl profile</title>\n<style>{STYLE}</style>" \
        f"</head><body>\n<h1>moeccl profile: {nodes} ranks</h1>\n{about(profile)}<ul>\n{contents}</ul>\n{body}" \
        + folded("Curves that say little", noisy_text(profile["curves"])) + "</body></html>\n"


def finished(figure):
    picture = drawing.png(figure)
    drawing.pyplot().close(figure)
    return picture


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--output", help="the page's file")
    what.add_argument("--png", metavar="FOLDER", help="where to put pictures instead")
    parser.add_argument("--map", help="JSON of moeccl-fit --map")
    parser.add_argument("json", help="the profile")
    options = parser.parse_args()
    profile = load_json(options.json, "moeccl-profile", 2)
    maps = load_json(options.map, "moeccl-map", 1)["maps"] if options.map else []

    pyplot = drawing.pyplot()
    parts = sections(pyplot, profile, maps)
    if options.output:
        with drawing.output(options.output) as file:
            file.write(page(profile, parts).encode())
        return
    try:
        os.makedirs(options.png, exist_ok=True)
    except OSError as error:
        sys.exit(f"{sys.argv[0]}: cannot make {options.png}: {error.strerror}")
    for _, pictures, _ in parts:
        for name, figure in pictures.items():
            path = os.path.join(options.png, re.sub("[^A-Za-z0-9]+", "-", name) + ".png")
            with drawing.output(path) as file:
                file.write(finished(figure))
            print(path)


if __name__ == "__main__":
    main()
