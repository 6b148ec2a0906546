"""Which noisy max answers the queries, with which noise and caps."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from accounting.events import ConfidentGNMax, GNMax, InteractiveGNMax, LNMax, NoisyMax

_NEEDS = {
    "lnmax": ("scale",),
    "gnmax": ("sigma",),
    "confident-gnmax": ("sigma", "threshold", "threshold_sigma"),
    "interactive-gnmax": ("sigma", "threshold", "threshold_sigma"),
}
CONFIDENCE = 0.9


class AggregationSettings(BaseModel):
    """The mechanism. Its event at the caps is known before anything private is read."""

    model_config = ConfigDict(extra="forbid", frozen=True, title="Aggregation")

    mechanism: Literal["lnmax", "gnmax", "confident-gnmax", "interactive-gnmax"] = Field(
        "confident-gnmax",
        title="Mechanism",
        description="lnmax (Laplace), gnmax (Gaussian), confident-gnmax, or interactive-gnmax (at least 2 rounds).",
    )
    sigma: float | None = Field(
        None,
        gt=0,
        le=1e9,
        allow_inf_nan=False,
        title="Noise σ",
        description="Standard deviation, in votes, of the noise on every count.",
    )
    scale: float | None = Field(
        None,
        gt=0,
        le=1e9,
        allow_inf_nan=False,
        title="Laplace scale b",
        description="Scale, in votes, of the Laplace noise on every count.",
    )
    threshold: float | None = Field(
        None,
        allow_inf_nan=False,
        title="Threshold T",
        description="Votes that the noisy largest count must reach to be answered; of interactive-gnmax: the largest "
        "count less as many votes as the student expects for its class.",
    )
    threshold_sigma: float | None = Field(
        None,
        gt=0,
        le=1e9,
        allow_inf_nan=False,
        title="Noise of the test σ_T",
        description="Standard deviation, in votes, of the test's noise.",
    )
    confidence: float | None = Field(
        None,
        gt=0,
        lt=1,
        title="Confidence",
        description="Of interactive-gnmax: the student's label is kept where the test finds no disagreement and the "
        f"student's probability of it is above this; default: {CONFIDENCE}.",
    )
    max_queries: int | None = Field(
        None, ge=1, title="Cap on queries", description="Most queries asked; default: queries.count."
    )
    max_answers: int | None = Field(
        None, ge=1, title="Cap on answers", description="Most queries answered; default: the cap on queries."
    )
    delta: float = Field(1e-5, gt=0, lt=1, title="δ", description="The δ of the published (ε, δ).")

    @model_validator(mode="after")
    def _complete(self) -> "AggregationSettings":
        needed = _NEEDS[self.mechanism]
        for field in needed:
            if getattr(self, field) is None:
                raise ValueError(f"{field}: must be set for {self.mechanism}")
        for field in ("sigma", "scale", "threshold", "threshold_sigma"):
            if field not in needed and getattr(self, field) is not None:
                raise ValueError(f"{field}: is not a parameter of {self.mechanism}")
        if self.confidence is not None and self.mechanism != "interactive-gnmax":
            raise ValueError(f"confidence: is not a parameter of {self.mechanism}")
        return self

    @property
    def sure(self) -> float:
        """The probability above which a student's own label may stand."""
        return CONFIDENCE if self.confidence is None else self.confidence


def caps(settings: AggregationSettings, queries: int) -> tuple[int, int]:
    """The most queries asked and answered, when ``queries`` were chosen by the settings."""
    asked = settings.max_queries or queries
    return asked, min(settings.max_answers or asked, asked)


def event(settings: AggregationSettings, queries: int) -> NoisyMax:
    """What the run will have released, at its caps. Without a test every query asked is answered."""
    asked, answers = caps(settings, queries)
    if settings.mechanism == "lnmax":
        return LNMax(settings.scale or 0.0, answers)
    if settings.mechanism == "gnmax":
        return GNMax(settings.sigma or 0.0, answers)
    kind = ConfidentGNMax if settings.mechanism == "confident-gnmax" else InteractiveGNMax
    return kind(settings.sigma or 0.0, settings.threshold or 0.0, settings.threshold_sigma or 0.0, asked, answers)
