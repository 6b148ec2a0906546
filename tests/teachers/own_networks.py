"""Networks of a user's own, good and bad, as ``module:tests.teachers.own_networks.<name>``."""

import math

import torch
from torch import nn

_SHARED = nn.Linear(64, 10)
number = 3


def net(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 16), nn.Tanh(), nn.Linear(16, classes))


class Tied(nn.Module):
    """Weights used twice, a frozen layer and a buffer."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.into = nn.Linear(math.prod(shape), 16)
        self.again = nn.Linear(16, 16)
        self.again_too = self.again
        self.out = nn.Linear(16, classes)
        self.out.bias.requires_grad_(False)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.again_too(self.again(self.into(x.flatten(1)).relu()).relu()) * self.scale)


class Fussy(nn.Module):
    """Fails, quoting what it saw, on records of its shard that it does not like."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(math.prod(shape), classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.flatten(1)[:, 0].max() > 10:
            raise ValueError(f"secret {x.flatten(1)[:, 0].max()}")
        return self.layer(x.flatten(1))


def dropping(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(math.prod(shape), classes))


def normalising(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.BatchNorm2d(shape[0]), nn.Flatten(), nn.Linear(math.prod(shape), classes))


class Centring(nn.Module):
    """Mixes the records of a batch without a buffer."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(math.prod(shape), classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.flatten(1) - x.flatten(1).mean(0))


class Branching(nn.Module):
    """Decides by a value, which vmap cannot."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(math.prod(shape), classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.flatten(1)) if float(x.sum()) > -1e9 else self.layer(-x.flatten(1))


def shared(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), _SHARED)


def restless(shape: tuple[int, ...], classes: int) -> nn.Module:
    made = net(shape, classes)
    generator = torch.Generator()
    generator.seed()
    with torch.no_grad():
        made[1].weight.uniform_(generator=generator)
    return made


def narrow(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes - 1))


def unused(shape: tuple[int, ...], classes: int) -> nn.Module:
    made = net(shape, classes)
    made.register_parameter("idle", nn.Parameter(torch.zeros(1)))
    return made


def weightless(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Flatten()


def failing(shape: tuple[int, ...], classes: int) -> nn.Module:
    raise ValueError("two\nlines")


def no_module(shape: tuple[int, ...], classes: int) -> int:
    return 1
