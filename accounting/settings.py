"""Where the budget of the private dataset is kept, and how large it is."""

from pydantic import BaseModel, ConfigDict, Field


class LedgerSettings(BaseModel):
    """The budget ledger: one account a private dataset, across runs."""

    model_config = ConfigDict(extra="forbid", frozen=True, title="Ledger")

    url: str | None = Field(
        None,
        title="Ledger URL",
        description="SQLAlchemy URL; default: ledger.sqlite in the run root. Keep a password in the environment "
        "(${NAME}).",
    )
    epsilon: float = Field(
        gt=0,
        allow_inf_nan=False,
        title="Limit ε",
        description="Most that all releases from this dataset may spend together; a smaller stored limit holds.",
    )
    delta: float | None = Field(
        None, gt=0, lt=1, title="Limit δ", description="δ of the account; default: that of aggregation."
    )
    tested_delta: float | None = Field(
        None,
        ge=0,
        lt=1,
        title="δ of tests",
        description="Part of the account's δ that tested releases may fail with; fixed at opening; default: none.",
    )
