"""How released labels spread over classes, and over whom abstentions fell: post-processing of what was released.

An abstention has no label. It is counted under the class that the released student predicts for its public input, so
nothing here needs the votes. Teachers agree less on rare and hard classes; those abstain more, and the student then
learns them from fewer labels.
"""

from dataclasses import dataclass

import numpy as np

# A class is said to be under-represented below this share of an even spread of the released labels.
_FEW = 0.5
# So many queries must look like a class before its share of answers is remarked on.
_ENOUGH = 5


@dataclass(frozen=True)
class ClassRow:
    """A class in the release. ``asked`` and ``abstained`` count queries that the student puts there.

    ``answered``: the share of ``asked`` that got a label (of whatever class), None where there is none.
    """

    name: str
    released: int
    asked: int
    abstained: int
    answered: float | None
    accuracy: float | None


def class_rows(
    names: tuple[str, ...], labels: np.ndarray, predicted: np.ndarray, accuracy: tuple[float | None, ...]
) -> list[ClassRow]:
    """A row for each of the C classes, of labels (Q,), -1 for an abstention, and the student's predictions (Q,)."""
    released = np.bincount(labels[labels >= 0], minlength=len(names)).tolist()
    asked = np.bincount(predicted, minlength=len(names)).tolist()
    abstained = np.bincount(predicted[labels < 0], minlength=len(names)).tolist()
    share = [1 - left / all_ if all_ else None for all_, left in zip(asked, abstained, strict=True)]
    return [ClassRow(*row) for row in zip(names, released, asked, abstained, share, accuracy, strict=True)]


def warnings(rows: list[ClassRow]) -> list[str]:
    """A sentence for classes with few released labels, and one for classes whose queries mostly went unanswered."""
    answered, asked = sum(row.released for row in rows), sum(row.asked for row in rows)
    sentences = []
    few = [row for row in rows if row.released < _FEW * answered / len(rows)]
    if few:
        listed = ", ".join(f"{row.name} ({row.released:,})" for row in few)
        sentences.append(
            f"Under-represented among the {answered:,} released labels, with less than half of an even share: "
            f"{listed}. What is learned from the labels is least reliable there."
        )
    overall = 1 - sum(row.abstained for row in rows) / asked if asked else 0.0
    rare = [row for row in rows if row.asked >= _ENOUGH and row.answered is not None and row.answered < _FEW * overall]
    if rare:
        listed = ", ".join(f"{row.name} ({100 * (row.answered or 0):.1f}%)" for row in rare)
        sentences.append(
            f"Answered less than half as often as all queries ({100 * overall:.1f}%), by the student's prediction: "
            f"{listed}."
        )
    return sentences
