"""How the teachers are trained."""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

NETWORKS = ("logistic", "mlp", "cnn")
MODULE = "module:"
VOTES = "votes:"
# Of a convnet and of an encoder (teachers.backbones): here, where settings find them without loading torch.
WIDTH, DIMENSIONS = 24, 128


def model_name(value: str, *more: str) -> str:
    """A network's name, one of ``more``, or ``sklearn:<import path>``."""
    if value in (*NETWORKS, *more) or (value.startswith("sklearn:") and value.removeprefix("sklearn:").count(".") >= 1):
        return value
    raise ValueError(f"must be one of {', '.join((*NETWORKS, *more))}, or sklearn:<import path of an estimator>")


def teacher_model(value: str) -> str:
    """What :func:`model_name` takes, ``module:<import path>`` of a network of the user's own, or ``votes:<file>``."""
    if value.startswith(VOTES) and value != VOTES:
        return value
    if value.startswith(MODULE) and value.removeprefix(MODULE).count(".") >= 1:
        return value
    try:
        return model_name(value)
    except ValueError:
        allowed = f"{', '.join(NETWORKS)}, sklearn:<import path of an estimator>, module:<import path> or votes:<file>"
        raise ValueError(f"must be one of {allowed}") from None


class TeacherSettings(BaseModel):
    """The ensemble: one model of one kind on each shard."""

    model_config = ConfigDict(extra="forbid", frozen=True, title="Teachers")

    count: int = Field(250, ge=1, le=1_000_000, title="Number of teachers", description="As many as shards, n.")
    model: str = Field(
        "mlp",
        title="Model",
        description="logistic, mlp, cnn, or an import path: sklearn: of a classifier, module: of a callable "
        "(shape, classes) that makes a torch module; or votes: and a file of votes made elsewhere.",
    )
    epochs: int = Field(40, ge=1, title="Epochs", description="Passes of a network over its shard.")
    batch_size: int = Field(32, ge=1, title="Batch size", description="Records in a step of a network.")
    learning_rate: float = Field(1e-2, gt=0, allow_inf_nan=False, title="Learning rate", description="Of AdamW.")
    weight_decay: float = Field(1e-4, ge=0, allow_inf_nan=False, title="Weight decay", description="Of AdamW.")
    shift: int = Field(
        0,
        ge=0,
        le=16,
        title="Shift",
        description="Pixels that a network's training images are moved by at most, at random, in each epoch.",
    )
    rotation: float = Field(
        0.0,
        ge=0,
        le=180,
        title="Rotation",
        description="Degrees that a network's training images are turned by at most, at random, in each epoch.",
    )
    scaling: float = Field(
        0.0,
        ge=0,
        le=0.5,
        title="Scaling",
        description="Share of their size that training images grow or shrink by at most, at random, in each epoch.",
    )
    params: dict[str, Any] = Field(
        default_factory=dict,
        title="Estimator's parameters",
        description="Keyword arguments of an sklearn: estimator.",
    )
    pretrained: Literal["features", "weights", "none"] = Field(
        "features",
        title="Pre-training",
        description="With pretraining, the model is trained on its features, or starts from its weights and trains "
        "these too (with a model logistic or mlp after them), or sees nothing of it.",
    )
    empty_vote: int = Field(
        0,
        ge=0,
        title="Vote of an untrainable shard",
        description="The class that a shard that cannot be trained votes for.",
    )
    chunk: int = Field(
        25,
        ge=1,
        title="Chunk",
        description="Teachers trained by one task, rounded up to whole groups; a chunk is redone whole.",
    )
    strategy: Literal["auto", "loop", "vectorised"] = Field(
        "auto",
        title="Strategy",
        description="Networks one after another (loop), or a group of them as one computation (vectorised).",
    )
    group: int | None = Field(
        None,
        ge=1,
        le=100_000,
        title="Group",
        description="Teachers of one vectorised computation; without a number, from the network's size.",
    )
    precision: Literal["full", "mixed"] = Field(
        "full",
        title="Precision",
        description="Of a network's forward passes in training: float32, or bfloat16 where it is safe (for GPUs, and "
        "processors that have it).",
    )
    runner: Literal["thread", "process", "dask", "ray"] = Field(
        "thread",
        title="Runner",
        description="What runs chunks side by side; sklearn: estimators gain from the others than thread only.",
    )
    workers: int = Field(2, ge=1, le=1024, title="Workers", description="Chunks trained side by side.")
    address: str | None = Field(
        None,
        min_length=1,
        title="Address",
        description="Of a Dask scheduler or a Ray cluster that sees run_root; without one, a cluster on this machine.",
    )
    gpus: float = Field(
        0,
        ge=0,
        le=16,
        title="GPUs",
        description="That one chunk takes of a Ray cluster, or of the resource GPU of a Dask cluster at the address.",
    )
    device: str = Field(
        "auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        title="Device",
        description="auto, cpu, cuda or cuda:NUMBER.",
    )

    _model = field_validator("model")(teacher_model)

    @model_validator(mode="after")
    def _cluster(self) -> Self:
        if self.address is not None and self.runner not in ("dask", "ray"):
            raise ValueError("address: is for runner dask or ray")
        if self.gpus and not (self.runner == "ray" or (self.runner == "dask" and self.address is not None)):
            raise ValueError("gpus: is for runner ray, or dask with an address")
        return self
