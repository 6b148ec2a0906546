"""What a run reads: the private, public and test parts and the columns that matter."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Selector = Annotated[int | str, Field(union_mode="left_to_right")]
TORCHVISION = ("MNIST",)


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
    source: Literal["digits", "MNIST", "parquet"] = Field(
        "digits",
        title="Source",
        description="Where records come from: scikit-learn's digits, torchvision, or Parquet.",
    )
    root: str = Field(
        "~/.cache/pate",
        title="Folder of torchvision datasets",
        description="Folder that holds torchvision datasets; what is missing is downloaded into it.",
    )
    path: str | None = Field(
        None,
        title="Parquet file",
        description="One Parquet file that private, public and test are split from by unit.",
    )
    label: str | None = Field(None, title="Label column", description="Column with the label (Parquet).")
    id: str | None = Field(
        None,
        title="Id column",
        description="Column with a stable id of each record (Parquet); becomes public_id.",
    )
    unit: str | None = Field(
        None,
        title="Unit column",
        description="Column naming the person or group that is protected (Parquet). Without it the unit is the record.",
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
        if self.source == "parquet":
            if self.label is None:
                raise ValueError("label: must name the label column of a parquet source")
            if len(self.classes) < 2:
                raise ValueError("classes: must list the names of at least 2 classes for a parquet source")
        else:
            for field in ("path", "label", "id", "unit"):
                if getattr(self, field) is not None:
                    raise ValueError(f"{field}: is for parquet sources, not for {self.source}")
            if self.classes and len(self.classes) != 10:
                raise ValueError(f"classes: {self.source} has 10 classes, not {len(self.classes)}")
        return self

    @property
    def class_names(self) -> tuple[str, ...]:
        """The C class names; the digits sources have '0' to '9'."""
        return tuple(self.classes) or tuple(str(digit) for digit in range(10))
