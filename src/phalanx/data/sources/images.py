"""A directory of images, one folder for each class."""

from __future__ import annotations

import os
import zlib
from typing import Any

import fsspec
import numpy as np
import tensorflow as tf

from phalanx.data.sources.file_kinds import IMAGE_ENDINGS
from phalanx.data.sources.files import expand_files, is_remote, read_in_graph, read_whole, stamps
from phalanx.data.sources.protocol import IndexedSource
from phalanx.errors import ConfigurationError, DataError


class ImageFolder(IndexedSource):
    """(image, label) for each file; uint8 of (height, width, channels) and int64.

    Attributes:
        class_names: the folders' names; a label is a place in it. Empty without classes.
    """

    def __init__(
        self,
        directory: str,
        files: list[str],
        labels: np.ndarray | None,
        class_names: tuple[str, ...],
        *,
        size: tuple[int, int] | None,
        channels: int,
    ) -> None:
        """Look at the first image only."""
        self.class_names = class_names
        self.labels = labels
        self.num_samples = len(files)
        self._files = files
        self._remote = is_remote(directory)
        self._size = size
        self._channels = channels
        with tf.init_scope(), tf.device("CPU:0"):
            self._names = tf.constant(files)
            self._numbers = None if labels is None else tf.constant(labels)
        height, width = size or _size_of(files[0], channels)
        self._shape = (height, width, channels)
        image = tf.TensorSpec(self._shape, tf.uint8)
        self.element_spec = image if labels is None else (image, tf.TensorSpec([], tf.int64))
        relative = [name.removeprefix(directory) for name in files]
        self.fingerprint = zlib.crc32("\n".join(relative).encode())

    def read(self, row: tf.Tensor) -> Any:
        """One image, with its label if there are classes."""
        content = read_in_graph(tf.gather(self._names, row), remote=self._remote)
        image = tf.io.decode_image(content, self._channels, expand_animations=False)
        if self._size is not None:
            resized = tf.image.resize(tf.cast(image, tf.float32), self._size)
            image = tf.cast(tf.round(tf.clip_by_value(resized, 0, 255)), tf.uint8)
        image = tf.ensure_shape(image, self._shape)
        return image if self._numbers is None else (image, tf.gather(self._numbers, row))

    def cache_key_parts(self) -> Any:
        """The files, their classes, and the shape of the images."""
        return (stamps(self._files), self.labels, self._size, self._channels)

    def where(self, row: int) -> str:
        """The file."""
        return f"the image {self._files[row]}"


def images(
    directory: str | os.PathLike[str],
    *,
    size: tuple[int, int] | None = None,
    channels: int = 3,
) -> ImageFolder:
    """Images below a directory: PNG, JPEG, GIF (the first frame) or BMP.

    Args:
        directory: holds a folder for each class, whose names in their order are the classes, or
            images alone, which then come without labels. A path, or a URL of fsspec's.
        size: (height, width) to which every image is resized; None where all have the size of
            the first, which is held.
        channels: 1 for grey, 3 for colours, 4 with transparency.

    Raises:
        DataError: there is no image, or images both in folders and next to them.
        ConfigurationError: `channels` is none of these.
    """
    if channels not in (1, 3, 4):
        raise ConfigurationError(f"images takes channels 1, 3 or 4; found {channels!r}.")
    (top,) = expand_files(directory)
    top = top.rstrip("/")
    by_folder = _find(top)
    loose = by_folder.pop("", [])
    if not loose and not by_folder:
        raise DataError(
            f"Asked for the images below {top}; found no file that ends in "
            f"{', '.join(IMAGE_ENDINGS)}."
        )
    if loose and by_folder:
        raise DataError(
            f"Asked for images by class below {top}; found {len(loose)} image(s) in no folder, "
            f"{loose[0]} the first. Give every class a folder, or name one folder alone."
        )
    names = tuple(sorted(by_folder))
    files = loose or [file for name in names for file in by_folder[name]]
    labels = None
    if names:
        labels = np.repeat(np.arange(len(names)), [len(by_folder[name]) for name in names])
    return ImageFolder(top, files, labels, names, size=size, channels=channels)


def from_directory(given: Any) -> ImageFolder | None:
    """Of a directory's path."""
    if not isinstance(given, (str, os.PathLike)):
        return None
    (name,) = expand_files(given)
    return images(name) if not is_remote(name) and tf.io.gfile.isdir(name) else None


def _find(top: str) -> dict[str, list[str]]:
    """The images by the first folder below `top`, in the order of their names."""
    if is_remote(top):
        files, path = fsspec.core.url_to_fs(top)
        try:
            inside = [name.removeprefix(path).lstrip("/") for name in files.find(path)]
        except OSError as error:
            raise DataError(f"Asked to read the file {top}; it cannot be read: {error}.") from error
    else:
        inside = [
            f"{folder.rstrip('/')}/{name}".removeprefix(f"{top}/")
            for folder, _, names in tf.io.gfile.walk(top)
            for name in names
        ]
    found: dict[str, list[str]] = {}
    for name in sorted(inside):
        if name.lower().endswith(IMAGE_ENDINGS):
            found.setdefault(name.split("/")[0] if "/" in name else "", []).append(f"{top}/{name}")
    return found


def _size_of(name: str, channels: int) -> tuple[int, int]:
    try:
        image = tf.io.decode_image(read_whole(name), channels, expand_animations=False)
    except tf.errors.InvalidArgumentError as error:
        raise DataError(
            f"Asked to learn the size of the images from {name}; found: {error.message[:99]}. "
            "Fix or remove it, or give size=(height, width)."
        ) from error
    return int(image.shape[0]), int(image.shape[1])
