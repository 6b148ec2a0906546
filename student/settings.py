"""How queries are chosen and the student is trained: public data and released labels only."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from teachers.settings import model_name


class QuerySettings(BaseModel):
    """Which public inputs the teachers are asked about."""

    model_config = ConfigDict(extra="forbid", frozen=True, title="Queries")

    strategy: Literal["all", "random", "prototypes"] = Field(
        "random",
        title="Strategy",
        description="all (in order), random, or prototypes (inputs nearest to the centres of clusters); of several "
        "rounds, the first. Later ones ask what the student is unsure of.",
    )
    count: int | None = Field(
        None,
        ge=1,
        title="Queries",
        description="Number of queries, of all rounds together; default: all public inputs (strategy all).",
    )
    rounds: int = Field(
        1,
        ge=1,
        le=100,
        title="Rounds",
        description="Rounds of queries; each later one is chosen by a student trained on the labels so far.",
    )


class StudentSettings(BaseModel):
    """The student, trained on released labels and unlabelled public inputs."""

    model_config = ConfigDict(extra="forbid", frozen=True, title="Student")

    method: Literal["supervised", "self-training", "label-spreading", "consistency"] = Field(
        "label-spreading",
        title="Method",
        description="supervised (released labels alone), self-training, label-spreading (a model on spread labels), or "
        "consistency (spread labels first, then a network's own on changed images).",
    )
    model: str = Field(
        "mlp",
        title="Model",
        description="logistic, mlp, cnn, convnet (for images: wider, with batch normalisation; what an encoder is made "
        "of), or sklearn: and the import path of a classifier.",
    )
    epochs: int = Field(
        60, ge=1, title="Epochs", description="Passes of a network over its training set; at least 500 steps are made."
    )
    batch_size: int = Field(64, ge=1, title="Batch size", description="Inputs in a step of a network.")
    learning_rate: float = Field(3e-3, gt=0, allow_inf_nan=False, title="Learning rate", description="Of AdamW.")
    weight_decay: float = Field(1e-3, ge=0, allow_inf_nan=False, title="Weight decay", description="Of AdamW.")
    variations: bool = Field(
        True,
        title="Variations of images",
        description="Train on slightly shifted, turned and scaled copies of images too.",
    )
    iterations: int = Field(
        3,
        ge=0,
        le=100,
        title="Iterations",
        description="Of self-training: times that a student labels the pool for its successor.",
    )
    neighbours: int = Field(5, ge=1, title="Neighbours", description="Of the graph that labels spread over.")
    components: int = Field(
        40, ge=1, title="Components", description="Principal components that inputs are compared in."
    )
    alpha: float = Field(
        0.9,
        gt=0,
        lt=1,
        title="Spreading",
        description="Share of a label that comes from neighbours; the rest is what was released.",
    )
    own_targets: float = Field(
        0.3,
        ge=0,
        le=1,
        title="Own targets",
        description="Of consistency: share of the epochs after which targets are the student's own predictions.",
    )
    confidence: float = Field(
        0.8, ge=0, lt=1, title="Confidence", description="Of consistency: least probability of a target of its own."
    )
    averaging: float = Field(
        0.995, ge=0, lt=1, title="Averaging", description="Of consistency: decay of the weights' moving average."
    )
    precision: Literal["full", "mixed"] = Field(
        "full",
        title="Precision",
        description="Of a network's forward passes in training: float32, or bfloat16 where it is safe (for processors "
        "that have it).",
    )
    params: dict[str, Any] = Field(
        default_factory=dict,
        title="Estimator's parameters",
        description="Keyword arguments of an sklearn: estimator.",
    )

    @field_validator("model")
    @classmethod
    def _model(cls, value: str) -> str:
        return model_name(value, "convnet")
