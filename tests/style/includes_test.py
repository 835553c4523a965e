#!/usr/bin/env python3
"""Tests includes.py on small trees: each rule is broken once and must be reported at the right line."""
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
import includes  # noqa: E402
from source_files import CodeFile  # noqa: E402

REGISTRY = """registry = {
  'allToAll': {
    'linear': 'straight to: everyone',
  },
  'allGather': {
    'ring': 'around',
  },
}
schedules = {
  'S1': ['mirrored', 'one'],
  'ExpertsInside': ['mirrored', 'two'],
}
"""

TABLE = """
| `kernels` | not | a table | of these |

## What is where, and who may know what

| folder | what it is | may include, beside itself and `include/` | must not know |
|---|---|---|---|
| `include/` | of `kernels/` | nothing | |
| `algorithms/`, `algorithms/schedules` | of `kernels/` | nothing | |
| `src/base` | of `kernels/` | nothing | |
| `kernels/` | of `kernels/` | `src/base` | |
| `src/verify` | of `kernels/` | `algorithms/` | |
| `src/model` | of `kernels/` | `algorithms/` | |
| `src/probe` | of `kernels/` | `src/verify` | |
| `src/exec` | of `kernels/` | nothing | |
| `src/comm` | of `kernels/` | `src/exec`, `algorithms/` | |
| `src/route` | of `kernels/` | nothing | |
| `src/moe` | of `kernels/` | `kernels/` | |
| `src/api` | of `kernels/` | `src/comm`, `src/probe` | |
| `src/bindings` | of `kernels/` | nothing | |
| `perf/` | of `kernels/` | `examples/common/` | |
| `examples/` | of `kernels/` | `examples/common/` | |
| `examples/common/` | of `kernels/` | nothing | |
| `tests/` | of `kernels/` | everything | |

| library | who may know it |
|---|---|
| UCX | `src/exec/ucx*` |
"""

# A tree that breaks nothing, although it looks like it here and there.
GOOD = {
    "LICENSE": "",
    "CONTRIBUTING.md": TABLE,
    ".ci/run": "",
    "algorithms/meson.build": REGISTRY,
    "algorithms/plan.h": "#include <vector>\n",
    "algorithms/registry.h": "",
    "algorithms/registry.cc.in": '#include "algorithms/registry.h"\n',
    "algorithms/alltoall/linear.cc":
        '#include "algorithms/plan.h"\n// getenv("HOME"), std::chrono\nconst char* a = "getenv";\n'
        'int strideOf(int environment);\n',
    "kernels/copy.h": '#include "moeccl/moeccl.h"\n',
    "kernels/copy_cuda.cu": '#include <cuda_runtime.h>\n#include "kernels/copy.h"\n',
    "include/moeccl/moeccl.h": "#include <stddef.h>\n",
    "include/moeccl/mpi.h": "#include <moeccl/moeccl.h>\n#include <mpi.h>\n",
    "include/moeccl/nccl.h": "#include <nccl.h>\n#include <cuda_runtime.h>\n",
    "src/base/error.h": '#include "moeccl/moeccl.h"\n',
    "src/verify/verify.h":
        '#include "algorithms/plan.h"\n'
        '/* "linear"\n alltoall::linear */ const char* a = "a linear order"; const char b = \'"\';\n'
        'int n = 1\'000; const char* c = "a\\"b"; int linear; auto r = R"x(ring)y" )x";\n',
    "src/model/price.cc": '#include "src/base/error.h"\n#include "algorithms/plan.h"\n',
    "src/probe/probe.h": '#include "src/verify/verify.h"\n',
    "src/exec/transport.h": "",
    "src/exec/ucx_worker.cc": '#include <ucp/api/ucp.h>\n#include "src/exec/transport.h"\n',
    "src/exec/nccl_run.cc": "#include <nccl.h>\n",
    "src/comm/comm.h": '#include "src/exec/transport.h"\n#include "algorithms/registry.h"\n',
    "src/comm/stream.h": "",
    "src/comm/domain.cc": '#include "src/comm/comm.h"\n',
    "src/route/pass_run.cc": '#include "src/base/error.h"\nconst char* a = "not S1"; int b = moecclScheduleS1s + moecclScheduleAuto;\n',
    "src/bindings/mpi/shim.cc": "#include <moeccl/moeccl.h>\n",
    "src/moe/layer.cc": '#include "kernels/copy.h"\n#include "src/base/error.h"\n#include <moeccl/moeccl.h>\n',
    "src/api/api.cc": '#include "src/comm/comm.h"\n#include "src/probe/probe.h"\n',
    "perf/bench.cc": '#include <moeccl/moeccl.h>\n#include "examples/common/launch.h"\n',
    "perf/fit/fit.cc": '#include "perf/bench.cc"\n#include <moeccl/model.h>\n',
    "examples/common/launch.h": "#include <moeccl/moeccl.h>\n",
    "examples/01_alltoall/main.c": '#include "../common/launch.h"\n',
    "tests/exec/exec_test.cc": '#include "src/exec/transport.h"\n#include "src/comm/comm.h"\n',
}

# file, what is added to it, the line that must be named, a part of the rule.
BAD = [
    ("algorithms/plan.h", '#include "src/base/error.h"\n', 2, "algorithms may include"),
    ("algorithms/plan.h", '#include "kernels/copy.h"\n', 2, "algorithms may include"),
    ("algorithms/plan.h", "#include <src/base/error.h>\n", 2, "algorithms may include"),
    ("algorithms/plan.h", "# include <chrono>\n", 2, "no clocks"),
    ("algorithms/plan.h", "\n#include <time.h>\n", 3, "no clocks"),
    ("algorithms/plan.h", "auto t = std::chrono::steady_clock::now();\n", 2, "no clocks"),
    ("algorithms/plan.h", "#include <cuda_runtime_api.h>\n", 2, "no CUDA"),
    ("algorithms/plan.h", "#include <cublas_v2.h>\n", 2, "no CUDA"),
    ("algorithms/plan.h", '/* a\n */ const char* v = std::getenv("A");\n', 3, "no environment"),
    ("algorithms/alltoall/linear.cc", "#include <nccl.h>\n", 5, "know NCCL"),
    ("kernels/copy.h", '#include "algorithms/plan.h"\n', 2, "kernels may include"),
    ("kernels/copy.h", '#include "../algorithms/plan.h"\n', 2, "kernels may include"),
    ("include/moeccl/moeccl.h", '#include "src/base/error.h"\n', 2, "include may include"),
    ("include/moeccl/moeccl.h", "#include <cuda_runtime.h>\n", 2, "no CUDA type"),
    ("include/moeccl/moeccl.h", '#include "mpi.h"\n', 2, "as <moeccl/...>"),
    ("src/base/error.h", '#include "algorithms/plan.h"\n', 2, "src/base may include"),
    ("src/base/error.h", '#include "src/comm/comm.h"\n', 2, "src/base may include"),
    ("src/verify/verify.h", '#include "src/exec/transport.h"\n', 5, "src/verify may include"),
    ("src/verify/verify.h", '#include "src/model/price.h"\n', 5, "not a file of this repository"),
    ("src/verify/verify.h", 'const char* a = "linear";\n', 5, "no algorithm by name"),
    ("src/verify/verify.h", 'const char* a = "alltoall=linear";\n', 5, "no algorithm by name"),
    ("src/verify/verify.h", 'const char* a = R"(ring)";\n', 5, "no algorithm by name"),
    ("src/model/price.cc", "auto p = allgather::ring(topology);\n", 3, "no algorithm by name"),
    ("src/model/price.cc", '#include "src/probe/probe.h"\n', 3, "src/model may include"),
    ("src/model/price.cc", "#define H <a.h>\n#include H\n", 4, "not a file of this repository"),
    ("src/probe/probe.h", '#include "src/comm/comm.h"\n', 2, "src/probe may include"),
    ("src/exec/transport.h", '#include "src/comm/comm.h"\n', 1, "src/exec may include"),
    ("src/exec/transport.h", '#include "src/verify/verify.h"\n', 1, "src/exec may include"),
    ("src/exec/transport.h", '#include "algorithms/registry.h"\n', 1, "which collective or algorithm"),
    ("src/exec/transport.h", "#include <ucp/api/ucp.h>\n", 1, "knows UCX"),
    ("src/exec/transport.h", "#include <uct/api/uct.h>\n", 1, "knows UCX"),
    ("src/exec/ucx_worker.cc", "#include <nccl.h>\n", 3, "know NCCL"),
    ("src/exec/nccl_run.cc", "#include <ucs/type/status.h>\n", 2, "knows UCX"),
    ("src/exec/transport.h", "#include <cuda_runtime.h>\n", 1, "knows CUDA"),
    ("src/comm/comm.h", '#include "src/api/api.cc"\n', 3, "src/comm may include"),
    ("src/comm/domain.cc", '#include "src/comm/stream.h"\n', 2, "knows its communicators and streams as"),
    ("src/comm/host_communicator.cc", '#include "src/comm/stream.h"\n', 1, "know them as CallQueue"),
    ("src/moe/layer.cc", '#include "algorithms/plan.h"\n', 4, "src/moe may include"),
    ("src/moe/layer.cc", '#include "src/comm/comm.h"\n', 4, "src/moe may include"),
    ("src/moe/layer.cc", '#include "algorithms/schedules/s1.h"\n', 4, "not a file of this repository"),
    ("src/route/pass_run.cc", 'const char* b = "S1";\n', 3, "no schedule by name"),
    ("src/route/pass_run.cc", "auto s = schedules::s1();\n", 3, "no schedule by name"),
    ("src/route/pass_run.cc", "bool b = schedule == moecclScheduleS1;\n", 3, "no schedule by name"),
    ("src/model/price.cc", "auto s = moecclScheduleEXPERTSinside;\n", 3, "no schedule by name"),
    ("src/bindings/mpi/shim.cc", '#include "src/base/error.h"\n', 2, "src/bindings may include"),
    ("perf/bench.cc", '#include "src/base/error.h"\n', 3, "perf may include"),
    ("perf/bench.cc", '#include "include/moeccl/moeccl.h"\n', 3, "as <moeccl/...>"),
    ("perf/fit/fit.cc", '#include "src/exec/transport.h"\n', 3, "perf may include"),
    ("examples/01_alltoall/main.c", '#include "kernels/copy.h"\n', 2, "examples may include"),
    ("examples/common/launch.h", '#include "perf/bench.cc"\n', 2, "examples/common may include"),
    ("tests/exec/exec_test.cc", "#include <ucp/api/ucp.h>\n", 3, "knows UCX"),
    ("docs/notes.md", "x\n", 1, "top level"),
    ("src/unheard_of/a.cc", "\n", 1, "code lives in"),
]


def tree(folder, files):
    for path, text in files.items():
        path = os.path.join(folder, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)


class IncludesTest(unittest.TestCase):
    def test_good_tree_passes(self):
        with tempfile.TemporaryDirectory() as folder:
            tree(folder, GOOD)
            self.assertEqual(includes.violations(folder), [])

    def test_each_bad_line_is_reported(self):
        for file, text, line, rule in BAD:
            with self.subTest(file=file, text=text), tempfile.TemporaryDirectory() as folder:
                tree(folder, {**GOOD, file: GOOD.get(file, "") + text})
                found = includes.violations(folder)
                self.assertTrue(found, "not noticed")
                place = f"{file.split('/')[0] if rule == 'top level' else file}:{line}: "
                self.assertTrue(all(one.startswith(place) for one in found), found)
                self.assertTrue(any(rule in one for one in found), found)

    def test_command_fails(self):
        with tempfile.TemporaryDirectory() as folder:
            tree(folder, {**GOOD, "kernels/copy.h": '#include "algorithms/plan.h"\n'})
            run = subprocess.run([sys.executable, includes.__file__, folder], capture_output=True, text=True)
            self.assertEqual(run.returncode, 1)
            self.assertIn('kernels/copy.h:1: #include algorithms/plan.h: kernels may include', run.stdout)

    def test_rows_allow_what_is_used_alone(self):
        for row, wider, part, unused in (("| `src/exec`, `algorithms/`", "| `src/model`, `src/exec`, `algorithms/`", "src/comm", "src/model"),
                                   ("| `src/exec` | of `kernels/` | nothing", "| `src/exec` | of `kernels/` | `kernels/`", "src/exec", "kernels")):
            with self.subTest(row=row), tempfile.TemporaryDirectory() as folder:
                table = TABLE.replace(row, wider)
                tree(folder, {**GOOD, "CONTRIBUTING.md": table})
                line = table[:table.index(wider)].count("\n") + 1
                self.assertEqual(includes.violations(folder), [
                    f"CONTRIBUTING.md:{line}: {part} includes nothing of {unused}: take that out of the row"])

    def test_no_registry_or_table_is_an_error(self):
        for file, text in (("algorithms/meson.build", "\n"), ("algorithms/meson.build", REGISTRY.partition("sched")[0]),
                           ("CONTRIBUTING.md", TABLE.replace("who may know what", "more"))):
            with self.subTest(text=text), tempfile.TemporaryDirectory() as folder:
                tree(folder, {**GOOD, file: text})
                with self.assertRaises(SystemExit):
                    includes.violations(folder)

    def test_code_file(self):
        code = CodeFile('#include "a.h" // "b"\n/* "c"\n*/ f("d\\"", \'"\', 1\'0) // \\\n#include "e.h"\n"g"')
        self.assertEqual(code.includes, [(1, "a.h", True)])
        self.assertEqual(code.strings, [(1, "a.h"), (3, 'd\\"'), (5, "g")])
        self.assertEqual(list(code.words(r"f\(")), [(3, "f(")])


if __name__ == "__main__":
    unittest.main()
