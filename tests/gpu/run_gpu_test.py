#!/usr/bin/env python3
"""Tests what tests/run_gpu.sh does without a GPU: a compiler and programs that only pretend stand in for nvcc's.

    run_gpu_test.py ROOT
"""
import contextlib
import io
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import types
import unittest

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
sys.path.insert(0, str(ROOT / "tests/gpu"))

import bars  # noqa: E402
import kernel_bench  # noqa: E402
import kernel_report  # noqa: E402
import report  # noqa: E402

# Objects are empty; a program does what the file of its name in $FAKE says.
NVCC = """#!/bin/bash
target=
for ((i = 1; i <= $#; ++i)); do
  [[ ${!i} == -o ]] && { next=$((i + 1)); target=${!next}; }
  [[ ${!i} == -E ]] && exit 1
  [[ ${!i} == -c ]] && object=1
done
if [[ $object ]]; then : >"$target"; else
  printf '#!/bin/bash\\nsource %q "$@"\\n' "$FAKE/${target##*/}" >"$target"
  chmod +x "$target"
fi
"""


SIZES = {"type": "bfloat16", "tokens": 8192, "embedding": 7168, "experts": 64, "choices": 8}
PACK = {"kernel": "permute", **SIZES, "us": 400.0, "bytes": 1.06e9, "flops": 0.0, "copy_us": 360.0}
LAYER = {"layer": "S1", **SIZES, "hidden": 2048, "by": "moeccl", "flops": 3.8e12, "bytes": 3.7e9, "forward_ms": 7.5}

STEP = {"step": "dispatch", "us": 20.0}


def note(row):
    """A program's line that measures."""
    return f"[[ ! $MEASUREMENTS ]] || echo '{json.dumps(row)}' >>$MEASUREMENTS\n"


class Pages(unittest.TestCase):
    def test_the_floor_of_both_passes_has_three_times_the_products_of_one(self):
        """Backward each matrix takes two: gradients of the rows, and of its own elements."""
        rows = [{"ceiling": "copy", "rate": 3e12}, {"ceiling": "matrix product", "rate": 7.6e14}, LAYER | {"both_ms": 22.0}]
        page = bars.page({"date": "", "machine": {"gpu": ""}, "versions": {"cuda": "", "nccl": "", "torch": ""},
                          "parts": [{"numbers": rows}]})
        self.assertRegex(page, r"f +S1 forward, 8192 tokens, E=64 +7500\.0 +5000\.0 +1\.50 ")
        self.assertRegex(page, r"f +S1 both passes, 8192 tokens, E=64 +22000\.0 +15000\.0 +1\.47 ")

    def test_a_bar_is_not_silent_where_what_it_is_held_against_is_missing(self):
        page = bars.page({"date": "", "machine": {"gpu": ""}, "versions": {"cuda": "", "nccl": "", "torch": ""},
                          "parts": [{"numbers": [LAYER, PACK | {"kernel": "expert product"}]}]})
        self.assertRegex(page, "e +expert product, 8192 tokens, E=64 .* >= 1 +nothing beside it\n")
        self.assertRegex(page, "f +S1 forward, 8192 tokens, E=64 .* >= 1 +nothing beside it\n")
        self.assertRegex(page, "\nbars: 0 kept, 0 missed, [0-9]+ not measured\n")

    def test_resources_of_all_kernels_are_listed_launched_or_not(self):
        launched = [{"choose<bfloat16>": (256, 1024 * experts, 4)} for experts in (8, 16)] + [{}]
        row = kernel_report.line_of(("choose<bfloat16>", 64, 0, 0), launched).split()
        # 64 registers are for 32 warps, 8 KiB of shared memory for 25 blocks, 16 KiB for 13.
        self.assertEqual(row, ["64", "0", "256", "8192", "32", "4/8", "16384", "32", "4/8", "-", "choose<bfloat16>"])
        row = kernel_report.line_of(("choose<float>", 255, 0, 16), launched).split()
        self.assertEqual(row, ["255", "16", "~", "256", "8192", "8", "16384", "8", "0", "8", "choose<float>"])
        row = kernel_report.line_of(("another", 16, 512, 0), launched).split()
        self.assertEqual(row, ["16", "0", "~", "256", *3 * ["512", "64"], "another"])


# Torch that can be imported, and nothing more; {} is what it says first.
TORCH = """
{}
__version__, bfloat16 = "2.9.0", None
class cuda:
    is_available, get_device_name = lambda: True, lambda: "none at all"
    def empty_cache(): raise RuntimeError("an error of CUDA that stays")
def rand(*sizes, **options): raise RuntimeError("no kernel image")
randn = rand
"""


class Unusable(unittest.TestCase):
    """PyTorch, which costs its own times and no others."""

    def test_our_figures_are_measured_all_the_same(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            program, rows = folder / "program", folder / "rows"
            (folder / "torch").mkdir()
            environment = {**os.environ, "PYTHONPATH": name, "MEASUREMENTS": str(rows)}
            for first in ("raise OSError('libcudart.so: no such file')", ""):
                (folder / "torch/__init__.py").write_text(TORCH.format(first))
                for script, row, count in (("kernel_bench.py", PACK, 3), ("layer_bench.py", LAYER, 1)):
                    with self.subTest(first=first, script=script):
                        rows.write_text("")
                        program.write_text("#!/bin/bash\n" + note(row))
                        program.chmod(0o755)
                        done = subprocess.run([sys.executable, ROOT / "tests/gpu" / script, program,
                                               *(["layouts", "gate"] if script == "kernel_bench.py" else [])],
                                              env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                        self.assertEqual(done.returncode, 0, done.stdout)
                        self.assertEqual([json.loads(line) for line in rows.read_text().splitlines()], count * [row])
                        self.assertIn("libcudart" if first else "no kernel image" if row == PACK else "that stays", done.stdout)
                        self.assertTrue(done.stdout.endswith(f"\n{count} passed, 0 failed, {count} skipped\n"), done.stdout)

    def test_an_error_that_stays_ends_no_comparison_but_its_own(self):
        torch = {}
        exec(TORCH.format(""), torch)
        with contextlib.redirect_stdout(io.StringIO()) as said:
            self.assertFalse(kernel_bench.compare(types.SimpleNamespace(**torch), PACK))
        self.assertIn("that stays", said.getvalue())


class Restored(unittest.TestCase):
    PART = {"name": "part", "fingerprint": "1", "status": "passed", "seconds": 3, "passed": 1, "failed": 0, "skipped": 0,
            "numbers": [PACK], "output": []}

    def restore(self, state, **fields):
        """What becomes of a part's state, and its figures."""
        part = {name: value for name, value in (self.PART | fields).items() if value is not None}
        with tempfile.TemporaryDirectory() as folder:
            parts = pathlib.Path(folder) / "parts"
            parts.mkdir()
            (parts / "names").write_text("part\n")
            if state:
                (parts / "0").write_text(state)
            results = pathlib.Path(folder) / "results.json"
            results.write_text(json.dumps({"parts": [part]}))
            try:
                report.restore(pathlib.Path(folder), results)
            except KeyError:
                pass
            return (parts / "0").read_text() if (parts / "0").exists() else "", (parts / "0.jsonl").exists()

    def test_what_has_passed_since_stays_where_the_same_file_is_handed_back_again(self):
        passed = "part\n1\npassed\n9\n5\n0\n0\n"
        self.assertEqual(self.restore(passed, status="unfinished"), (passed, False))
        self.assertEqual(self.restore(passed, fingerprint="2"), ("part\n2\npassed\n3\n1\n0\n0\n", True))
        self.assertEqual(self.restore("part\n1\nfailed\n9\n0\n1\n0\n"), ("part\n1\npassed\n3\n1\n0\n0\n", True))

    def test_no_part_has_passed_without_its_figures(self):
        self.assertEqual(self.restore("", numbers=None), ("", False))

    def test_parts_go_by_name_and_bring_their_own_figures_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            build = pathlib.Path(folder)
            (build / "parts").mkdir()
            (build / "parts/names").write_text("new\ntwice\npart\ntwice\n")
            for number in range(4):
                (build / f"parts/{number}.jsonl.new").write_text(2 * (json.dumps(STEP) + "\n"))
            names = ("part", "twice", "gone", "twice")
            (build / "results.json").write_text(json.dumps({"parts": [
                self.PART | {"name": name, "seconds": place} for place, name in enumerate(names)]}))
            report.restore(build, build / "results.json")
            parts = list(report.parts(build))
            self.assertEqual([(part["name"], part["status"], part["seconds"]) for part in parts],
                             [("new", "unfinished", 0), ("twice", "passed", 1), ("part", "passed", 0), ("twice", "passed", 3)])
            self.assertEqual([part["numbers"] for part in parts], [[], [PACK], [PACK], [PACK]])
            self.assertEqual([path.name for path in sorted((build / "parts").glob("*.new"))], ["0.jsonl.new"])

    def test_any_gpu_of_a_machine_without_nvidia_smi_is_a_gpu(self):
        sums = subprocess.run(["bash", "-uc", """root=/root sources_sum=1 arch=native library_versions=
            source tests/gpu/parts.sh
            for gpu in /dev/nvidia0 /dev/nvidia3 'GPU 0: one (UUID: 1)' 'GPU 0: one (UUID: 2)'; do fingerprint command; done"""],
                              cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
        self.assertEqual([sums[0], sums[2]], [sums[1], sums[3]])
        self.assertNotEqual(sums[0], sums[2])


class RunGpu(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.fake = pathlib.Path(cls.folder.name) / "fake"
        cls.build = cls.fake / "build"
        cls.built = pathlib.Path(cls.folder.name) / "built"

    def setUp(self):
        shutil.rmtree(self.fake, ignore_errors=True)
        for name in ("cuda_runtime.h", "cublas_v2.h", "nccl.h"):
            self.write(f"include/{name}", "")
        self.write("bin/nvcc", NVCC).chmod(0o755)
        self.write("bin/nvidia-smi", "#!/bin/sh\necho 'GPU 0: none at all'\n").chmod(0o755)
        self.write("bin/strip", "#!/bin/sh\n").chmod(0o755)
        self.write("kernels_gpu", "echo 3 passed, 0 failed, 1 skipped\n")
        self.write("bench_gpu", "echo 17 GB/s\n" + note(PACK))
        self.write("ranks_gpu", "echo 5 passed, 0 failed, 0 skipped\nif [[ $* == *layer* ]]; then\n" + note(LAYER) +
                   "elif [[ $* == *--bench* ]]; then\n" + note(STEP) + "fi\n")

    def use_built(self):
        """What every build makes alike, once."""
        if not self.built.exists():
            self.assertEqual(self.run_gpu("--build-only")[0], 0)
            shutil.copytree(self.build, self.built)
        shutil.copytree(self.built, self.build, dirs_exist_ok=True)

    def write(self, name, text):
        path = self.fake / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def run_gpu(self, *options, **variables):
        environment = {**os.environ, "FAKE": str(self.fake), "PATH": f"{self.fake}/bin:{os.environ['PATH']}",
                       **variables}
        done = subprocess.run(["bash", str(ROOT / "tests/run_gpu.sh"), "--build", str(self.build), *options],
                              env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return done.returncode, done.stdout

    def results(self):
        return json.loads((self.build / "results.json").read_text())

    def parts(self):
        return {part["name"]: part for part in self.results()["parts"]}

    def test_preflight_names_what_is_missing_and_where_it_looked(self):
        (self.fake / "include/nccl.h").unlink()
        (self.fake / "include/cublas_v2.h").unlink()
        wheel = self.write("packages/nvidia/nccl/include/nccl.h", "").parent.parent
        code, text = self.run_gpu("--preflight", PYTHONPATH=str(self.fake / "packages"))
        self.assertEqual(code, 0, text)
        self.assertIn(f"here     compiler: {self.fake.resolve()}/bin/nvcc\n", text)
        self.assertIn(f"here     NCCL: {wheel}/include/nccl.h\n", text)
        self.assertIn("here     GPU: GPU 0: none at all\n", text)
        self.assertRegex(text, f"missing  cuBLAS: no include/cublas_v2.h in {self.fake.resolve()}, /usr, .*{wheel}")
        self.assertRegex(text, "missing  CLI11: no CLI/CLI.hpp in where the compiler looks")

    def test_folders_are_those_of_who_calls(self):
        text = subprocess.run(["bash", ROOT / "tests/run_gpu.sh", "--preflight", "--nccl", ".", "--include", "headers"],
                              cwd=self.fake, env={**os.environ, "PATH": f"{self.fake}/bin:{os.environ['PATH']}"},
                              check=True, stdout=subprocess.PIPE, text=True).stdout
        self.assertIn(f"here     NCCL: {self.fake.resolve()}/include/nccl.h\n", text)
        self.assertIn(f"no CLI/CLI.hpp in {self.fake.resolve()}/headers, where", text)

    def test_libraries_are_found_where_the_toolkit_has_headers_alone(self):
        wheels = [self.write(f"packages/nvidia/{name}", "").parent for name in ("cu13/lib/libcublas.so.13", "nccl/lib/libnccl.so.2")]
        self.write("packages/nvidia/cudnn/lib/libcudnn.so.9", "")
        self.write("lib64/libcublas.so.13", "")
        environment = {**os.environ, "PATH": f"{self.fake}/bin:{os.environ['PATH']}", "PYTHONPATH": str(self.fake / "packages")}
        environment.pop("LD_LIBRARY_PATH", None)
        places = subprocess.run(["bash", "-uc", "arch= nccl= include=; source tests/gpu/build.sh; echo $LIBRARIES_OF_PROGRAMS"],
                                cwd=ROOT, env=environment, check=True, capture_output=True, text=True).stdout.strip().split(":")
        self.assertEqual(places[0], str(self.fake.resolve() / "lib64"))
        self.assertEqual(set(places[-2:]), set(map(str, wheels)))

    @unittest.skipIf(list(pathlib.Path("/dev").glob("nvidia[0-9]*")), "there is a GPU")
    def test_without_a_gpu_nothing_is_built_and_nothing_fails(self):
        self.write("bin/nvidia-smi", "#!/bin/sh\nexit 9\n")
        for options in ([], ["--budget", "500"], ["--bench"]):
            code, text = self.run_gpu(*options)
            self.assertEqual(code, 77, text)
            self.assertIn("missing  GPU: nvidia-smi lists none", text)
            self.assertIn("there is no GPU", text)
            self.assertTrue(text.endswith("\n0 passed, 0 failed, 1 skipped\n"), text)
        self.assertFalse((self.build / "kernels_gpu").exists())
        code, text = self.run_gpu("--build-only")
        self.assertEqual(code, 0, text)
        for program in ("kernels_gpu", "bench_gpu", "ranks_gpu"):
            self.assertRegex(text, f"built    {self.build}/{program}, [0-9]+ MB\n")
            self.assertTrue((self.build / program).exists())
        self.assertRegex(text, "missing  CLI11: no CLI/CLI.hpp")

    def test_counts_are_added_up(self):
        self.use_built()
        code, text = self.run_gpu("--no-sanitizer", "--nodes", "1", "--nodes", "1+2")
        self.assertEqual(code, 0, text)
        self.assertIn("\n13 passed, 0 failed, 2 skipped\n", text)
        self.assertEqual({name: part["status"] for name, part in self.parts().items()},
                         {"kernels": "passed", "ranks 1": "passed", "ranks 1+2": "passed", "tools": "skipped"})

    def test_results_that_cannot_be_read_cost_nothing_but_themselves(self):
        self.use_built()
        broken = self.write("broken.json", "")
        code, told = self.run_gpu("--from", str(broken))
        self.assertEqual(code, 2, told)
        self.assertIn("--from needs --budget\n", told)
        for text in ('{"parts": [', '{"machine": 1}', '{"parts": [7]}'):
            broken.write_text(text)
            code, told = self.run_gpu("--only", "kernels", "--no-sanitizer", "--budget", "500", "--from", str(broken))
            self.assertEqual(code, 0, told)
            self.assertIn("broken.json cannot be read", told)
            self.assertEqual(self.parts()["kernels"]["status"], "passed")

    def test_results_have_machine_versions_and_numbers(self):
        self.use_built()
        self.write("include/nccl.h", "#define NCCL_MAJOR 2\n#define NCCL_MINOR 28\n#define NCCL_PATCH 9\n")
        for _ in range(2):  # numbers of an earlier run are gone
            code, text = self.run_gpu("--bench")
            self.assertEqual(code, 0, text)
        results, parts = self.results(), self.parts()
        # kernel_bench.py calls the program for the copy and seven kinds of kernels.
        self.assertEqual(parts["kernels, measured"]["numbers"], 8 * [PACK])
        self.assertIn("17 GB/s", parts["kernels, measured"]["output"])
        self.assertEqual(parts["layer, measured"]["numbers"], [LAYER])
        # Here is nothing beside it.
        self.assertEqual([parts["layer, measured"][what] for what in ("status", "passed", "skipped")], ["passed", 1, 1])
        page = (self.build / "bars.txt").read_text()
        self.assertRegex(page, "a +permute, 8192 tokens, E=64 .* 0.90  >= 0.85 copies +kept\n")
        self.assertRegex(page, "f +S1 forward, 8192 tokens, E=64 +7500.0 ")
        self.assertRegex(page, "g +enqueuing an exchange .* not measured\n")
        self.assertEqual(results["versions"]["nccl"], "2.28.9")
        self.assertRegex(results["versions"]["commit"], "^([0-9a-f]{40})?$")
        for name in ("processor", "processors", "memory_gib", "kernel"):
            self.assertTrue(results["machine"][name])
        self.assertIn("date", results)

    def test_times_under_a_profiler_are_no_figures(self):
        self.use_built()
        self.write("bin/ncu", '#!/bin/bash\nexec "${@: -4}"\n').chmod(0o755)
        code, text = self.run_gpu("--only", "kernels", "--no-sanitizer", "--budget", "500")
        self.assertEqual(code, 0, text)
        self.assertIn("17 GB/s", self.parts()["counters"]["output"])
        self.assertEqual(self.parts()["counters"]["numbers"], [])

    def test_odd_figures_of_a_part_cost_nothing_of_others(self):
        self.use_built()
        odd = {"kernel": "permute", "tokens": 8192, "us": 0.0, "copy_us": 1.0}
        lines = ['{"kernel": "permute", "us": nan}', '{"kernel": "permute", "us": NaN}', '{"kernel": "permute", "us": null}', "7",
                 '{"kernel": "permute", "tokens": 8192}', '{"layer": "S1"}', '{"executor_us": 3.0}', '{"ceiling": "copy"}',
                 '{"rival": ["x"], "by": "x", "us": 1.0}', '{"kernel": "permute", "tokens": [1], "us": 1.0}',
                 '{"kernel": "permute", "tokens": 8192, "us": 1.0, "bytes": "many"}']
        self.write("bench_gpu", note(PACK) + note(odd) + "".join(f"echo '{line}' >>$MEASUREMENTS\n" for line in lines))
        code, text = self.run_gpu("--bench")
        self.assertEqual(code, 0, text)
        self.assertEqual(self.parts()["layer, measured"]["numbers"], [LAYER])
        self.assertEqual(self.parts()["kernels, measured"]["numbers"], 8 * [PACK])
        page = (self.build / "bars.txt").read_text()
        self.assertNotIn("Traceback", page)
        self.assertRegex(page, "a +permute, 8192 tokens, E=64 .* kept\n")

    def test_a_folder_that_vanishes_costs_no_results(self):
        self.use_built()
        out = self.write("out/here", "").parent
        self.write("bench_gpu", "rm -rf $OUT\n" + note(PACK))
        code, text = self.run_gpu("--bench", OUT=str(out))
        self.assertEqual(code, 0, text)
        self.assertIn("no results are copied to", text)
        self.assertEqual(self.parts()["layer, measured"]["numbers"], [LAYER])
        self.assertEqual(self.parts()["kernels, measured"]["numbers"].count(PACK), 8)

    def test_a_flood_of_output_is_cut_to_its_end(self):
        self.use_built()
        out = self.write("out/here", "").parent
        # What keeps its end may be a moment behind.
        self.write("kernels_gpu", """yes | head -c 2000000
for wait in $(seq 100); do
  (($(stat -c %s $OUT/current.txt) >= 200000)) && break
  sleep 0.1
done
cp $OUT/current.txt $FAKE
echo 3 passed, 0 failed, 1 skipped
""")
        code, text = self.run_gpu("--only", "kernels", "--no-sanitizer", OUT=str(out))
        self.assertEqual(code, 0, text[-1000:])
        self.assertIn("\n3 passed, 0 failed, 1 skipped\n", text[-1000:])
        self.assertIn((self.fake / "current.txt").stat().st_size, range(200_000, 600_001))
        self.assertLessEqual((self.build / "parts/0.log").stat().st_size, 600_000)
        self.assertEqual(self.parts()["kernels"]["passed"], 3)
        self.assertEqual(self.parts()["kernels"]["output"][-1], "3 passed, 0 failed, 1 skipped")

    def test_no_file_is_too_large_whatever_was_printed_or_measured(self):
        """A character of control takes six bytes in JSON."""
        count = 30
        parts = self.write("build/parts/names", "".join(f"part {number}\n" for number in range(count))).parent
        self.write("build/machine.json", json.dumps({"date": "", "machine": {"gpu": ""}, "versions": {
            "cuda": "", "nccl": "", "torch": ""}}))
        for number in range(count):
            (parts / str(number)).write_text(f"part {number}\n1\npassed\n1\n3\n0\n1\n")
            (parts / f"{number}.log").write_text(("\1" * 99 + "\n") * 4000 + "the last line\n")
            (parts / f"{number}.jsonl").write_text((json.dumps(PACK) + "\n") * 3000)
        done = subprocess.run([sys.executable, ROOT / "tests/gpu/report.py", "after", self.build, ""], check=True, text=True,
                              stdout=subprocess.PIPE)
        self.assertEqual(done.stdout.count("no more than 200000 bytes of it are kept"), count)
        for name in ("results.json", "bars.txt", "log.txt"):
            self.assertIn((self.build / name).stat().st_size, range(1 << 20, 16 << 20))
        for part in self.results()["parts"]:
            self.assertEqual(part["output"][-1], "the last line")
            self.assertGreater(len(part["numbers"]), 900)
            self.assertEqual(part["numbers"][-1], PACK)

    def test_failures_are_told(self):
        self.use_built()
        self.write("kernels_gpu", "echo 2 passed, 1 failed, 0 skipped; exit 1\n")
        self.write("ranks_gpu", "exit 3\n")
        code, text = self.run_gpu("--no-sanitizer", "--nodes", "1")
        self.assertEqual(code, 1, text)
        self.assertIn("\n2 passed, 2 failed, 1 skipped\n", text)

    def test_whatever_goes_wrong_is_a_failure_of_its_part(self):
        """It kills itself, counts no test, or counts a failure beside a skip. A state that was cut off counts as none."""
        self.use_built()
        self.write("build/parts/0", "")
        self.write("build/parts/1", "kernels, measured\n1\n")
        self.write("kernels_gpu", "[[ $* != *--quick* ]] || kill -9 $$\n")
        self.write("ranks_gpu", "[[ $* == *--bench* ]] || { echo 4 passed, 2 failed, 1 skipped; exit 77; }\n" +
                   "if [[ $* == *layer* ]]; then\n" + note(LAYER) + "else\n" + note(STEP) + "fi\n")
        code, text = self.run_gpu("--no-sanitizer", "--nodes", "1", "--budget", "500")
        self.assertEqual(code, 1, text)
        self.assertIn("\nkernels: no test was counted\n", text)
        parts = self.parts()
        self.assertIn("counters", parts)
        for name, counts in (("kernels, quick", (0, 1, 0)), ("kernels", (0, 1, 0)), ("ranks 1", (4, 2, 1))):
            part = parts[name]
            self.assertEqual((part["status"], part["passed"], part["failed"], part["skipped"]), ("failed", *counts), text)
        self.assertEqual(parts["kernels, measured"]["status"], "passed")

    def test_a_failure_stays_one_where_a_later_budget_does_not_suffice(self):
        options = ["--only", "ranks", "--no-sanitizer", "--nodes", "1", "--budget"]
        self.use_built()
        measures = "if [[ $* == *layer* ]]; then\n" + note(LAYER) + "elif [[ $* == *--bench* ]]; then\n" + note(STEP)
        self.write("ranks_gpu", measures + "else echo wrong sum at rank 0; exit 3; fi\n")
        code, text = self.run_gpu(*options, "60")
        self.assertEqual(code, 1, text)
        self.write("ranks_gpu", measures + "else echo once more; touch $FAKE/began; sleep 100; fi\n")
        code, text = self.run_gpu(*options, "10")
        if not (self.fake / "began").exists():
            self.skipTest("this machine is too slow now")
        # Building takes all of the third.
        (self.build / "ranks_gpu").unlink()
        self.write("bin/nvcc", NVCC.replace("target=\n", "[[ $* != *-o* ]] || sleep 100\ntarget=\n", 1))
        for budget in ("", "6"):
            if budget:
                code, text = self.run_gpu(*options, budget)
            self.assertEqual(code, 1, text)
            self.assertRegex(text, r"\n[0-9]+ passed, 1 failed, 1 skipped\n$")
            self.assertEqual(self.parts()["ranks 1"]["status"], "failed", text)
            self.assertEqual(self.parts()["ranks 1"]["output"], ["wrong sum at rank 0", "once more"])

    def test_a_budget_stops_and_the_next_call_goes_on(self):
        options = ["--no-sanitizer", "--nodes", "1", "--budget"]
        self.use_built()
        self.write("bench_gpu", "touch $FAKE/began; sleep 600\n")
        code, text = self.run_gpu(*options, "15")
        if not (self.fake / "began").exists():
            self.skipTest("this machine is too slow now")
        self.assertEqual(code, 75, text)
        self.assertEqual(self.parts()["kernels, quick"]["status"], "passed")
        self.assertEqual(self.parts()["kernels, measured"]["status"], "unfinished")
        self.assertEqual(self.parts()["ranks 1"]["status"], "unfinished")

        self.write("bench_gpu", "echo 17 GB/s\n" + note(PACK))
        code, text = self.run_gpu(*options, "500")
        self.assertEqual(code, 0, text)
        self.assertNotIn("==== kernels, quick:", text)
        self.assertIn("==== ranks 1:", text)
        self.assertIn("17 GB/s", self.parts()["kernels, measured"]["output"])
        self.assertEqual(self.parts()["kernels"]["passed"], 3)

        # Other options are another run.
        code, text = self.run_gpu(*options, "500", "--seed", "7")
        self.assertIn("==== kernels:", text)

    def test_what_has_passed_counts_once_where_nothing_is_skipped(self):
        self.use_built()
        self.write("kernels_gpu", "echo 3 passed, 0 failed, 0 skipped\n")
        options = ["--only", "kernels", "--no-sanitizer", "--budget", "500"]
        first = self.run_gpu(*options)[1]
        code, text = self.run_gpu(*options)
        self.assertEqual(code, 0, text)
        self.assertNotIn("==== kernels:", text)
        self.assertNotIn("==== kernels, measured:", text)
        self.assertEqual(text.splitlines()[-1], first.splitlines()[-1])

    def test_numbers_of_another_gpu_are_not_kept(self):
        self.use_built()
        options = ["--only", "kernels", "--no-sanitizer", "--budget", "500"]
        for model, runs in (("one", True), ("one", False), ("another", True)):
            self.write("bin/nvidia-smi", f"#!/bin/sh\necho 'GPU 0: {model} (UUID: GPU-'$$')'\n")
            code, text = self.run_gpu(*options)
            self.assertEqual(code, 0, text)
            self.assertEqual("==== kernels:" in text, runs, text)

    def test_figures_beside_another_library_are_not_kept(self):
        self.use_built()
        options = ["--only", "kernels", "--no-sanitizer", "--budget", "500"]
        for patch, runs in ((9, True), (9, False), (10, True)):
            self.write("include/nccl.h", f"#define NCCL_MAJOR 2\n#define NCCL_MINOR 28\n#define NCCL_PATCH {patch}\n")
            code, text = self.run_gpu(*options)
            self.assertEqual(code, 0, text)
            self.assertEqual("==== kernels:" in text, runs, text)

    def test_a_part_that_measures_nothing_has_failed(self):
        self.use_built()
        for said in ("echo 17 GB/s\n", "echo 0 passed, 0 failed, 0 skipped\n", ": >$MEASUREMENTS\n"):
            self.write("bench_gpu", said)
            code, text = self.run_gpu("--only", "kernels", "--bench")
            self.assertEqual(code, 1, text)
            self.assertIn("kernels, measured: nothing was measured\n", text)
            self.assertTrue(text.endswith("\n0 passed, 1 failed, 0 skipped\n"), text)

    def test_a_part_that_hangs_keeps_no_other_from_the_budget(self):
        options = ["--no-sanitizer", "--nodes", "1", "--budget"]
        self.use_built()
        self.write("kernels_gpu", "touch $FAKE/began; sleep 600\n")
        code, text = self.run_gpu(*options, "15")
        if not (self.fake / "began").exists() or self.parts()["kernels, quick"]["seconds"] == 0:
            self.skipTest("this machine is too slow now")
        self.assertEqual(code, 75, text)
        code, text = self.run_gpu(*options, "20")
        self.assertEqual(self.parts()["kernels, measured"]["status"], "passed", text)

    def test_nothing_that_ignores_its_end_is_waited_for(self):
        self.use_built()
        self.write("kernels_gpu", "touch $FAKE/began; (trap '' TERM; sleep 300) & wait\n")
        began = time.monotonic()
        code, text = self.run_gpu("--only", "kernels", "--no-sanitizer", "--budget", "10")
        self.assertEqual(code, 75, text)
        self.assertLess(time.monotonic() - began, 120)

    def test_a_program_that_hangs_as_it_starts_takes_no_more_than_the_budget(self):
        self.use_built()
        self.write("kernels_gpu", "trap '' TERM; sleep 300\n")
        began = time.monotonic()
        code, text = self.run_gpu("--prebuilt", "--only", "kernels", "--no-sanitizer", "--budget", "10")
        self.assertEqual(code, 75, text)
        self.assertLess(time.monotonic() - began, 120)

    def start(self, script, *options, **variables):
        """Without --build; in a process group of its own."""
        environment = {**os.environ, "FAKE": str(self.fake), "PATH": f"{self.fake}/bin:{os.environ['PATH']}", **variables}
        return subprocess.Popen(["bash", str(ROOT / script), *options, "--build", str(self.build)], env=environment,
                                start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def await_file(self, name):
        end = time.monotonic() + 120
        while not (self.fake / name).exists() or not (self.fake / name).read_text():
            if time.monotonic() > end:
                self.skipTest("this machine is too slow now")
            time.sleep(0.05)
        return (self.fake / name).read_text()

    @staticmethod
    def ends(process):
        end = time.monotonic() + 30
        while time.monotonic() < end:
            try:
                if pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                    return True
            except OSError:
                return True
            time.sleep(0.05)
        return False

    def test_a_run_that_is_told_to_end_ends_its_part(self):
        self.use_built()
        out = self.write("out/here", "").parent
        self.write("bench_gpu", "echo half of it; (trap '' TERM; echo $BASHPID >$FAKE/deaf; sleep 300) &\n" +
                   3 * (note(PACK) + "sleep 0.05\n") + "echo $$ >$FAKE/began; wait\n")
        for budget in ([], ["--budget", "300"]):
            with self.subTest(budget):
                for name in ("began", "deaf"):
                    (self.fake / name).unlink(missing_ok=True)
                run = self.start("tests/run_gpu.sh", "--only", "kernels", "--no-sanitizer", "--bench", *budget, OUT=str(out))
                self.await_file("out/current.txt")
                inside = [int(self.await_file(name)) for name in ("began", "deaf")]
                if budget:
                    os.killpg(run.pid, signal.SIGTERM)  # as from a terminal, or from who has started it
                else:
                    run.terminate()
                self.assertEqual(run.wait(timeout=60), 143)
                run.stdout.close()
                for process in inside:
                    self.assertTrue(self.ends(process))
                self.assertIn("half of it", (out / "current.txt").read_text())
                if budget:
                    results = json.loads((out / "results.json").read_text())
                    self.assertEqual([part["status"] for part in results["parts"][:2]], ["passed", "unfinished"])
                    self.assertEqual(results["parts"][1]["numbers"], 3 * [PACK])

    def test_a_daemon_that_stays_holds_up_no_part(self):
        self.use_built()
        daemon = ("setsid --fork bash -c 'echo $$ >>$FAKE/daemons; exec sleep 300'\n"
                  "until [[ -s $FAKE/daemons ]]; do sleep 0.05; done\n")
        self.write("kernels_gpu", daemon + "echo 3 passed, 0 failed, 1 skipped\n")
        self.write("bin/nvidia-cuda-mps-control", f"#!/bin/bash\necho $* >>$FAKE/mps\n[[ $1 ]] || exec sleep 300\n{daemon}"
                   ).chmod(0o755)
        began = time.monotonic()
        code, text = self.run_gpu("--no-sanitizer", "--nodes", "2")
        took = time.monotonic() - began
        for process in (self.fake / "daemons").read_text().split():
            os.kill(int(process), signal.SIGKILL)
        self.assertEqual(code, 0, text)
        self.assertIn("processes share the GPU by MPS", text)
        self.assertEqual((self.fake / "mps").read_text(), "-d\n\n")
        self.assertLess(took, 120)

    def test_a_daemon_of_mps_that_does_not_work_is_told_to_end(self):
        self.write("bin/nvidia-cuda-mps-control", "#!/bin/bash\necho \"$* $CUDA_MPS_PIPE_DIRECTORY\" >>$FAKE/mps\n").chmod(0o755)
        environment = {**os.environ, "FAKE": str(self.fake), "PATH": f"{self.fake}/bin:{os.environ['PATH']}"}
        said = subprocess.run(["bash", ROOT / "tests/gpu/mps.sh", "false", "bash", "-c", "echo [$CUDA_MPS_PIPE_DIRECTORY]"],
                              env=environment, check=True, capture_output=True, text=True).stdout
        self.assertIn("MPS does not work here\n[]\n", said)
        began, ended = (self.fake / "mps").read_text().splitlines()
        self.assertEqual(began.removeprefix("-d"), ended)

    def test_two_calls_on_machines_that_know_nothing_of_each_other(self):
        """What was built elsewhere comes along; a call that is killed leaves what it has found, and the next goes on."""
        self.use_built()
        made = {path.name: path.stat().st_mtime_ns for path in self.build.iterdir()}
        out = self.write("out/here", "").parent
        options = ["--build", str(self.build), "--no-sanitizer", "--nodes", "1"]
        environment = {**os.environ, "FAKE": str(self.fake), "PATH": f"{self.fake}/bin:{os.environ['PATH']}"}
        # It ends in the middle of a row.
        self.write("ranks_gpu", note(LAYER) + note(LAYER | {"tokens": 1}) + "printf '{\"layer' >>$MEASUREMENTS; sleep 600\n")
        first = subprocess.Popen(["bash", str(ROOT / "tests/gpu/first_call.sh"), *options], start_new_session=True,
                                 env={**environment, "OUT": str(out)}, stdout=subprocess.DEVNULL)
        end = time.monotonic() + 120
        while not (out / "bars.txt").exists() or "S1" not in (out / "bars.txt").read_text():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.1)
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
        results = json.loads((out / "results.json").read_text())
        self.assertEqual([part["status"] for part in results["parts"][:3]], ["passed", "passed", "unfinished"])
        self.assertIn(PACK, results["parts"][1]["numbers"])
        measured = [LAYER, LAYER | {"tokens": 1}]
        self.assertEqual(results["parts"][2]["numbers"], measured)
        self.assertIn("permute, 8192 tokens", (out / "bars.txt").read_text())
        self.assertIn("3 passed, 0 failed, 1 skipped", (out / "log.txt").read_text())
        self.assertLessEqual({path.name.removesuffix(".new") for path in out.iterdir()},
                             {"here", "results.json", "bars.txt", "log.txt", "current.txt"})

        handed = self.fake / "handed.json"
        (out / "results.json").rename(handed)
        shutil.rmtree(self.build / "parts")
        # What it measures less than before is not what counts.
        self.write("ranks_gpu", "echo 5 passed, 0 failed, 0 skipped\n" + note(LAYER))
        second = subprocess.run(["bash", str(ROOT / "tests/gpu/second_call.sh"), str(handed), *options],
                                env={**environment, "OUT": str(out)}, capture_output=True, text=True)
        self.assertEqual(second.returncode, 0, second.stdout + second.stderr)
        self.assertNotIn("==== kernels, quick:", second.stdout)
        self.assertIn("==== ranks 1:", second.stdout)
        results = json.loads((out / "results.json").read_text())
        self.assertLessEqual({part["status"] for part in results["parts"]}, {"passed", "skipped"})
        self.assertIn(PACK, results["parts"][1]["numbers"])
        self.assertEqual(results["parts"][2]["numbers"], measured)
        for program in ("kernels_gpu", "bench_gpu", "ranks_gpu"):
            self.assertEqual((self.build / program).stat().st_mtime_ns, made[program])

    def test_what_does_not_start_here_is_built(self):
        self.use_built()
        for said in ("exit 127", "echo no kernel image is available"):
            (self.build / "kernels_gpu").write_text(f"#!/bin/bash\n{said}\n")
            code, text = self.run_gpu("--prebuilt", "--only", "kernels", "--no-sanitizer")
            self.assertEqual(code, 0, text)
            self.assertIn("3 passed", text)

    def test_what_needs_a_newer_library_of_c_is_built(self):
        """A real program, of which the loader says that, and for which it exits with 1."""
        self.use_built()
        source = self.write("hello.c", "#include <stdio.h>\nint main(void) { return puts(\"1 passed, 0 failed, 0 skipped\") < 0; }\n")
        program = self.build / "kernels_gpu"
        subprocess.run([os.environ.get("CC", "cc"), str(source), "-o", str(program)], check=True)
        code, text = self.run_gpu("--prebuilt", "--only", "kernels", "--no-sanitizer")
        self.assertIn("1 passed", text)
        version = max(re.findall(rb"GLIBC_2\.\d\d", program.read_bytes()))
        program.write_bytes(program.read_bytes().replace(version, b"GLIBC_2.99"))
        self.assertEqual(subprocess.run([program], stderr=subprocess.DEVNULL).returncode, 1)
        code, text = self.run_gpu("--prebuilt", "--only", "kernels", "--no-sanitizer")
        self.assertEqual(code, 0, text)
        self.assertIn(f"{program} does not start here: ", text)
        self.assertIn("3 passed", text)

    def test_what_is_built_of_other_sources_is_told_and_built(self):
        self.use_built()
        program, built_from = self.build / "kernels_gpu", self.build / "built_from"
        old = program.read_text().replace("source", "echo of old sources\nsource")
        lines = built_from.read_text()
        self.assertEqual(sorted(line.split()[1] for line in lines.splitlines()), ["bench_gpu", "kernels_gpu", "ranks_gpu"])
        for content, said, runs in ((lines, "", True), (re.sub(r"^\d+", "1", lines, flags=re.MULTILINE), "is built of other sources", False),
                                    (None, "it is taken as it is", True)):
            program.write_text(old)
            program.chmod(0o755)
            if content is None:
                built_from.unlink()
            else:
                built_from.write_text(content)
            code, text = self.run_gpu("--prebuilt", "--only", "kernels", "--no-sanitizer")
            self.assertEqual(code, 0, text)
            self.assertEqual("of old sources" in text, runs, text)
            self.assertIn(said, text)
        self.assertNotIn("built_from", self.run_gpu("--build-only", "--only", "kernels")[1])
        self.assertIn(" kernels_gpu\n", built_from.read_text())


if __name__ == "__main__":
    unittest.main()
