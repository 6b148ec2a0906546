"""The code of a network of the user's own (``module:...``), as part of the key of the stage that uses it."""

import hashlib
import importlib.util
from pathlib import Path

from teachers.settings import MODULE


def digests(model: str) -> list[str]:
    """The digest of the module's own file, so that its stage runs anew when it is edited; else nothing.

    What that file imports is not followed. A module that cannot be found is refused when the run is checked.
    """
    if not model.startswith(MODULE):
        return []
    try:
        spec = importlib.util.find_spec(model.removeprefix(MODULE).rpartition(".")[0])
        code = Path(spec.origin).read_bytes() if spec is not None and spec.origin else b""
    except Exception:
        code = b""
    return [hashlib.sha256(code).hexdigest()]
