"""The only module that imports the extension: calls that raise, owners of C objects, callbacks."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar

from ._ffi import ffi, lib
from .errors import ArgumentError, ClosedError, ContextBusyError, LlamaK3Error, check

__all__ = ["Callbacks", "Handle", "call", "ffi", "lib", "path_bytes", "set_log_callback"]

_MESSAGE_BYTES = 1024
_Self = TypeVar("_Self", bound="Handle")


def call(function: Any, *arguments: Any) -> None:
    """Call a function of the library that ends in (..., err, err_size); raises the class of its status."""
    message = ffi.new("char[]", _MESSAGE_BYTES)
    status = function(*arguments, message, _MESSAGE_BYTES)
    if status:
        check(status, ffi.string(message).decode("utf-8", "replace"))


def path_bytes(path: str | os.PathLike[str]) -> bytes:
    """A path for C. ArgumentError for what is no path; a NUL would cut it short."""
    try:
        data = os.fsencode(path)
    except (TypeError, UnicodeEncodeError) as error:
        raise ArgumentError(f"path: found {path!r}, wanted a path: {error}") from None
    if b"\0" in data:
        raise ArgumentError(f"path: found {path!r}, wanted a path without NUL")
    return data


class Handle:
    """Owner of one C object; a context manager. `close()` lets go of it; not while another thread uses it.

    The object is freed with the last reference to its pointer. So no call can lose it, also where an
    exception of a signal handler comes between two lines here; the list of users only serves the refusal.
    """

    def __init__(self, what: str, pointer: Any, free: Callable[[Any], Any]) -> None:
        self._what = what
        self._pointer: Any = ffi.gc(pointer, free)
        self._users: list[int] = []  # the thread of each call inside
        self._guard = threading.RLock()

    @contextmanager
    def _borrow(self) -> Iterator[Any]:
        """The pointer, kept alive for the body. ClosedError after close()."""
        thread = threading.get_ident()
        try:
            with self._guard:
                pointer = self._pointer
                if pointer is None:
                    raise ClosedError(f"the {self._what} is closed")
                self._users.append(thread)
            yield pointer
        finally:
            with self._guard:
                if thread in self._users:
                    self._users.remove(thread)

    @property
    def closed(self) -> bool:
        return self._pointer is None

    def close(self) -> None:
        """Free the memory; a second call does nothing. ContextBusyError while another thread uses it."""
        with self._guard:
            if any(user != threading.get_ident() for user in self._users):
                raise ContextBusyError(f"the {self._what} is in use by another thread and cannot be closed")
            self._pointer = None

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Callbacks:
    """What C calls back during one model load or in one context, and the exception that a call back ended in.

    The C side polls at most every 50 ms; the poll takes the GIL, so that Python's signal handlers run. An
    exception (KeyboardInterrupt, or one of the progress function) makes the library stop and is raised again
    by `call`.
    """

    def __init__(self, progress: Callable[..., None] | None = None) -> None:
        self.progress = progress
        self.exception: BaseException | None = None
        self.owner = ffi.new_handle(self)
        self._poll_state = ffi.new("k3_py_poll_state *", {"owner": self.owner})

    def install_abort(self, params: Any) -> None:
        """Set the abort callback of llama_k3_context_params; this object has to outlive the context."""
        params.abort = ffi.addressof(lib, "k3_py_abort")
        params.abort_user = self._poll_state

    def stop_waiting(self) -> None:
        """The next poll of the C side, at the latest before the next micro-batch, asks at once."""
        self._poll_state.next_poll_ns = 0

    def call(self, function: Any, *arguments: Any) -> None:
        """As the function `call`; raises the exception of a callback where there was one."""
        try:
            call(function, *arguments)
        except ContextBusyError:
            # What is kept belongs to the thread that is inside.
            raise
        except LlamaK3Error:
            self._raise_kept()
            raise
        self._raise_kept()

    def _raise_kept(self) -> None:
        exception, self.exception = self.exception, None
        if exception is not None:
            raise exception from None


def _keep_exception(kind: type[BaseException], exception: BaseException, trace: TracebackType) -> None:
    callbacks: Callbacks = ffi.from_handle(trace.tb_frame.f_locals["owner"])
    callbacks.exception = exception
    callbacks.stop_waiting()


@ffi.def_extern(error=True, onerror=_keep_exception)
def k3_py_poll(owner: Any) -> bool:
    callbacks: Callbacks = ffi.from_handle(owner)
    # A signal handler that raises does so before this line; a progress function may have raised earlier.
    return callbacks.exception is not None


@ffi.def_extern(onerror=_keep_exception)
def k3_py_decode_progress(n_done: int, n_total: int, owner: Any) -> None:
    callbacks: Callbacks = ffi.from_handle(owner)
    if callbacks.progress is not None and callbacks.exception is None:
        callbacks.progress(n_done, n_total)


@ffi.def_extern(error=False, onerror=_keep_exception)
def k3_py_load_progress(fraction: float, owner: Any) -> bool:
    callbacks: Callbacks = ffi.from_handle(owner)
    if callbacks.progress is not None:
        callbacks.progress(fraction)
    return True


_log_callback: Callable[[int, str], None] | None = None


@ffi.def_extern()
def k3_py_log(level: int, text: Any, user: Any) -> None:
    if _log_callback is not None:
        _log_callback(level, ffi.string(text).decode("utf-8", "replace"))


def set_log_callback(callback: Callable[[int, str], None] | None) -> None:
    """Hand the library's and ggml's messages to `callback(level, text)`; None drops them (the default).

    Levels: 0 debug, 1 info, 2 warning, 3 error. Process-wide: set it before other threads use the library.
    """
    global _log_callback
    _log_callback = callback
    lib.llama_k3_log_set(lib.k3_py_log if callback is not None else ffi.NULL, ffi.NULL)
