"""Clipped sums of the units' gradients, computed in blocks by several threads.

Each unit's gradient is torch's own derivative of that unit's loss, vectorised over the units of a block
(:mod:`torch.func`): it is a function of the weights, that unit's input and its label, and of nothing else in the block.
Of a single linear layer the gradients need not be written out (Goodfellow 2015, "Efficient Per-Example Gradient
Computations"): that of unit i is δᵢ ⊗ aᵢ, so its length is |δᵢ| · |aᵢ| and the clipped sum is one product of matrices.

A block is worked on by one thread with one torch thread; blocks, not the operations inside them, are what runs in
parallel. On small networks that is faster than several torch threads inside every operation, and the result is the
same bit for bit whatever the number of threads, since the blocks come back in their order.
"""

import contextlib
import copy
import queue
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

# One tensor for each parameter, in the order of ``network.parameters()``.
Gradients = list[torch.Tensor]
# What makes the inputs (B, K, …) and labels (B,) of a block of rows ready.
Block = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
Compute = Callable[[Block, Iterable[torch.Tensor]], Iterator[Gradients]]

# Above what rounding in float32 can add to a clipped gradient of any length, as in Opacus.
_MARGIN = 1e-6


def clipped_sum(network: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, clip: float) -> Gradients:
    """Σ g · min(1, clip / |g|) over B ≥ 0 units, g the gradient of the mean cross-entropy over a unit's K copies.

    inputs: (B, K, …), labels: (B,). |g| is over all parameters together. A unit whose gradient's length is not a
    finite number adds nothing.
    """
    layer = _linear(network)
    if layer is not None and inputs.shape[1] == 1:
        return _clipped_sum_of_linear(layer, inputs.flatten(1), labels, clip)
    rows = [gradient.flatten(1) for gradient in per_unit(network, inputs, labels)]
    factors = _factors(torch.stack([torch.linalg.vector_norm(row, dim=1) for row in rows]).norm(dim=0), clip)
    return [(factors @ row).view_as(p) for row, p in zip(rows, network.parameters(), strict=True)]


def per_unit(network: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> Gradients:
    """Gradients (B, *parameter) of the mean cross-entropy over a unit's K copies, for B ≥ 0 units.

    inputs: (B, K, …), labels: (B,). The gradient of the mean is the mean of the copies' gradients: one a unit. What is
    not finite in it counts as 0: an overflow would be scaled to 0 · ∞ = NaN, and one unit would ruin the sum.
    """
    parameters = {name: parameter.detach() for name, parameter in network.named_parameters()}
    if not len(labels):
        return [parameter.new_zeros((0, *parameter.shape)) for parameter in parameters.values()]

    def loss(weights: dict[str, torch.Tensor], copies: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        logits = functional_call(network, weights, (copies,))
        return nn.functional.cross_entropy(logits, label.expand(len(copies)))

    found = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, inputs, labels)
    return [torch.nan_to_num_(gradient, nan=0.0, posinf=0.0, neginf=0.0) for gradient in found.values()]


@contextlib.contextmanager
def workers(network: nn.Module, threads: int, clip: float) -> Iterator[Compute]:
    """``compute(block, rows)``: :func:`clipped_sum` of each block of rows, in order.

    The network's parameters may change once all blocks of a call are taken, not before.
    """
    # A call with given weights writes them into its module for a while, so no two threads share one.
    spare: queue.SimpleQueue[nn.Module] = queue.SimpleQueue()
    for _ in range(threads):
        spare.put(_sharing(network))
    usual = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:

            def one(block: Block, rows: torch.Tensor) -> Gradients:
                own = spare.get()
                try:
                    with torch.no_grad():
                        return clipped_sum(own, *block(rows), clip)
                finally:
                    spare.put(own)

            def compute(block: Block, blocks: Iterable[torch.Tensor]) -> Iterator[Gradients]:
                ahead: deque[Future[Gradients]] = deque()
                for rows in blocks:
                    ahead.append(pool.submit(one, block, rows))
                    if len(ahead) > 2 * threads:
                        yield ahead.popleft().result()
                while ahead:
                    yield ahead.popleft().result()

            yield compute
    finally:
        torch.set_num_threads(usual)


def _sharing(network: nn.Module) -> nn.Module:
    """A module of its own on the same parameters: whoever steps them steps its too."""
    memo: dict[int, object] = {id(parameter): parameter for parameter in network.parameters()}
    return copy.deepcopy(network, memo)


def _linear(network: nn.Module) -> nn.Linear | None:
    """The network's only layer, where it is a linear one on flattened inputs."""
    layers = list(network) if isinstance(network, nn.Sequential) else [network]
    rest = [layer for layer in layers if not isinstance(layer, nn.Flatten)]
    return rest[0] if len(rest) == 1 and type(rest[0]) is nn.Linear else None


def _clipped_sum_of_linear(layer: nn.Linear, rows: torch.Tensor, labels: torch.Tensor, clip: float) -> Gradients:
    """The same for logits W a (+ b), a: (B, D)."""
    logits = layer(rows)
    delta = torch.softmax(logits, dim=1) - nn.functional.one_hot(labels, logits.shape[1])
    lengths = torch.linalg.vector_norm(rows, dim=1)
    if layer.bias is not None:
        lengths = torch.hypot(lengths, torch.ones(()))
    factors = _factors(torch.linalg.vector_norm(delta, dim=1) * lengths, clip)
    counted = (factors > 0)[:, None]
    delta, rows = torch.where(counted, delta * factors[:, None], 0.0), torch.where(counted, rows, 0.0)
    return [delta.T @ rows] if layer.bias is None else [delta.T @ rows, delta.sum(dim=0)]


def _factors(lengths: torch.Tensor, clip: float) -> torch.Tensor:
    """What each of B gradients is multiplied by: at most clip / length, 0 where the length is not finite."""
    return torch.where(torch.isfinite(lengths), (clip / (lengths + _MARGIN)).clamp(max=1.0), 0.0)
