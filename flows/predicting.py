"""``pate predict``: new inputs labelled by a run's released student."""

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from data.errors import UserError
from data.store import atomic


def release_of(run: str, run_root: Path) -> Path:
    """The release folder of a run: a path, or a name under the run root."""
    for root in (Path(run), run_root / run):
        if (root / "release" / "student.json").is_file():
            return root / "release"
    raise UserError(f"RUN = {run!r}: no run directory with a student, neither as a path nor under {run_root}")


def predict_file(release: Path, file: Path, out: Path | None) -> dict[str, Any]:
    """Predictions (row, label, probability; of a folder also path) to ``out``, or as CSV to standard output."""
    from student.prediction import predictions_table

    table: pa.Table = predictions_table(release, file)
    if out is None:
        pyarrow.csv.write_csv(table, sys.stdout.buffer)
        sys.stdout.flush()
    elif out.suffix == ".csv":
        with atomic(out) as temporary:
            pyarrow.csv.write_csv(table, temporary)
    elif out.suffix == ".parquet":
        with atomic(out) as temporary:
            pyarrow.parquet.write_table(table, temporary)
    else:
        raise UserError(f"--out = {str(out)!r}: must end in .parquet or .csv")
    return {"rows": len(table), "out": None if out is None else str(out.resolve())}
