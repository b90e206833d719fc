"""On PYTHONPATH where engines are to run as on a processor without AVX-512: torch, which vLLM asks, knows of none.

vLLM chooses its kernels by what torch says of the processor; no variable of the environment changes that.
"""

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Finder:
    """Finds `torch.cpu` once, as always, and changes what it says when it is loaded."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != "torch.cpu":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        load = spec.loader.exec_module

        def masked(module: ModuleType) -> None:
            load(module)
            told = module.get_capabilities
            module.get_capabilities = lambda: {  # type: ignore[attr-defined]
                name: False if name.startswith(("avx512", "amx")) else said for name, said in told().items()
            }

        spec.loader.exec_module = masked  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _Finder())
