# SPDX-License-Identifier: Apache-2.0
"""The settings of fusedsl, each with an environment variable that gives its first value."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

import attrs

from fusedsl.graph.span import FuseError

#: Everything fusedsl has to say goes through this logger; it is silent until a handler or FUSEDSL_LOG asks for it.
logger = logging.getLogger("fusedsl")

_LEVELS = ("", "debug", "info", "warning", "error")


class ConfigError(FuseError):
    """A setting was given a value it cannot take."""


def _flag(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in ("", "0", "false", "no", "off"):
        return False
    if lowered in ("1", "true", "yes", "on"):
        return True
    raise ValueError(text)


def _setting(variable: str, default: Any, parse: Any, expected: str) -> Any:
    return attrs.field(
        factory=lambda: _from_environment(variable, default, parse, expected),
        metadata={"variable": variable, "expected": expected},
    )


def _from_environment(variable: str, default: Any, parse: Any, expected: str) -> Any:
    text = os.environ.get(variable)
    if text is None:
        return default
    try:
        return parse(text)
    except ValueError:
        raise ConfigError(f"{variable}={text!r} is not understood", expected=expected) from None


def _check(instance: object, attribute: attrs.Attribute[Any], value: Any) -> Any:
    wanted = type(getattr(instance, attribute.name))
    bad = type(value) is not wanted and not (wanted is str and isinstance(value, os.PathLike))
    if attribute.name == "log":
        bad = bad or value not in _LEVELS
    if attribute.name == "max_cached_calls":
        bad = bad or value < 1
    if bad:
        raise ConfigError(
            f"fusedsl.config.{attribute.name} cannot be {value!r}", expected=attribute.metadata["expected"]
        )
    value = os.fspath(value) if wanted is str else value
    if attribute.name == "log":
        set_log_level(value)
    if attribute.name in ("cache_dir", "disable_cache"):
        _export(attribute.metadata["variable"], "1" if value is True else value or "")
    return value


def _export(variable: str, text: str) -> None:
    if text:
        os.environ[variable] = text
    else:
        os.environ.pop(variable, None)


@attrs.define(on_setattr=_check)
class Config:
    """The settings. Assign to change one (``fusedsl.config.print_source = True``); a wrong value is a ConfigError.

    Attributes:
        cache_dir: FUSEDSL_CACHE_DIR. Folder of the disk cache; "": ``$XDG_CACHE_HOME/fusedsl`` or ``~/.cache/fusedsl``.
        disable_cache: FUSEDSL_DISABLE_CACHE. Neither read nor write the disk cache.
        print_source: FUSEDSL_PRINT_SOURCE. Print each kernel's text to stderr when a call is first planned.
        log: FUSEDSL_LOG. Least level of log lines that go to stderr: "debug", "info", "warning", "error", "" for none;
            "info" tells every trace with its reason.
        interpret: FUSEDSL_INTERPRET. Run kernels of CUDA tensors in the interpreter too, on copies (slow, to debug).
        interpret_arch: FUSEDSL_INTERPRET_ARCH. The GPU whose plans the interpreter runs: "A100", "H100", "H200".
        warm_up: FUSEDSL_WARM_UP. Get the compiler ready in a background thread once a function is decorated, on
            machines with a GPU.
        max_cached_calls: FUSEDSL_MAX_CACHED_CALLS. How many exact calls (shapes, strides, alignments) a function keeps.

    Assigning to ``cache_dir`` or ``disable_cache`` sets the environment variable too, so child processes see it.
    """

    cache_dir: str = _setting("FUSEDSL_CACHE_DIR", "", str, "a path")
    disable_cache: bool = _setting("FUSEDSL_DISABLE_CACHE", False, _flag, "True or False (1 or 0)")
    print_source: bool = _setting("FUSEDSL_PRINT_SOURCE", False, _flag, "True or False (1 or 0)")
    log: str = _setting("FUSEDSL_LOG", "", lambda text: text.strip().lower(), f"one of {_LEVELS}")
    interpret: bool = _setting("FUSEDSL_INTERPRET", False, _flag, "True or False (1 or 0)")
    interpret_arch: str = _setting(
        "FUSEDSL_INTERPRET_ARCH", "H200", str, 'a GPU\'s name ("A100", "H100", "H200") or sm_NN'
    )
    warm_up: bool = _setting("FUSEDSL_WARM_UP", False, _flag, "True or False (1 or 0)")
    max_cached_calls: int = _setting("FUSEDSL_MAX_CACHED_CALLS", 1024, int, "an int, at least 1")

    def __attrs_post_init__(self) -> None:
        if self.log not in _LEVELS:
            raise ConfigError(f"FUSEDSL_LOG={self.log!r} is not understood", expected=f"one of {_LEVELS}")
        if self.max_cached_calls < 1:
            raise ConfigError(
                f"FUSEDSL_MAX_CACHED_CALLS={self.max_cached_calls} is not understood", expected="an int, at least 1"
            )
        if self.log:
            set_log_level(self.log)


_handler: logging.Handler | None = None


def set_log_level(level: str) -> None:
    """Send log lines of at least ``level`` ("": none) to stderr; handlers the program added itself stay."""
    global _handler
    if _handler is not None:
        logger.removeHandler(_handler)
        _handler = None
    if level:
        _handler = logging.StreamHandler(sys.stderr)
        _handler.setFormatter(logging.Formatter("fusedsl %(levelname)s: %(message)s"))
        logger.addHandler(_handler)
        logger.setLevel(level.upper())


config = Config()
