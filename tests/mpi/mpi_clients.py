#!/usr/bin/env python3
"""Runs MPI programs of others as they are, alone and under moeccl-mpi, and compares what they print.

    mpi_clients.py MOECCL_MPI [CLIENT...] [--ranks N] [--list]

Under moeccl-mpi all that can be served is (MOECCL_MPI_TRIALS=0). Numbers that are times or rates are left out of the
comparison. Clients that are not installed are skipped; packages: see tests/packages.sh. Exit code: 0, 1 if a
client printed something else or served nothing, 77 if all were skipped.
"""
import argparse
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

SCALAPACK = "/usr/lib/{}-linux-gnu/scalapack/{}-tests"
LAUNCHERS = {
    "openmpi": ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1",
                "--mca", "pml", "ob1", "--mca", "btl", "self,vader"],
    "mpich": ["mpiexec.mpich"],
    "intel": None,  # found with its files
}

HPCC_LINES = re.compile(r"Success|ErrorsFraction|maxErr|residual|PASSED|FAILED|Error")
HPCC_INPUT = """HPLinpack benchmark input file
hpcc
HPL.out
8
1
200
1
32
0
1
2
2
16.0
1
2
1
4
1
2
1
1
1
0
1
0
2
64
0
0
1
8
0
0
0
0
0
1
32
"""

FFT = """
import hashlib, numpy
from mpi4py import MPI
from mpi4py_fft import PFFT, newDistArray
digest = hashlib.sha256()
for shape, dtype in (((30, 21, 16), 'd'), ((17, 32, 9), 'D')):
    for slab in (False, True):
        fft = PFFT(MPI.COMM_WORLD, shape, dtype=dtype, slab=slab)
        u = newDistArray(fft, False)
        numpy.random.seed(MPI.COMM_WORLD.Get_rank() + 5)
        u[:] = numpy.random.random(u.shape).astype(u.dtype)
        v = fft.forward(u)
        w = fft.backward(v, numpy.zeros_like(u))
        assert numpy.allclose(u, w)
        digest.update(numpy.ascontiguousarray(v).tobytes())
for line in MPI.COMM_WORLD.gather(digest.hexdigest()) or []:
    print(line)
"""

FFTW = r"""
#include <fftw3-mpi.h>
#include <stdio.h>
/* Transposes matrices whose sides do not divide evenly, by the exchange that was the fastest, and prints a sum over
 * each result. */
int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  fftw_mpi_init();
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const ptrdiff_t shapes[][2] = {{64, 48}, {37, 29}, {128, 5}, {9, 100}};
  for (int s = 0; s < 4; ++s) {
    const ptrdiff_t n0 = shapes[s][0], n1 = shapes[s][1];
    ptrdiff_t rows, first, columns, firstColumn;
    const ptrdiff_t size =
        fftw_mpi_local_size_2d_transposed(n0, n1, MPI_COMM_WORLD, &rows, &first, &columns, &firstColumn);
    double* data = fftw_alloc_real(2 * (size_t)size);
    fftw_plan plan = fftw_mpi_plan_transpose(n0, n1, data, data, MPI_COMM_WORLD, FFTW_MEASURE);
    for (int round = 0; round < 20; ++round) {
      for (ptrdiff_t i = 0; i < rows * n1; ++i) data[i] = (double)((first * n1 + i) * 31 % 1009 + round);
      fftw_execute(plan);
      double sum = 0, all = 0;
      for (ptrdiff_t i = 0; i < columns * n0; ++i) sum += data[i] * (double)(firstColumn * n0 + i);
      PMPI_Reduce(&sum, &all, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
      if (rank == 0 && round == 19) printf("%td x %td: %d\n", n0, n1, (int)((long long)all % 1000003));
    }
    fftw_destroy_plan(plan);
    fftw_free(data);
  }
  MPI_Finalize();
  return 0;
}
"""


def without_times(text):
    """Lines without numbers that have a fraction or an exponent, and without what names a moment."""
    kept = []
    for line in text.splitlines():
        if re.search(r"\d\d:\d\d:\d\d|\d{4}[-/]\d\d|[Tt]ime|seconds|host", line):
            continue
        kept.append(" ".join(word for word in line.split() if not re.fullmatch(r"[-+*]?\d*\.\d*([eEdD][-+]?\d+)?\S?", word)))
    return "\n".join(line for line in kept if line)


class Client:
    """A program: how it is run in a folder of its own, and what of its output counts."""

    def __init__(self, name, mpi, command, result=without_times, prepare=None, environment=None, serves=True):
        self.name, self.mpi, self.command, self.result = name, mpi, command, result
        self.prepare, self.environment, self.serves = prepare, environment or {}, serves

    def run(self, shim, ranks, folder):
        environment = dict(os.environ, MOECCL_MPI_TRIALS="0", OPENBLAS_NUM_THREADS="1", **self.environment)
        launcher = LAUNCHERS[self.mpi] if self.mpi != "intel" else [self.environment["I_MPI_ROOT"] + "/bin/mpiexec"]
        if self.mpi == "mpich":  # its ranks poll without a pause
            ranks = min(ranks, max(2, os.cpu_count()))
        command = [*launcher, "-n", str(ranks), *([shim] if shim else []), *self.command]
        done = subprocess.run(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=600, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-3000:]}")
        served = sum(int(count) for count in re.findall(r"moeccl-mpi: \w+: (\d+) of", done.stderr))
        return self.result(done.stdout if self.result is not hpcc_result else folder), served


def hpcc_result(folder):
    with open(os.path.join(folder, "hpccoutf.txt"), encoding="utf-8") as file:
        return without_times("".join(line for line in file if HPCC_LINES.search(line)))


def write(name, text):
    def prepare(folder):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)
    return prepare


def compile_fftw(folder):
    write("client.c", FFTW)(folder)
    subprocess.run(["mpicc.openmpi", "-O1", "client.c", "-o", "client", "-lfftw3_mpi", "-lfftw3", "-lm"], cwd=folder, check=True)


def copy_data(folder):
    for path in glob.glob("/usr/share/scalapack/*.dat"):
        shutil.copy(path, folder)


def imb_rows(text):
    """Names, sizes and repetitions."""
    return "\n".join(" ".join(line.split()[:2]) for line in text.splitlines()
                     if re.match(r"\s+\d+\s+\d+|# Benchmarking|# #processes", line))


def clients(impi):
    machine = os.uname().machine
    for mpi in ("openmpi", "mpich"):
        folder = SCALAPACK.format(machine, mpi)
        for program in ("xdlu", "xdsvd", "xcnep") if mpi == "openmpi" else ("xdlu",):
            path = os.path.join(folder, program)
            if shutil.which(LAUNCHERS[mpi][0]) and os.path.exists(path):
                yield Client(f"scalapack-{program[1:]}-{mpi}", mpi, [path], prepare=copy_data, serves=False)
    if shutil.which("hpcc"):
        yield Client("hpcc", "openmpi", ["hpcc"], hpcc_result, write("hpccinf.txt", HPCC_INPUT))
    if subprocess.run(["/usr/bin/python3", "-c", "import mpi4py_fft"], capture_output=True, check=False).returncode == 0:
        yield Client("mpi4py-fft", "openmpi", ["/usr/bin/python3", "fft.py"], str, write("fft.py", FFT),
                     serves=False)  # it exchanges by MPI_Alltoallw
    if os.path.exists("/usr/include/fftw3-mpi.h") and shutil.which("mpicc.openmpi"):
        yield Client("fftw", "openmpi", ["./client"], str, compile_fftw)
    if impi and os.path.exists(os.path.join(impi, "bin/IMB-MPI1")):
        yield Client("imb", "intel", [os.path.join(impi, "bin/IMB-MPI1"), "-iter", "20", "-time", "10", "-msglog", "16", "-npmin", "64",
                                      "Alltoall", "Alltoallv", "Allgather", "Allgatherv", "Allreduce", "Reduce_scatter"],
                     imb_rows, environment={"I_MPI_ROOT": impi, "I_MPI_FABRICS": "shm", "I_MPI_THREAD_YIELD": "2",
                                            "MOECCL_MPI_FLOAT_SUMS": "1",
                                            "LD_LIBRARY_PATH": os.path.join(impi, "lib")})


def check(client, shim, ranks):
    """What is wrong, or "", and how many calls moeccl served."""
    results = []
    served = 0
    for with_shim in (None, shim):
        with tempfile.TemporaryDirectory() as folder:
            if client.prepare:
                client.prepare(folder)
            result, served = client.run(with_shim, ranks, folder)
            results.append(result)
    if not results[0].strip():
        return "it printed nothing to compare", served
    if results[0] != results[1]:
        lines = [pair for pair in zip(results[0].splitlines(), results[1].splitlines()) if pair[0] != pair[1]]
        return f"alone and under moeccl-mpi it printed different results, first: {lines[:1]}", served
    if client.serves and served == 0:
        return "moeccl served nothing", served
    return "", served


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("moeccl_mpi")
    parser.add_argument("clients", nargs="*")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--impi", help="folder of Intel MPI", default=os.environ.get("I_MPI_ROOT"))
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    options.moeccl_mpi = os.path.abspath(options.moeccl_mpi)
    known = list(clients(options.impi))
    if options.list:
        print("\n".join(client.name for client in known))
        return 0
    unknown = set(options.clients) - {client.name for client in known}
    if unknown:
        print(f"not installed, or no client: {', '.join(sorted(unknown))}")
        return 77
    chosen = [client for client in known if not options.clients or client.name in options.clients]
    failed = 0
    for client in chosen:
        try:
            problem, served = check(client, options.moeccl_mpi, options.ranks)
        except (RuntimeError, subprocess.SubprocessError) as error:
            problem, served = str(error), 0
        failed += bool(problem)
        print(f"{client.name}: {problem or 'the same results'} ({served} calls served)", flush=True)
    return 77 if not chosen else int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
