#!/usr/bin/env python3
"""Prints what each CUDA kernel takes of a GPU with compute capability 9.0. Fails where one spills registers.

    kernel_report.py NVCC BENCH_EMULATED MOE_GPU_TEST SOURCE... [-- ARGUMENT...]

Registers, static shared memory and spills are ptxas's, of each source compiled with these arguments of nvcc. Threads, and
shared memory with 8, 64 and 256 experts, are those of launches by BENCH_EMULATED, which is bench_gpu with kernels emulated.
For kernels that it does not launch they are, after "~", those of the same template for other types, and failing that of a
block of 256 threads. "active" is how many of the 64 warps of a multiprocessor can be there at once. "busy" is how many of a
block's warps have voted or shuffled for 24 tokens, where not all have. MOE_GPU_TEST counts launches on doubles of GPUs.
"""
import os
import re
import subprocess
import sys
import tempfile

from resources import compiled, demangled

EXPERTS = (8, 64, 256)
WHAT = ("layouts", "gate", "rules", "experts", "lists", "rows", "latency")
WARP = 32
UNKNOWN_THREADS = 256
# Of a multiprocessor: warps, blocks, registers, and shared memory, of which each block takes some beside its own.
WARPS, BLOCKS, REGISTERS, SHARED, SHARED_OF_BLOCK = 64, 32, 65536, 228 << 10, 1 << 10


def without_parameters(name):
    """A function's name with its template's arguments."""
    depth = 0
    for at, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0:
            return name[:at]
    return name


def names_by_address(program):
    text = subprocess.run(["nm", program], check=True, capture_output=True, text=True).stdout
    found = [line.split() for line in text.splitlines() if re.match(r"[0-9a-f]+ [tTwWu] ", line)]
    return dict(zip((int(line[0], 16) for line in found), map(without_parameters, demangled(line[2] for line in found))))


def launches(program, experts):
    """(threads, shared bytes, busy warps), the most of each kernel."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "launches")
        subprocess.run([program, "--quick", "--experts", str(experts), *WHAT], check=True, stdout=subprocess.DEVNULL,
                       env={**os.environ, "EMULATED_LAUNCHES": path})
        with open(path, encoding="utf-8") as file:
            lines = [line.split() for line in file]
    names, found = names_by_address(program), {}
    for file, address, *numbers in lines:
        if os.path.basename(file) != os.path.basename(program):
            continue  # cuBLAS's
        name = names[int(address, 16)]
        found[name] = tuple(map(max, found.get(name, (0, 0, 0)), map(int, numbers)))
    return found


def active_warps(threads, registers, shared):
    warps = -(-threads // WARP)
    # Registers go to warps in pieces of 256.
    of_warp = -(-registers * WARP // 256) * 256
    blocks = min(WARPS // warps, BLOCKS, REGISTERS // of_warp // warps, SHARED // (shared + SHARED_OF_BLOCK))
    return blocks * warps


def template_of(name):
    """What all that are made of one template have in common."""
    return name.split("<", 1)[0]


def shape_of(name, launched):
    """(threads, shared bytes, busy warps), and whether the kernel itself was launched so."""
    if name in launched:
        return launched[name], True
    kin = [shape for other, shape in launched.items() if template_of(other) == template_of(name)]
    return (*map(max, zip(*kin)),) if kin else (UNKNOWN_THREADS, 0, 0), False


def line_of(kernel, launches_of_all):
    name, registers, static, spilled = kernel
    shapes = [shape_of(name, launched) for launched in launches_of_all]
    own = any(itself for _, itself in shapes)
    line = f"{registers:9}{spilled:8}{'' if own else '~':>2}{max(shape[0] for shape, _ in shapes):6} "
    for (threads, shared, busy), itself in shapes:
        if own and not itself:
            line += f"{'-':>20}"  # with other numbers of experts it is
            continue
        shared += static
        partly = f"{busy}/{threads // WARP}" if itself and 0 < busy < threads // WARP else ""
        line += f"{shared:8}{active_warps(threads, registers, shared):7}{partly:>5}"
    return f"{line}  {name}"


def main():
    program, emulated, counts, *sources = sys.argv[1:]
    at = sources.index("--") if "--" in sources else len(sources)
    sources, arguments = sources[:at], [*sources[at + 1:], "-gencode=arch=compute_90,code=sm_90"]
    shapes = [launches(emulated, experts) for experts in EXPERTS]
    print(f"{'':26}" + "".join(f"{f'E = {experts}':>20}" for experts in EXPERTS))
    print(f"{'registers':>9}{'spilled':>8}{'threads':>8} " + 3 * f"{'shared':>8}{'active':>7}{'busy':>5}")
    spills = kernels = 0
    for source in sources:
        print(source)
        # As in kernels/meson.build.
        own = ["-fmad=false"] if source.endswith("gates/gate_cuda.cu") else []
        for name, _, registers, static, _, spilled in compiled(program, source, arguments + own):
            spills, kernels = spills + (spilled > 0), kernels + 1
            print(line_of((without_parameters(name), registers, static, spilled), shapes), flush=True)
    print(f"{kernels} kernels, {spills} spill", flush=True)
    done = subprocess.run([counts, "--gtest_filter=LaunchesOnGpus.*"], check=True, capture_output=True, text=True)
    print(*(line for line in done.stdout.splitlines() if line.endswith("launches")), sep="\n")
    sys.exit(1 if spills else 0)


if __name__ == "__main__":
    main()
