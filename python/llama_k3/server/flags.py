"""Reads the command line and the environment of llama-server; flag_table.py has the flags.

A flag of llama.cpp that does not apply here is in refused.py: it is an error that says why. So is its
variable, and so are variables LLAMA_ARG_* that nobody knows.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from .flag_table import FLAGS, GROUPS, Flag
from .flag_values import FlagError, switch_value
from .refused import REFUSED, REFUSED_VARIABLES


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message} (llama-server --help lists all flags)\n")


class _Refuse(argparse.Action):
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        parser.error(f"{option_string}: {self.metavar}")


def build_parser(version: str) -> argparse.ArgumentParser:
    """The flags of the table, those that are refused, --help and --version."""
    parser = _Parser(
        "llama-server",
        description="Serve a Kimi-K3 or Kimi-Linear model over HTTP: the APIs of OpenAI, Anthropic and "
        "llama.cpp, and a web page.",
        epilog="A variable counts where its flag is not given.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=version)
    for title, flags in GROUPS.items():
        group = parser.add_argument_group(title)
        for flag in flags:
            _add(group, flag)
    for names, reason in REFUSED.items():
        parser.add_argument(
            *names, nargs="*", action=_Refuse, metavar=reason, dest="refused", help=argparse.SUPPRESS
        )
    return parser


def _add(group: argparse._ArgumentGroup, flag: Flag) -> None:
    shown = flag.help + (" (always)" if flag.always else "")
    if flag.read is not None and flag.default not in (None, "") and f"({flag.default}" not in shown:
        shown += f" ({flag.default})" if not isinstance(flag.default, int) or flag.default < 1 << 20 else ""
    if flag.variables:
        shown += f" [{', '.join(flag.variables)}]"
    shown = shown.replace("%", "%%")
    if flag.read is None:
        group.add_argument(
            *flag.names, dest=flag.dest, action="store_const", const=flag.value, default=None, help=shown
        )
        if flag.off:
            group.add_argument(
                *flag.off, dest=flag.dest, action="store_const", const=False, help=argparse.SUPPRESS
            )
    else:
        group.add_argument(
            *flag.names,
            dest=flag.dest,
            action="append" if flag.repeats else "store",
            default=None,
            metavar=flag.metavar,
            help=shown,
        )


def parse(argv: Sequence[str], environ: Mapping[str, str], version: str) -> argparse.Namespace:
    """Values of all flags: from the command line, else from the environment, else their defaults. Ends the
    process with status 2 and one line where something is wrong."""
    parser = build_parser(version)
    args = parser.parse_args(argv)
    _check_variables(parser, environ)
    for flag in FLAGS:
        given = getattr(args, flag.dest)
        source = flag.names[-1] if len(flag.names) > 1 else flag.names[0]
        if given is None:
            source, given = _from_environment(flag, environ)
        try:
            setattr(args, flag.dest, _value(flag, given))
        except FlagError as error:
            parser.error(f"{source}: {error}")
    if args.model is None:
        parser.error("--model: found none, wanted a GGUF file (-m FILE)")
    return args


def _value(flag: Flag, given: Any) -> Any:
    if given is None:
        return flag.default
    if flag.read is None:
        on = switch_value(given) if isinstance(given, str) else given
        if flag.always and not on:
            raise FlagError(f"found {given!r}, wanted on ({flag.help})")
        return on
    if flag.repeats:
        return [item for text in (given if isinstance(given, list) else [given]) for item in flag.read(text)]
    return flag.read(given)


def _from_environment(flag: Flag, environ: Mapping[str, str]) -> tuple[str, str | bool | None]:
    """The variable's name and its value. LLAMA_ARG_NO_... sets a switch off, whatever its value."""
    for name in flag.variables:
        if flag.off and _contrary(name) in environ:
            return _contrary(name), False
        if name in environ:
            return name, environ[name]
    return "", None


def _contrary(variable: str) -> str:
    return variable.replace("LLAMA_ARG_", "LLAMA_ARG_NO_", 1)


def _check_variables(parser: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
    known = {name for flag in FLAGS for name in flag.variables}
    known |= {_contrary(name) for flag in FLAGS if flag.off for name in flag.variables}
    for name in sorted(environ):
        if name in REFUSED_VARIABLES:
            parser.error(f"{name} is set: {REFUSED_VARIABLES[name]}")
        if name.startswith("LLAMA_ARG_") and name not in known:
            parser.error(f"{name} is set: found no such variable, wanted one of those in --help")
