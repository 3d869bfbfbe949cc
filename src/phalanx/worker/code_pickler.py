"""Functions by value, with the files that their code is from, so that tracebacks show lines."""

from __future__ import annotations

from types import CodeType
from typing import Any

import cloudpickle


class CodePickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    """A pickler of cloudpickle that keeps file names, which cloudpickle 3.1.3 replaces."""

    def file_of(self, code: CodeType) -> str:
        """The file name that the code has in a worker."""
        return code.co_filename

    def reducer_override(self, value: Any) -> Any:
        """See `pickle.Pickler.reducer_override`."""
        if isinstance(value, CodeType):
            _, arguments = self.dispatch_table[CodeType](value)
            return _code, (self.file_of(value), *arguments)
        return super().reducer_override(value)


def _code(file: str, *arguments: Any) -> CodeType:
    return CodeType(*arguments).replace(co_filename=file)
