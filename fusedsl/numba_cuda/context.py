# SPDX-License-Identifier: Apache-2.0
"""numba contexts that know the kernel language and the little Python it is embedded in.

numba's own CUDA contexts load NumPy functions, half-precision headers and string support: half a second before the
first kernel is typed. Kernel text needs integers, floats, booleans, tuples, `range` and tiles.
"""

from __future__ import annotations

from numba.cuda.cpython import builtins as builtins_impl
from numba.cuda.cpython import numbers, rangeobj, tupleobj
from numba.cuda.target import CUDATargetContext, CUDATypingContext
from numba.cuda.typing import builtins, templates

from fusedsl.numba_cuda import language, operators
from fusedsl.numba_cuda.registry import lowering_registry, typing_registry

#: Imported so that everything is registered before a context is built.
DEFINITIONS = (language, operators)


#: Templates that stand for `@overload`: resolving one loads the whole of numba's CUDA target.
_OVERLOADS = frozenset({templates._OverloadFunctionTemplate, templates._OverloadAttributeTemplate})


def _is_overload(template: type) -> bool:
    return not _OVERLOADS.isdisjoint(template.__mro__)  # much faster than issubclass on numba's abstract classes


class KernelTypingContext(CUDATypingContext):
    """Types kernel text."""

    _loaded = False

    def refresh(self) -> None:
        """Install the registries, once."""
        if self._loaded:
            return
        self._loaded = True
        for registry in (typing_registry, builtins.registry, templates.builtin_registry):
            self._install(registry)

    def _install(self, registry: templates.Registry) -> None:
        for template in registry.functions:
            if not _is_overload(template):
                self.insert_function(template(self))
        for template in registry.attributes:
            if not _is_overload(template):
                self.insert_attributes(template(self))
        for value, function_type in registry.globals:
            if any(map(_is_overload, getattr(function_type, "templates", ()))):
                continue
            known = self._lookup_global(value)
            if known is not None:
                function_type = known.augment(function_type)
                self._remove_global(value)
            self._insert_global(value, function_type)


class KernelTargetContext(CUDATargetContext):
    """Lowers kernel text."""

    _loaded = False

    def refresh(self) -> None:
        """Install the registries, once."""
        if self._loaded:
            return
        self._loaded = True
        for module in (numbers, rangeobj, tupleobj, builtins_impl):
            self.install_registry(module.registry)
        self.install_registry(lowering_registry)
        self.typing_context.refresh()
