"""How an encoder is learned from public inputs, or which one of the user's own is used."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from teachers.settings import DIMENSIONS, MODULE, WIDTH

NONE, CONTRASTIVE = "none", "contrastive"


class PretrainingSettings(BaseModel):
    """Features of inputs, from public inputs alone: they cost no privacy.

    The defaults were chosen on MNIST, a public benchmark, for 9,000 public images.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, title="Pre-training")

    method: str = Field(
        NONE,
        title="Method",
        description="none; contrastive (an encoder of images, learned from the public part); or module: and the import "
        "path of a callable (shape) that makes a torch module, whose outputs are the features.",
    )
    epochs: int = Field(
        24, ge=1, title="Epochs", description="Passes over the public part, or over 20,000 of it anew in each."
    )
    batch_size: int = Field(300, ge=2, title="Batch size", description="Inputs that are told apart in a step.")
    learning_rate: float = Field(
        2e-3, gt=0, allow_inf_nan=False, title="Learning rate", description="Largest of AdamW's one cycle."
    )
    temperature: float = Field(
        0.5, gt=0, allow_inf_nan=False, title="Temperature", description="Of the contrastive loss."
    )
    width: int = Field(WIDTH, ge=1, le=512, title="Width", description="Channels of the first convolution.")
    dimensions: int = Field(
        DIMENSIONS, ge=2, le=4096, title="Dimensions", description="Numbers that the network makes of an image."
    )
    components: int = Field(
        40, ge=1, title="Features", description="Principal components of these numbers that are the features."
    )
    whitening: float = Field(
        0.5,
        ge=0,
        le=1,
        title="Whitening",
        description="Power of its eigenvalue that each component is divided by: 0 leaves them as they are, at 0.5 all "
        "vary alike.",
    )
    precision: Literal["full", "mixed"] = Field(
        "full",
        title="Precision",
        description="Of forward passes in training: float32, or bfloat16 where it is safe (for GPUs, and "
        "processors that have it).",
    )
    device: str = Field(
        "auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$", title="Device", description="auto, cpu, cuda or cuda:NUMBER."
    )

    @field_validator("method")
    @classmethod
    def _method(cls, value: str) -> str:
        if value in (NONE, CONTRASTIVE) or (value.startswith(MODULE) and value.removeprefix(MODULE).count(".") >= 1):
            return value
        raise ValueError("must be none, contrastive, or module:<import path of a callable>")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.method == CONTRASTIVE and self.components > self.dimensions:
            raise ValueError(f"components = {self.components}: must be at most dimensions = {self.dimensions}")
        return self

    @property
    def enabled(self) -> bool:
        """Whether there is an encoder."""
        return self.method != NONE
