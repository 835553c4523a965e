"""Makes ep_implementation="moeccl" known to transformers, without importing transformers where nobody else does."""

import importlib.abc
import importlib.util
import sys

_REGISTRY = "transformers.distributed.expert_parallel"


def _register():
    from . import transformers_ep  # noqa: F401 - the import registers it


class _AfterImport(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Registers once the module with transformers' registry is loaded."""

    def find_spec(self, name, path, target=None):
        if name != _REGISTRY:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        self.loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        _register()


def register_with_transformers():
    if _REGISTRY in sys.modules:
        _register()
    else:
        sys.meta_path.insert(0, _AfterImport())
