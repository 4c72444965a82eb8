"""The exceptions: one family, one class for each status of llama_k3.h, and the function that picks it.

Messages come from the library and name the thing, the value found and the value wanted.
"""

from __future__ import annotations

from typing import Any


class LlamaK3Error(RuntimeError):
    """Base of every error of this package. `status`: the library's code, None for errors found in Python."""

    status: int | None = None


class ClosedError(LlamaK3Error):
    """The model, context or snapshot was closed."""


class AbortedError(LlamaK3Error):
    """A callback asked to stop. A context keeps the micro-batches that were finished."""

    status = 1


class ArgumentError(LlamaK3Error, ValueError):
    """An argument of the wrong type or out of its range."""

    status = 2


class OutOfMemoryError(LlamaK3Error, MemoryError):
    """An allocation failed."""

    status = 3


class ContextBusyError(LlamaK3Error):
    """The object is in use by another thread; nothing was done."""

    status = 4


class ContextFullError(LlamaK3Error):
    """A sequence would grow beyond the context's n_ctx."""

    status = 5


class NonFiniteError(LlamaK3Error):
    """The logits hold inf or nan.

    Of a decode call: `sequences` are those of the call that are empty now, for they had such logits;
    `logits` the rows of the call, valid for the other sequences as far as they were computed (whole
    micro-batches), nan from there on.
    """

    status = 6
    sequences: tuple[int, ...] = ()
    logits: Any = None


class ComputeError(LlamaK3Error):
    """The backend failed."""

    status = 7


class ModelFileError(LlamaK3Error):
    """Base: a model file that cannot be used."""


class FileOpenError(ModelFileError):
    """Missing, unreadable or not a regular file."""

    status = 20


class FileMagicError(ModelFileError):
    """Not a GGUF file."""

    status = 21


class FileVersionError(ModelFileError):
    """A GGUF version that is not read."""

    status = 22


class FileTruncatedError(ModelFileError):
    """The file ends inside the named section."""

    status = 23


class FileCountError(ModelFileError):
    """A count that the file cannot hold, or beyond a limit."""

    status = 24


class FileStringError(ModelFileError):
    """A string longer than the file, empty, or with a 0 byte where a name is wanted."""

    status = 25


class FileValueTypeError(ModelFileError):
    """An unknown type of metadata."""

    status = 26


class FileDuplicateError(ModelFileError):
    """A key or a tensor twice."""

    status = 27


class FileAlignmentError(ModelFileError):
    """An alignment that is not a power of two, or not kept."""

    status = 28


class FileTensorDimsError(ModelFileError):
    """A tensor's number of dimensions or a size is wrong."""

    status = 29


class FileTensorTypeError(ModelFileError):
    """An unknown tensor type."""

    status = 30


class FileSizeError(ModelFileError):
    """A computation of a size overflows."""

    status = 31


class FileOffsetError(ModelFileError):
    """A tensor does not begin where the one before it ends."""

    status = 32


class SplitKeysError(ModelFileError):
    """The keys that describe a split model are wrong or missing."""

    status = 33


class SplitPartError(ModelFileError):
    """A part of a split model is missing, or is another part's or another model's."""

    status = 34


class ModelArchitectureError(ModelFileError):
    """An architecture that is not run."""

    status = 40


class ModelKeyMissingError(ModelFileError):
    """A required key is missing."""

    status = 41


class ModelKeyTypeError(ModelFileError):
    """A key of the wrong type."""

    status = 42


class ModelKeyValueError(ModelFileError):
    """A key's value is out of its range or not implemented."""

    status = 43


class ModelLayerKindsError(ModelFileError):
    """The layers' kinds are wrong or contradict each other."""

    status = 44


class ModelVocabularyError(ModelFileError):
    """Token list, token types or special ids do not fit."""

    status = 45


class ModelTensorMissingError(ModelFileError):
    """A tensor that the model needs is missing."""

    status = 46


class ModelTensorExtraError(ModelFileError):
    """A tensor that the model does not use."""

    status = 47


class ModelTensorTypeError(ModelFileError):
    """A tensor's type is not computed with in this place."""

    status = 48


class ModelTensorShapeError(ModelFileError):
    """A tensor's dimensions are not those that the keys ask for."""

    status = 49


class StateError(LlamaK3Error):
    """Base: a saved sequence that cannot be read or written."""


class StateOpenError(StateError):
    """The file is missing or unreadable."""

    status = 60


class StateFormatError(StateError):
    """Magic, version or sizes are wrong."""

    status = 61


class StateChecksumError(StateError):
    """The contents do not match their checksum."""

    status = 62


class StateModelError(StateError):
    """Made with another model."""

    status = 63


class StateGeometryError(StateError):
    """Made with another cache type."""

    status = 64


class StateWriteError(StateError):
    """The file could not be written."""

    status = 65


def _subclasses(base: type[LlamaK3Error]) -> list[type[LlamaK3Error]]:
    return [base, *(found for child in base.__subclasses__() for found in _subclasses(child))]


BY_STATUS: dict[int, type[LlamaK3Error]] = {
    kind.status: kind for kind in _subclasses(LlamaK3Error) if kind.status is not None
}
"""Class of each status but LLAMA_K3_OK."""


def check(status: int, message: str) -> None:
    """Raise the class of `status`, with the library's message; 0 is success."""
    if status == 0:
        return
    kind = BY_STATUS.get(status)
    if kind is None:
        raise LlamaK3Error(f"status {status} of the library has no class here: {message}")
    raise kind(message)
