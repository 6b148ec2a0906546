"""The teachers' votes on rows of the public part, from the teachers that were trained or from a file. PRIVATE."""

import numpy as np

from data.artifacts import read_votes
from data.errors import UserError
from data.examples import Examples
from flows import encoding, given_votes
from flows.context import Context


def rows_with_ids(public: Examples, ids: np.ndarray) -> np.ndarray:
    """Row numbers in ``public`` of the given public ids."""
    order = np.argsort(public.ids, kind="stable")
    at = np.minimum(np.searchsorted(public.ids, ids, sorter=order), len(order) - 1)
    rows = order[at]
    if not np.array_equal(public.ids[rows], ids):
        raise UserError(
            "release/queries.parquet: names public ids that data.public does not hold; rerun `pate queries`"
        )
    return rows


def votes_on(context: Context, public: Examples, rows: np.ndarray, title: str = "vote") -> np.ndarray:
    """Counts (Q, C) of every teacher's vote on these rows of the public part."""
    from teachers.votes import collect

    settings = context.settings
    if given_votes.file_of(settings) is not None:
        return read_votes(context.run.private / "teachers" / "votes.parquet")[rows]
    return collect(
        context.run.private / "teachers",
        encoding.for_votes(settings, context.encoder, public.features[rows]),
        len(settings.data.class_names),
        settings.teachers,
        progress=context.console.bar(title),
        encoder=context.encoder if settings.teachers.pretrained == "weights" else None,
    )
