"""The converter's exceptions: one family, one class per way in which an input can be wrong.

Every class has a `label`, a short fixed text that opens its message, so that a user can search for it and a
test can name it.
"""

from __future__ import annotations


class ConvertError(Exception):
    """Base of everything the converter refuses. The command prints it as one line and exits with 1."""

    label = "conversion failed"

    def __init__(self, detail: str, *, found: object = None, wanted: object = None) -> None:
        """`detail` names the thing; `found` and `wanted` are appended where they are given."""
        text = f"{self.label}: {detail}"
        if found is not None:
            text += f": found {found}"
        if wanted is not None:
            text += f"{',' if found is not None else ':'} wanted {wanted}"
        # Names come from files: what a terminal might act on is not shown.
        line = " ".join(text.split())
        super().__init__("".join(letter if letter.isprintable() else "?" for letter in line))


# The checkpoint's files.


class CheckpointError(ConvertError):
    label = "unusable checkpoint"


class JsonError(CheckpointError):
    label = "bad JSON"


class DuplicateNameError(JsonError):
    label = "name used twice"


class IndexFileError(CheckpointError):
    label = "bad index"


class MissingShardError(CheckpointError):
    label = "missing shard"


class TruncatedShardError(CheckpointError):
    label = "truncated shard"


class HeaderError(CheckpointError):
    label = "bad safetensors header"


class HeaderSizeError(HeaderError):
    label = "bad safetensors header length"


class OverlapError(HeaderError):
    label = "overlapping tensors in shard"


class HoleError(HeaderError):
    label = "hole in shard"


class ByteCountError(HeaderError):
    label = "byte count does not match shape"


# The checkpoint's tensors.


class TensorError(ConvertError):
    label = "wrong tensor"


class MissingTensorError(TensorError):
    label = "missing tensor"


class UnknownTensorError(TensorError):
    label = "unknown tensor"


class DuplicateTensorError(TensorError):
    label = "duplicate tensor"


class ShapeError(TensorError):
    label = "wrong shape"


class DtypeError(TensorError):
    label = "wrong type"


class UnpairedError(TensorError):
    label = "unpaired attention residual"


class PackedError(TensorError):
    label = "packed tensor that is not a routed expert"


class ValueRangeError(TensorError):
    label = "value out of range"


class HeadPaddingError(TensorError):
    label = "A_log beyond the head count is not zero"


# The configuration.


class ConfigError(ConvertError):
    label = "bad config"


class MissingFieldError(ConfigError):
    label = "missing config field"


class FieldTypeError(ConfigError):
    label = "wrong type of config field"


class FieldRangeError(ConfigError):
    label = "config field out of range"


class UnsupportedError(ConfigError):
    label = "unsupported config value"


class LayerListError(ConfigError):
    label = "bad layer list"


class LayerKindError(ConfigError):
    label = "layer in no list"


# The vocabulary.


class VocabError(ConvertError):
    label = "bad vocabulary"


class MissingVocabError(VocabError):
    label = "missing vocabulary"


class SpecialTokenError(VocabError):
    label = "bad special token"


class VocabSizeError(VocabError):
    label = "vocabulary does not fit the embedding"


# The output.


class OutputError(ConvertError):
    label = "cannot write"


class DiskSpaceError(OutputError):
    label = "disk too small"


class BusyError(OutputError):
    label = "output in use"


class VerifyError(ConvertError):
    label = "verification failed"
