"""A user's own network as a teacher: ``module:<import path>`` of a callable (shape, classes) -> torch.nn.Module.

It maps inputs (N, *shape), float32 and pixels divided by 255, to logits (N, classes). Its initial weights are those
that torch's global generator gives from the teacher's own stream. What a teacher may depend on is its shard and stream
alone, so a module that draws random numbers while it trains (dropout: its draws would depend on what other teachers
drew before) or that shares weights between calls is refused; what is checked here is checked on made-up records. The
code runs in the private zone, with the rights of whoever runs it.
"""

import importlib
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from data.errors import UserError
from teachers.settings import MODULE, TeacherSettings
from teachers.vectorised import Place, train_group

_GENERATOR = threading.Lock()
_FIELD = "teachers.model"


def build(path: str, shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """The module with initial weights of a seed; torch's global generator is left as it was.

    Raises UserError, in one line, for what cannot be imported or called, or gives no module.
    """
    return made(path, _FIELD, {"shape": shape, "classes": classes}, seed)


def made(path: str, field: str, arguments: dict[str, Any], seed: int) -> nn.Module:
    """What the callable at a path gives for its ``arguments``, by position; ``field``: of the settings, for errors.

    One thread of a process at a time, since there is one global generator.
    """
    names = f"({', '.join(arguments)})"
    with _GENERATOR, torch.random.fork_rng(devices=[]):
        # An import may draw too.
        make = _imported(path, field, names)
        torch.default_generator.manual_seed(seed)
        try:
            network = make(*arguments.values())
        except MemoryError:
            raise
        except Exception as error:
            given = f"({', '.join(map(str, arguments.values()))})"
            raise UserError(f"{field} = {path!r}: must be callable with {names} = {given} ({reason(error)})") from None
    if not isinstance(network, nn.Module):
        raise UserError(f"{field} = {path!r}: must give a torch.nn.Module, gives {type(network).__name__}")
    return network.to("cpu", torch.float32)


def check(settings: TeacherSettings, shape: tuple[int, ...], classes: int, vectorised: bool) -> None:
    """Refuse a module that no shard could be trained with, or whose teachers would not be independent."""
    path = settings.model
    network, same, other = (build(path, shape, classes, seed) for seed in (0, 0, 1))
    parameters = [p for p in network.parameters() if p.requires_grad]
    if not parameters:
        raise UserError(f"{_named(path)}: has no parameter to train")
    if {p.data_ptr() for p in network.parameters()} & {p.data_ptr() for p in other.parameters()}:
        raise UserError(f"{_named(path)}: must make new parameters at each call; these are shared between calls")
    states = network.state_dict(), same.state_dict()
    if states[0].keys() != states[1].keys() or any(not torch.equal(states[0][n], states[1][n]) for n in states[0]):
        raise UserError(f"{_named(path)}: must draw its initial weights from torch's global generator")
    inputs = torch.rand(8, *shape, generator=torch.Generator().manual_seed(0))
    _check_outputs(path, network, inputs, classes)
    if vectorised:
        _check_vectorised(settings, network, inputs.numpy(), classes)


def _check_outputs(path: str, network: nn.Module, inputs: torch.Tensor, classes: int) -> None:
    state = torch.get_rng_state()
    try:
        for rows in (inputs, inputs[:1]):
            outputs = network.train()(rows)
            if not isinstance(outputs, torch.Tensor) or outputs.shape != (len(rows), classes):
                shown = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
                wanted = f"{tuple(rows.shape)} to {(len(rows), classes)}"
                raise UserError(f"{_named(path)}: must map {wanted}, gives {shown}")
            loss = nn.functional.cross_entropy(outputs.float(), torch.zeros(len(rows), dtype=torch.long))
            torch.autograd.grad(loss, [p for p in network.parameters() if p.requires_grad])
        if not torch.equal(state, torch.get_rng_state()):
            raise UserError(f"{_named(path)}: must not draw random numbers in training (dropout, for one)")
    except (UserError, MemoryError):
        raise
    except Exception as error:
        raise UserError(
            f"{_named(path)}: does not train even on made-up records of shape {tuple(inputs.shape[1:])}, or on a "
            f"single one ({reason(error)})"
        ) from None
    finally:
        torch.set_rng_state(state)


def _check_vectorised(settings: TeacherSettings, network: nn.Module, inputs: np.ndarray, classes: int) -> None:
    """A blank record in a batch must count nothing, so a record's output may depend on that record alone."""
    refused = f"teachers.strategy = 'vectorised': {_named(settings.model)} "
    if dict(network.named_parameters()).keys() != network.state_dict().keys() or not all(
        p.requires_grad for p in network.parameters()
    ):
        raise UserError(f"{refused}must have trainable parameters only, no buffers; use loop")
    rows = torch.tensor(inputs)
    others = rows.clone()
    others[1:] = 1 - others[1:]
    with torch.no_grad():
        alike = torch.allclose(network.train()(rows)[0], network(others)[0], atol=1e-5)
    if not alike:
        raise UserError(f"{refused}must not mix the records of a batch (batch normalisation, for one); use loop")
    quick = settings.model_copy(update={"epochs": 1, "batch_size": 2, "shift": 0})
    labels = np.arange(len(inputs), dtype=np.int32) % classes
    try:
        train_group([Place(network, inputs, labels, 0), Place(network, inputs[:3], labels[:3], 1)], quick, "cpu")
    except MemoryError:
        raise
    except Exception as error:
        raise UserError(f"{refused}does not go with torch.func.vmap ({reason(error)}); use loop") from None


def _imported(path: str, field: str, arguments: str) -> Callable[..., Any]:
    module, _, name = path.removeprefix(MODULE).rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:
        raise UserError(
            f"{field} = {path!r}: cannot be imported ({reason(error)}); give module:<module>.<callable>, its folder on "
            "PYTHONPATH"
        ) from None
    if not callable(found):
        raise UserError(f"{field} = {path!r}: must be callable with {arguments}")
    make: Callable[..., Any] = found
    return make


def _named(path: str) -> str:
    return f"{_FIELD} = {path!r}"


def reason(error: Exception) -> str:
    """The first line of what the user's code raised, which it raised on made-up records."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__
