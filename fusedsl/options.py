# SPDX-License-Identifier: Apache-2.0
"""The options of ``fuse``."""

from __future__ import annotations

import attrs

from fusedsl.graph.span import FuseError


class OptionError(FuseError, TypeError):
    """``fuse`` was given an option it does not have, or a value an option cannot take."""


#: Option -> the values it takes; the first is the default.
CHOICES: dict[str, tuple[str, ...]] = {"fallback": ("opaque", "error"), "numerics": ("default", "eager")}


def _choice(_: object, attribute: attrs.Attribute[str], value: str) -> None:
    allowed = CHOICES[attribute.name]
    if not isinstance(value, str) or value not in allowed:
        raise OptionError(
            f"fuse({attribute.name}={value!r}) is not supported", expected=" or ".join(f'"{name}"' for name in allowed)
        )


@attrs.frozen
class Options:
    """How a function is fused.

    Attributes:
        fallback: what a torch call without kernels is: "opaque" (eager PyTorch runs it between kernels), or "error".
        numerics: "default" (16-bit values are rounded only where the function casts) or "eager" (after every op, as
            eager PyTorch does).
    """

    fallback: str = attrs.field(default=CHOICES["fallback"][0], validator=_choice)
    numerics: str = attrs.field(default=CHOICES["numerics"][0], validator=_choice)


def make_options(**given: object) -> Options:
    """Options from keyword arguments.

    Raises:
        OptionError: an unknown name or a value that is not allowed.
    """
    for name in given:
        if name not in CHOICES:
            raise OptionError(f"fuse has no option {name!r}", expected=", ".join(CHOICES))
    return Options(**given)  # type: ignore[arg-type]
