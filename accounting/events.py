"""What a run releases, as frozen values that know no accountant.

An event says which mechanism ran, with which noise and at which *caps* (queries asked, answers given): the caps
are fixed before the first private query, so an event is the same whatever the data were, and its cost may be
published. Conventions: votes are counts per class of n teachers; one unit of privacy changes one teacher's vote
in every query (add/remove of a unit under the keyed-hash partition), that is v' = v - e_i + e_j.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from data.errors import UserError


def _positive(name: str, value: float) -> None:
    # `not x > 0` also refuses NaN, which `x <= 0` lets through.
    if not value > 0 or math.isinf(value):
        raise UserError(f"{name} = {value!r}: must be a finite number above 0")


def _order(value: float) -> None:
    if not value > 1 or math.isinf(value):
        raise UserError(f"order = {value!r}: must be a finite number above 1")


def _count(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UserError(f"{name} = {value!r}: must be a whole number, at least {least}")


@dataclass(frozen=True)
class LNMax:
    """Laplace noisy max [P17]: argmax_j v_j + Lap(scale), given at most ``answers`` times."""

    scale: float
    answers: int

    def __post_init__(self) -> None:
        _positive("scale", self.scale)
        _count("answers", self.answers, 0)


@dataclass(frozen=True)
class GNMax:
    """Gaussian noisy max [P18]: argmax_j v_j + N(0, sigma^2), given at most ``answers`` times."""

    sigma: float
    answers: int

    def __post_init__(self) -> None:
        _positive("sigma", self.sigma)
        _count("answers", self.answers, 0)


def _tested(sigma: float, threshold: float, threshold_sigma: float, queries: int, answers: int) -> None:
    _positive("sigma", sigma)
    _positive("threshold_sigma", threshold_sigma)
    if not math.isfinite(threshold):
        raise UserError(f"threshold = {threshold!r}: must be a finite number")
    _count("queries", queries, 0)
    _count("answers", answers, 0)
    if answers > queries:
        raise UserError(f"answers = {answers}: must be at most the {queries} queries asked")


@dataclass(frozen=True)
class ConfidentGNMax:
    """Confident-GNMax [P18]: if max_j v_j + N(0, threshold_sigma^2) >= threshold answer by GNMax, else abstain.

    At most ``queries`` tests and ``answers`` answers; the run stops at the last answer.
    """

    sigma: float
    threshold: float
    threshold_sigma: float
    queries: int
    answers: int

    def __post_init__(self) -> None:
        _tested(self.sigma, self.threshold, self.threshold_sigma, self.queries, self.answers)


@dataclass(frozen=True)
class InteractiveGNMax:
    """Interactive-GNMax [P18]: if max_j (v_j - n p_j) + N(0, threshold_sigma^2) >= threshold answer by GNMax.

    p is the student's prediction for the query, a function of public inputs and of what was released before; n is
    the number of teachers. Else the student's own label stands where it is sure of it, or the query abstains: both
    are known from p and the test. At most ``queries`` tests and ``answers`` answers.
    """

    sigma: float
    threshold: float
    threshold_sigma: float
    queries: int
    answers: int

    def __post_init__(self) -> None:
        _tested(self.sigma, self.threshold, self.threshold_sigma, self.queries, self.answers)


@dataclass(frozen=True)
class DPSGD:
    """DP-SGD: ``steps`` Gaussian mechanisms of ``noise_multiplier``, each on a Poisson sample of the units."""

    noise_multiplier: float
    sampling_rate: float
    steps: int

    def __post_init__(self) -> None:
        _positive("noise_multiplier", self.noise_multiplier)
        if not 0 < self.sampling_rate <= 1:
            raise UserError(f"sampling_rate = {self.sampling_rate!r}: must be above 0 and at most 1")
        _count("steps", self.steps, 0)


@dataclass(frozen=True)
class Gaussian:
    """``count`` releases of a vector plus N(0, sigma^2 I); one unit moves it by at most ``sensitivity`` (L2)."""

    sigma: float
    sensitivity: float
    count: int

    def __post_init__(self) -> None:
        _positive("sigma", self.sigma)
        _positive("sensitivity", self.sensitivity)
        _count("count", self.count, 0)


@dataclass(frozen=True)
class Laplace:
    """``count`` releases of a number plus Lap(scale); one unit moves it by at most ``sensitivity``."""

    scale: float
    sensitivity: float
    count: int

    def __post_init__(self) -> None:
        _positive("scale", self.scale)
        _positive("sensitivity", self.sensitivity)
        _count("count", self.count, 0)


@dataclass(frozen=True)
class PureDP:
    """``count`` releases by mechanisms of which only (epsilon, 0)-DP is known, each for any earlier outcomes.

    There is no event for what is only known to be (epsilon, delta)-DP: its Renyi divergence may be infinite, so a
    ledger at one order cannot account for it.
    """

    epsilon: float
    count: int

    def __post_init__(self) -> None:
        _positive("epsilon", self.epsilon)
        _count("count", self.count, 0)


@dataclass(frozen=True)
class Sanitized:
    """A number f that depends on votes, released once as f + S sigma_ss N(0, 1), S its beta-smooth sensitivity.

    f is a Rényi cost at ``order`` over fixed queries; the labels are an event of their own. With ``sigma_log_scale``
    log S + beta sigma_log_scale N(0, 1) is released too: without it nobody may be told the noise's scale.
    """

    order: float
    beta: float
    sigma_ss: float
    sigma_log_scale: float | None = None

    def __post_init__(self) -> None:
        _order(self.order)
        _positive("beta", self.beta)
        _positive("sigma_ss", self.sigma_ss)
        if self.sigma_log_scale is not None:
            _positive("sigma_log_scale", self.sigma_log_scale)
        # Above it the cost at this order is infinite.
        most = -0.5 * math.log1p(-1 / self.order)
        if not self.beta < most * (1 - 1e-9):
            raise UserError(f"beta = {self.beta!r}: must be below {most:.6g} for order {self.order:g}")


@dataclass(frozen=True)
class Tested:
    """Labels of fixed queries, or a refusal: propose-test-release on the cost at ``order`` that the votes show.

    Released are the labels iff d* + N(0, sigma_d^2) >= sigma_d Phi^-1(1 - delta), d* the number of changed votes per
    query below which the cost stays within ``rho``; else the refusal, charged alike. ``delta`` is what the test may
    fail with: it adds to the delta of the conversion.
    """

    order: float
    rho: float
    sigma_d: float
    delta: float

    def __post_init__(self) -> None:
        _order(self.order)
        _positive("rho", self.rho)
        _positive("sigma_d", self.sigma_d)
        if not 0 < self.delta < 0.5:
            raise UserError(f"delta = {self.delta!r}: must be above 0 and below 0.5")


# A test decides whether a query is answered.
Thresholded = ConfidentGNMax | InteractiveGNMax
NoisyMax = LNMax | GNMax | ConfidentGNMax | InteractiveGNMax
# Mechanisms outside PATE that a ledger may hold beside it.
Generic = Gaussian | Laplace | PureDP
# Releases of which the size of the cost was learnt from votes.
DataDependent = Sanitized | Tested
Event = NoisyMax | DPSGD | Generic | DataDependent

_KINDS: dict[str, type[Event]] = {
    "lnmax": LNMax,
    "gnmax": GNMax,
    "confident-gnmax": ConfidentGNMax,
    "interactive-gnmax": InteractiveGNMax,
    "dp-sgd": DPSGD,
    "gaussian": Gaussian,
    "laplace": Laplace,
    "pure-dp": PureDP,
    "sanitized": Sanitized,
    "tested": Tested,
}


def event_to_dict(event: Event) -> dict[str, Any]:
    """``{"mechanism": name, **fields}``: what the ledger and the journal store.

    >>> event_to_dict(GNMax(sigma=40.0, answers=3))
    {'mechanism': 'gnmax', 'sigma': 40.0, 'answers': 3}
    """
    name = next(name for name, kind in _KINDS.items() if isinstance(event, kind))
    return {"mechanism": name, **dataclasses.asdict(event)}


def event_from_dict(record: dict[str, Any]) -> Event:
    """The inverse of :func:`event_to_dict`.

    >>> event_from_dict({"mechanism": "gnmax", "sigma": 40.0, "answers": 3})
    GNMax(sigma=40.0, answers=3)
    """
    fields = dict(record)
    name = fields.pop("mechanism", None)
    if name not in _KINDS:
        raise UserError(f"mechanism = {name!r}: must be one of {', '.join(_KINDS)}")
    return _KINDS[name](**fields)
