"""The rival: DP-SGD on the private records, at the ε and δ that the labels are published with."""

from pydantic import BaseModel, ConfigDict, Field


class BaselineSettings(BaseModel):
    """DP-SGD. Rate and steps are settings, never computed from the number of private records."""

    model_config = ConfigDict(extra="forbid", frozen=True, title="Baseline")

    enabled: bool = Field(
        True, title="Enabled", description="Whether the DP-SGD baseline is trained and charged."
    )
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
        "cnn",
        pattern="^(logistic|mlp|cnn)$",
        title="Network",
        description="logistic, mlp or cnn (tanh, group norm).",
    )
    sampling_rate: float = Field(
        0.05,
        gt=0,
        le=1,
        title="Sampling rate",
        description="Probability that a unit enters a step (Poisson sampling).",
    )
    batch_size: int = Field(
        64, ge=1, title="Nominal batch", description="Constant that the noisy sum of gradients is divided by."
    )
    steps: int = Field(400, ge=1, title="Steps", description="Number of noisy steps.")
    clip: float = Field(
        1.0, gt=0, allow_inf_nan=False, title="Clipping norm", description="L2 bound of a unit's gradient."
    )
    learning_rate: float = Field(
        0.5, gt=0, allow_inf_nan=False, title="Learning rate", description="Of SGD with momentum."
    )
    momentum: float = Field(0.9, ge=0, lt=1, title="Momentum", description="Of SGD.")
