"""The rival: DP-SGD on the private records, at the ε and δ that the labels are published with."""

from pydantic import BaseModel, ConfigDict, Field


class BaselineSettings(BaseModel):
    """DP-SGD. Rate, steps and constants are settings, never computed from the number of private records.

    The defaults were chosen on the digits, a public benchmark, for about 1200 private records: full batches.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, title="Baseline")

    enabled: bool = Field(True, title="Enabled", description="Whether the DP-SGD baseline is trained and charged.")
    epsilon: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        title="ε",
        description="ε of the baseline; default: the ε of the labels.",
    )
    delta: float | None = Field(
        None,
        gt=0,
        lt=1,
        title="δ",
        description="δ of the baseline; must be the ledger's; default: that of aggregation.",
    )
    model: str = Field(
        "auto",
        pattern="^(auto|logistic|tanh-mlp|tanh-cnn|gn-cnn|scattering)$",
        title="Network",
        description="logistic, tanh-mlp, tanh-cnn, gn-cnn, scattering (linear on fixed wavelets of images), or auto: "
        "scattering for images, logistic for tables.",
    )
    features: bool = Field(
        True,
        title="Features",
        description="Whether it too is trained on the features of pretraining, where there is one.",
    )
    sampling_rate: float = Field(
        1.0,
        gt=0,
        le=1,
        title="Sampling rate",
        description="Probability that a unit enters a step (Poisson sampling).",
    )
    batch_size: int = Field(
        1200,
        ge=1,
        title="Nominal batch",
        description="Constant that the noisy sum of gradients is divided by: about sampling_rate × the units expected.",
    )
    steps: int = Field(30, ge=1, title="Steps", description="Number of noisy steps.")
    clip: float = Field(
        0.1, gt=0, allow_inf_nan=False, title="Clipping norm", description="L2 bound of a unit's gradient."
    )
    learning_rate: float = Field(
        300.0, gt=0, allow_inf_nan=False, title="Learning rate", description="Of SGD with momentum."
    )
    momentum: float = Field(0.0, ge=0, lt=1, title="Momentum", description="Of SGD.")
    averaging: float = Field(
        0.2,
        ge=0,
        le=1,
        title="Averaging",
        description="Share of the last steps whose weights are averaged; 0 keeps the last weights.",
    )
    augmentation: int = Field(
        0,
        ge=0,
        le=64,
        title="Augmentation",
        description="Moved copies of an image whose mean gradient is clipped, in each step; 0: the image itself.",
    )
    shift: int = Field(2, ge=0, title="Shift", description="Pixels that a copy is moved by at most, each way.")
    micro_batch: int = Field(
        256,
        ge=1,
        title="Micro-batch",
        description="Per-unit gradients that a thread computes at once: memory only, the step and its noise are the "
        "same.",
    )
