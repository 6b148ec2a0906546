"""Gradients unit by unit, computed in blocks by several threads.

Each unit's gradient is torch's own derivative of that unit's loss, vectorised over the units of a block
(:mod:`torch.func`): it is a function of the weights, that unit's input and its label, and of nothing else in the block.

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

# One gradient (B, *parameter) for each parameter, in the order of ``network.parameters()``.
Gradients = list[torch.Tensor]
# What makes the inputs (B, K, …) and labels (B,) of a block of rows ready.
Block = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
Compute = Callable[[Block, Iterable[torch.Tensor]], Iterator[Gradients]]


def per_unit(network: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> Gradients:
    """Gradients of the mean cross-entropy over a unit's K copies, for B ≥ 0 units.

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
def workers(
    network: nn.Module, threads: int
) -> Iterator[Callable[[Block, Iterable[torch.Tensor]], Iterator[Gradients]]]:
    """``compute(block, rows)``: :func:`per_unit` of each block of rows, in order, ``threads`` + 1 blocks ahead at most.

    The network's parameters may change between blocks that were all taken, not while some are outstanding.
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
                    return per_unit(own, *block(rows))
                finally:
                    spare.put(own)

            def compute(block: Block, blocks: Iterable[torch.Tensor]) -> Iterator[Gradients]:
                ahead: deque[Future[Gradients]] = deque()
                for rows in blocks:
                    ahead.append(pool.submit(one, block, rows))
                    if len(ahead) > threads:
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
