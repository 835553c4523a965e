"""torch.distributed over moeccl.

    torch.distributed.init_process_group("cpu:moeccl")

is all that a program changes. CUDA tensors are served too ("cpu:moeccl,cuda:moeccl", or "moeccl").
"""

import importlib
import importlib.metadata
import os
from datetime import timedelta

__all__ = ["register"]

PACKAGES = {"libhwloc": "libhwloc15", "libmd": "libmd0", "libuc": "libucx0"}


def _advice(error):
    """What to do about an ImportError of the compiled part."""
    folder = os.path.dirname(os.path.abspath(__file__))
    if isinstance(error, ModuleNotFoundError):
        return (f"{folder} has no compiled part. Install the package (pip install ./src/bindings/torch), and start Python outside of "
                "the package's source folder.")
    text = str(error)
    missing = text.partition(":")[0]
    again = "install the package again: pip install --force-reinstall --no-deps --no-cache-dir, and its folder or sdist"
    if "cannot open shared object file" not in text:
        return f"{text}. The package was compiled against another torch or moeccl. To mend that, {again}."
    if missing.startswith("libmoeccl"):
        return f"{missing}, the library itself, is neither in {folder} nor where the system looks. To mend that, {again}."
    package = next((package for name, package in PACKAGES.items() if missing.startswith(name)), None)
    what = f"On Debian: apt-get install {package}." if package else "Install it, or put its folder into LD_LIBRARY_PATH."
    return f"{missing}, which the library was built with, is not on this machine. {what}"


def __getattr__(name):
    """Has the compiled part imported when it is first asked for, and the version looked up."""
    if name == "_C":
        try:
            return importlib.import_module("._C", __name__)
        except ImportError as error:
            raise ImportError("moeccl: " + _advice(error), name=error.name, path=error.path) from error
    if name == "__version__":
        return importlib.metadata.version(__name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _create(options, pg_options):
    from . import _C

    ranks = list(options.global_ranks_in_group)
    timeout = options.timeout
    if pg_options is not None and getattr(pg_options, "_timeout", None):
        timeout = pg_options._timeout
    if not isinstance(timeout, timedelta):
        timeout = timedelta(seconds=timeout)
    return _C.create(options.store, options.group_rank, options.group_size, timeout, ranks, options.group_id)


def register():
    """Makes the name "moeccl" known to torch.distributed. Called by torch itself where it loads plug-ins."""
    import torch.distributed

    if torch.distributed.is_available() and not hasattr(torch.distributed.Backend, "MOECCL"):
        torch.distributed.Backend.register_backend("moeccl", _create, extended_api=True, devices=["cpu", "cuda"])


register()
