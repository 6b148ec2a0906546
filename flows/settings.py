"""The settings of a run: one model that is the YAML file, the flow's parameters and the form in the Prefect UI."""

from pydantic import BaseModel, ConfigDict, Field, model_validator

from accounting.settings import LedgerSettings
from aggregation.settings import AggregationSettings
from baseline.settings import BaselineSettings
from data.settings import DataSettings
from student.pretraining_settings import CONTRASTIVE, PretrainingSettings
from student.settings import QuerySettings, StudentSettings
from teachers.settings import DIMENSIONS, WIDTH, TeacherSettings


class ReportSettings(BaseModel):
    """What the report says besides the numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, title="Report")

    title: str | None = Field(None, title="Title", description="Heading of the report; default: the run's name.")


class Settings(BaseModel):
    """A run of the pipeline."""

    model_config = ConfigDict(extra="forbid", frozen=True, title="PATE run")

    name: str = Field(
        "pate",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        max_length=80,
        title="Run name",
        description="Name of the run directory; default: the config's stem.",
    )
    run_root: str = Field("runs", min_length=1, title="Run root", description="Folder of the run directories.")
    seed: int = Field(
        0, ge=0, title="Seed", description="Of everything random but privacy noise: partition, training, queries."
    )
    data: DataSettings
    ledger: LedgerSettings
    pretraining: PretrainingSettings = PretrainingSettings()
    teachers: TeacherSettings = TeacherSettings()
    queries: QuerySettings = QuerySettings()
    aggregation: AggregationSettings
    student: StudentSettings = StudentSettings()
    baseline: BaselineSettings = BaselineSettings()
    report: ReportSettings = ReportSettings()

    @model_validator(mode="after")
    def _consistent(self) -> "Settings":
        asked, cap = self.queries.count, self.aggregation.max_queries
        if asked is not None and cap is not None and asked > cap:
            raise ValueError(f"queries.count = {asked}: must be at most aggregation.max_queries = {cap}")
        rounds, answers = self.queries.rounds, self.aggregation.max_answers
        if self.aggregation.mechanism == "interactive-gnmax" and rounds < 2:
            raise ValueError(
                f"queries.rounds = {rounds}: must be at least 2 for interactive-gnmax, whose student learns from the "
                "rounds before"
            )
        for field, most in (("queries.count", asked), ("aggregation.max_answers", answers)):
            if most is not None and rounds > most:
                raise ValueError(f"queries.rounds = {rounds}: must be at most {field} = {most}")
        classes = len(self.data.class_names)
        if self.teachers.empty_vote >= classes:
            raise ValueError(f"teachers.empty_vote = {self.teachers.empty_vote}: must be below the {classes} classes")
        self._check_pretraining()
        delta = self.ledger_delta
        for field, value in (
            ("aggregation.delta", self.aggregation.delta),
            ("baseline.delta", self.baseline.delta or delta),
        ):
            if value != delta:
                raise ValueError(f"{field} = {value:g}: must be the ledger's delta = {delta:g} (one δ an account)")
        return self

    def _check_pretraining(self) -> None:
        """Who can make use of an encoder's features, or start from its weights."""
        method, teachers, baseline = self.pretraining.method, self.teachers, self.baseline
        if teachers.pretrained == "weights":
            if method != CONTRASTIVE:
                raise ValueError(
                    f"pretraining.method = {method!r}: must be contrastive for teachers.pretrained: weights"
                )
            if teachers.model not in ("logistic", "mlp"):
                raise ValueError(
                    f"teachers.model = {teachers.model!r}: must be logistic or mlp for teachers.pretrained: weights, "
                    "what follows the encoder's layers"
                )
        if not self.pretraining.enabled:
            return
        made = self.pretraining.width, self.pretraining.dimensions
        if method == CONTRASTIVE and self.student.model == "convnet" and made != (WIDTH, DIMENSIONS):
            raise ValueError(
                f"pretraining.width, pretraining.dimensions = {made[0]}, {made[1]}: must be {WIDTH}, {DIMENSIONS} for "
                "student.model: convnet, which starts from the encoder's weights"
            )
        if teachers.pretrained == "features" and teachers.model == "cnn":
            raise ValueError(
                "teachers.model = 'cnn': is for images, and with pretraining teachers see its features; take logistic "
                "or mlp, or teachers.pretrained: none"
            )
        if baseline.enabled and baseline.features and baseline.model in ("tanh-cnn", "gn-cnn", "scattering"):
            raise ValueError(
                f"baseline.model = {baseline.model!r}: is for images, and with pretraining the baseline sees its "
                "features; take auto, logistic or tanh-mlp, or baseline.features: false"
            )

    @property
    def ledger_delta(self) -> float:
        """δ of the ledger account."""
        return self.ledger.delta if self.ledger.delta is not None else self.aggregation.delta

    @property
    def ledger_url(self) -> str:
        """SQLAlchemy URL of the ledger."""
        return self.ledger.url or f"sqlite:///{self.run_root}/ledger.sqlite"

    @property
    def unit(self) -> str:
        """The unit of privacy, in the words of the statement: the unit column, else the id column, else the record."""
        if self.data.source == "imagefolder" and self.data.unit is not None:
            return f"group of image files ({self.data.unit})"
        return self.data.unit or "record"
