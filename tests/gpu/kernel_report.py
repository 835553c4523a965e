#!/usr/bin/env python3
"""Prints what each CUDA kernel takes of a GPU with compute capability 9.0. Fails where one spills registers.

    kernel_report.py NVCC BENCH_EMULATED MOE_GPU_TEST SOURCE... [-- ARGUMENT...]

Registers, static shared memory and spills are ptxas's, of each source compiled with these arguments of nvcc. Listed are
the kernels that BENCH_EMULATED launches, which is bench_gpu with kernels emulated. Threads, and shared memory with 8, 64
and 256 experts, are those of its launches. "active" is how many of the 64 warps of a multiprocessor can be there at once.
"busy" is how many of a block's warps have voted or shuffled for 24 tokens, where not all have. MOE_GPU_TEST counts launches
on doubles of GPUs.
"""
import os
import re
import subprocess
import sys
import tempfile

from resources import compiled, demangled

EXPERTS = (8, 64, 256)
WHAT = ("layouts", "gate", "experts", "lists", "rows", "latency")
WARP = 32
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


def line_of(kernel, shapes):
    name, registers, static, spilled = kernel
    line = f"{registers:9}{spilled:8}"
    threads = max((shape[name][0] for shape in shapes if name in shape), default=None)
    line += f"{threads or '-':>8} "
    for shape in shapes:
        if name not in shape:
            line += f"{'-':>20}"
            continue
        of_block, shared, busy = shape[name]
        shared += static
        partly = f"{busy}/{of_block // WARP}" if 0 < busy < of_block // WARP else ""
        line += f"{shared:8}{active_warps(of_block, registers, shared):7}{partly:>5}"
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
            name = without_parameters(name)
            if spilled or any(name in shape for shape in shapes):
                print(line_of((name, registers, static, spilled), shapes), flush=True)
    print(f"{kernels} kernels, {spills} spill", flush=True)
    done = subprocess.run([counts, "--gtest_filter=LaunchesOnGpus.*"], check=True, capture_output=True, text=True)
    print(*(line for line in done.stdout.splitlines() if line.endswith("launches")), sep="\n")
    sys.exit(1 if spills else 0)


if __name__ == "__main__":
    main()
