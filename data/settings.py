"""What a run reads: the private, public and test parts and the columns that matter."""

import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from data.csv_files import is_text_encoding

Selector = Annotated[int | str, Field(union_mode="left_to_right")]
Source = Literal["digits", "MNIST", "FashionMNIST", "SVHN", "CIFAR10", "parquet", "csv", "npz", "imagefolder"]
TORCHVISION = ("MNIST", "FashionMNIST", "SVHN", "CIFAR10")
TABLES = ("parquet", "csv")
FILES = (*TABLES, "npz", "imagefolder")
_TORCHVISION_CLASSES = {
    "FashionMNIST": (
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    ),
    "CIFAR10": ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
}
# Which sources a field is for; a field that is not named here is for all of them.
_FIELDS_OF = {
    "path": FILES,
    "label": (*TABLES, "npz"),
    "id": FILES,
    "unit": FILES,
    "subgroup": (*TABLES, "npz"),
    "encoding": ("csv",),
    "delimiter": ("csv",),
    "decimal": ("csv",),
    "image_size": ("imagefolder",),
}


def _groups(pattern: str) -> int | None:
    """Groups of a regular expression; None where it is none."""
    try:
        return re.compile(pattern).groups
    except (re.error, OverflowError, RecursionError):
        return None


class DataSettings(BaseModel):
    """The data of a run. Parts are chosen by a file path, a slice of a named part, or a count of units."""

    model_config = ConfigDict(extra="forbid", frozen=True, title="Data")

    name: str = Field(
        min_length=1,
        max_length=80,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        title="Dataset name",
        description="The private dataset's name on the ledger. It owns the budget: keep it when rows are edited.",
    )
    source: Literal["digits", "MNIST", "FashionMNIST", "SVHN", "CIFAR10", "parquet", "csv", "npz", "imagefolder"] = (
        Field(
            "digits",
            title="Source",
            description="Where records come from: scikit-learn's digits, torchvision, tables (parquet, csv), NumPy "
            "arrays (npz), or a folder of images with a folder a class (imagefolder).",
        )
    )
    root: str = Field(
        "~/.cache/pate",
        title="Folder of torchvision datasets",
        description="Folder that holds torchvision datasets; what is missing is downloaded into it.",
    )
    path: str | None = Field(
        None,
        title="One file for all parts",
        description="One file (imagefolder: folder) that private, public and test are split from by unit.",
    )
    label: str | None = Field(
        None, title="Label column", description="Column (npz: array; default labels) with the label."
    )
    id: str | None = Field(
        None,
        title="Id column",
        description="Column (npz: array) with a stable id of each record, which becomes public_id; imagefolder: path "
        "takes each image's path in its folder.",
    )
    unit: str | None = Field(
        None,
        title="Unit column",
        description="Column (npz: array) naming the person or group that is protected; imagefolder: a regular "
        "expression whose first group, found in an image's file name, names it. Without it the unit is the record.",
    )
    subgroup: list[str] = Field(
        default_factory=list,
        title="Subgroup columns",
        description="Columns (npz: arrays) of the test part by whose values accuracy is reported.",
    )
    encoding: str | None = Field(
        None, title="Encoding", description="Text encoding of CSV files (utf-8, cp1252, ...); default: UTF-8."
    )
    delimiter: str | None = Field(
        None,
        min_length=1,
        max_length=1,
        title="Delimiter",
        description="What separates CSV columns; default: found from the header line of the public file.",
    )
    decimal: Literal[".", ","] = Field(".", title="Decimal mark", description="Of numbers in CSV files.")
    image_size: int | None = Field(
        None,
        ge=4,
        le=1024,
        title="Image size",
        description="Images of an imagefolder are resized to this many pixels a side; default: the public images' "
        "own size, which must then be one.",
    )
    classes: list[str] = Field(
        default_factory=list,
        title="Classes",
        description="Names of the classes, in the order of their numbers. Never inferred from private data.",
    )
    private: Selector = Field(
        "train",
        title="Private part",
        description="A path, a part with a slice (test[:9000]), or a count of units.",
    )
    public: Selector = Field(
        "test[:9000]",
        title="Public part",
        description="Unlabelled public inputs: path, slice of a part, or count.",
    )
    test: Selector | None = Field(
        "test[9000:]",
        title="Test part",
        description="Labelled public data that the student is tested on; may be absent.",
    )
    public_benchmark: bool = Field(
        False,
        title="Public benchmark",
        description="True only where the 'private' data is really public: then non-private accuracy may be shown.",
    )

    @model_validator(mode="before")
    @classmethod
    def _class_names_are_text(cls, values: object) -> object:
        if isinstance(values, dict) and isinstance(values.get("classes"), list):
            if any(isinstance(name, bool) for name in values["classes"]):
                raise ValueError("classes: YAML reads yes and no without quotes as true and false; quote the names")
            values = {**values, "classes": [c if isinstance(c, str) else str(c) for c in values["classes"]]}
        return values

    @field_validator("encoding")
    @classmethod
    def _known_encoding(cls, name: str | None) -> str | None:
        if name is not None and not is_text_encoding(name):
            raise ValueError("must name a text encoding that Python knows, e.g. utf-8, cp1252, utf-16")
        return name

    @field_validator("delimiter")
    @classmethod
    def _possible_delimiter(cls, mark: str | None) -> str | None:
        if mark is not None and (not mark.isascii() or mark.isalnum() or mark in '"\r\n\0'):
            raise ValueError("must be one ASCII character, neither a letter, a digit, a quote nor a line end")
        return mark

    @model_validator(mode="after")
    def _consistent(self) -> "DataSettings":
        if len(set(self.classes)) != len(self.classes):
            raise ValueError("classes: every name must be different")
        if self.source not in TORCHVISION:
            for field in ("private", "public"):
                if field not in self.model_fields_set:
                    raise ValueError(f"{field}: must be set for source {self.source}")
            if "test" not in self.model_fields_set:
                object.__setattr__(self, "test", None)
        for field, sources in _FIELDS_OF.items():
            if self.source not in sources and getattr(self, field) != type(self).model_fields[field].get_default(
                call_default_factory=True
            ):
                raise ValueError(f"{field}: is for {', '.join(sources)} sources, not for {self.source}")
        if self.source in TABLES and self.label is None:
            raise ValueError(f"label: must name the label column of a {self.source} source")
        if self.source in FILES and len(self.classes) < 2:
            raise ValueError(f"classes: must list the names of at least 2 classes for source {self.source}")
        if self.source not in FILES and self.classes and len(self.classes) != 10:
            raise ValueError(f"classes: {self.source} has 10 classes, not {len(self.classes)}")
        if self.source == "imagefolder" and self.id not in (None, "path"):
            raise ValueError(f"id = {self.id!r}: must be path, or absent, for source imagefolder")
        if self.source == "imagefolder" and self.unit is not None and _groups(self.unit) != 1:
            raise ValueError(f"unit = {self.unit!r}: must be a regular expression with one group, e.g. ^([^_]+)_")
        return self

    @property
    def class_names(self) -> tuple[str, ...]:
        """The C class names: as declared, else those of the source ('0' to '9' for digits)."""
        return tuple(self.classes) or _TORCHVISION_CLASSES.get(self.source, tuple(str(digit) for digit in range(10)))
