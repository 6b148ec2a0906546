"""Training one network, and asking it for probabilities.

Deterministic: shuffling draws from the call's own generator, so the same arguments give the same weights bit for bit
on one machine at one thread, and torch's global generator is left alone.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
from torch import nn
from torch.optim.adamw import adamw

from teachers.augmentation import Augmentation
from teachers.networks import as_input

# Input numbers in a batch below which one thread is used: 128 images of 28×28 are the first to gain from two.
SMALL_BATCH = 100_000
NONE = Augmentation()


def device_of(name: str) -> str:
    """The torch device that ``teachers.device`` means: ``auto`` is cuda where there is one, else cpu."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return name


def spread(name: str, number: int) -> str:
    """The device of job ``number`` where ``teachers.device`` leaves the choice among several GPUs: each in turn."""
    device = device_of(name)
    return (
        f"cuda:{number % torch.cuda.device_count()}" if device == "cuda" and torch.cuda.device_count() > 1 else device
    )


def fit(
    network: nn.Module,
    features: np.ndarray,
    targets: np.ndarray,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    weight_decay: float,
    seed: int,
    device: str = "cpu",
    augmentation: Augmentation = NONE,
    mixed: bool = False,
    channels_last: bool = False,
) -> bool:
    """Minimise the cross-entropy with AdamW, in place; the network is on the CPU afterwards.

    features: (N, *shape). targets: (N,) integer classes or (N, C) probabilities. The learning rate falls linearly to
    0 over the last half of the steps. Images are changed by ``augmentation`` anew in each epoch. ``mixed``: forward
    passes in bfloat16 where that is safe (torch's autocast). ``channels_last``: images reach the network with a pixel's
    channels side by side, which its views must be able to bear. Returns False where the loss or a parameter stopped
    being finite: the caller decides what that means.
    """
    device = device_of(device)
    network.to(device).train()
    inputs = as_input(features).to(device)
    wanted = _as_targets(targets).to(device)
    generator = torch.Generator().manual_seed(seed)
    step = adamw_of([p for p in network.parameters() if p.requires_grad], weight_decay)
    batches = -(-len(inputs) // batch_size)
    steps = max(epochs * batches, 1)
    finite = len(inputs) > 0
    with threads_for(batch_size * inputs[:1].numel()):
        for epoch in range(epochs):
            order = torch.randperm(len(inputs), generator=generator).to(device)
            seen = augmentation(inputs, generator) if augmentation.changes(inputs) else inputs
            for batch in range(batches):
                rows = order[batch * batch_size : (batch + 1) * batch_size]
                with torch.autocast(inputs.device.type, torch.bfloat16, enabled=mixed):
                    outputs = network(pixelwise(seen[rows]) if channels_last else seen[rows])
                loss = nn.functional.cross_entropy(outputs.float(), wanted[rows])
                step(loss, learning_rate * min(1.0, 2.0 * (1.0 - (epoch * batches + batch) / steps)))
            finite = finite and bool(torch.isfinite(loss))
            if not finite:
                break
    network.to("cpu").eval()
    return finite and all(bool(torch.isfinite(p).all()) for p in network.parameters())


@contextlib.contextmanager
def threads_for(numbers: int, small: int = SMALL_BATCH) -> Iterator[None]:
    """One thread where a step's input has under ``small`` numbers: waking others then costs more than they save."""
    threads = torch.get_num_threads()
    if numbers < small:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def rows_at_once(most: int, shape: tuple[int, ...]) -> int:
    """``most`` rows of up to 28×28 numbers, fewer of larger inputs: what a network makes of them must fit in memory."""
    return max(1, most * 784 // max(math.prod(shape), 784))


def input_blocks(features: np.ndarray, batch: int = 4096, device: str = "cpu") -> Iterator[torch.Tensor]:
    """A network's inputs on a device, ``batch`` rows (fewer of large inputs) at a time; at least one block."""
    batch = rows_at_once(batch, features.shape[1:])
    for start in range(0, max(len(features), 1), batch):
        yield as_input(features[start : start + batch]).to(device)


def outputs(network: nn.Module, blocks: Iterable[torch.Tensor]) -> np.ndarray:
    """The network's outputs (N, C) float32 of blocks that lie where it does."""
    network.eval()
    with torch.inference_mode():
        return torch.cat([network(block).cpu() for block in blocks]).numpy()


def logits(network: nn.Module, features: np.ndarray, batch: int = 4096) -> np.ndarray:
    """The network's outputs (N, C) float32, ``batch`` rows (fewer of large inputs) at a time, where it lies."""
    return outputs(network, input_blocks(features, batch, str(next(network.parameters()).device)))


def probabilities(network: nn.Module, features: np.ndarray, batch: int = 4096) -> np.ndarray:
    """The network's softmax (N, C) float32."""
    return torch.softmax(torch.from_numpy(logits(network, features, batch)), dim=1).numpy()


def adamw_of(parameters: list[nn.Parameter], weight_decay: float) -> Callable[[torch.Tensor, float], None]:
    """AdamW (Loshchilov and Hutter 2019) as a function of a loss and a learning rate, with torch's usual constants.

    Of torch.optim the function only: constructing its class imports a compiler, 1.3 s in every worker.
    """
    first = [torch.zeros_like(p) for p in parameters]
    second = [torch.zeros_like(p) for p in parameters]
    counts = [torch.zeros((), device=p.device) for p in parameters]
    targets: list[torch.Tensor] = list(parameters)

    def step(loss: torch.Tensor, learning_rate: float) -> None:
        gradients = [laid_out(g, p) for g, p in zip(torch.autograd.grad(loss, parameters), parameters, strict=True)]
        with torch.no_grad():
            adamw(
                targets,
                gradients,
                first,
                second,
                [],
                counts,
                fused=True,
                amsgrad=False,
                beta1=0.9,
                beta2=0.999,
                lr=learning_rate,
                weight_decay=weight_decay,
                eps=1e-8,
                maximize=False,
            )

    return step


def laid_out(gradient: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """A gradient in its parameter's memory layout: a fused AdamW goes through memory, not through indices."""
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter, requires_grad=False).copy_(gradient)


def pixelwise(images: torch.Tensor) -> torch.Tensor:
    """Images with a pixel's channels side by side in memory (torch's channels_last), which pooling is faster on.

    `to` and not `contiguous`, which leaves images of one channel as they are: torch then takes the other layout.
    """
    return images.to(memory_format=torch.channels_last)


def _as_targets(targets: np.ndarray) -> torch.Tensor:
    if targets.ndim == 2:
        return torch.from_numpy(np.array(targets, dtype=np.float32))
    return torch.from_numpy(np.array(targets, dtype=np.int64))
