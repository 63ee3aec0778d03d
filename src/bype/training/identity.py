"""What a run remembers of the data that it was trained on."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from bype.data.files import FileError
from bype.data.manifest import DTYPES
from bype.data.store import Store

_MAX_NUMBERS = 2**31


@dataclass(frozen=True)
class DataIdentity:
    """Enough to find the data again, to recognise them, and to use the model without them."""

    store: str
    fingerprint: str
    source: str
    shape: tuple[int, ...]
    dtype: str
    num_train: int
    classes: tuple[str, ...]
    names: tuple[str, ...]

    @classmethod
    def of(cls, store: Store) -> Self:
        """Describe a store."""
        manifest = store.manifest
        return cls(
            store=str(store.folder.absolute()),
            fingerprint=manifest.fingerprint,
            source=manifest.source,
            shape=manifest.shape,
            dtype=manifest.dtype,
            num_train=len(store.split("train")),
            classes=manifest.classes,
            names=manifest.names,
        )

    def to_fields(self) -> dict[str, Any]:
        """Return the fields for a file."""
        return dataclasses.asdict(self)

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any], path: Path) -> Self:
        """Read the fields of a file that may come from a stranger."""

        def texts(value: Any) -> bool:
            return isinstance(value, list) and all(isinstance(item, str) for item in value)

        shape, count = fields.get("shape"), fields.get("num_train")
        sound = (
            set(fields) == {field.name for field in dataclasses.fields(cls)}
            and all(isinstance(fields[name], str) for name in ("store", "fingerprint", "source", "dtype"))
            and fields["dtype"] in DTYPES
            and isinstance(shape, list)
            and len(shape) in (1, 3)
            and all(type(size) is int and 1 <= size <= _MAX_NUMBERS for size in shape)
            and math.prod(shape) <= _MAX_NUMBERS
            and type(count) is int
            and 1 <= count < 2**62
            and texts(fields["classes"])
            and texts(fields["names"])
            and len(fields["names"]) in (0, shape[0])
        )
        if not sound or not isinstance(shape, list):
            raise FileError(f"{path} does not describe its data as this bype does")
        lists = {"shape": tuple(shape), "classes": tuple(fields["classes"]), "names": tuple(fields["names"])}
        return cls(**{**fields, **lists})
