"""Computes recurrent networks with relu step by step, where torch has one kernel, so that each relu can be decided."""

from typing import Any

import torch
from torch.nn import functional

Tensor = torch.Tensor


def rnn_relu_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    """Compute a step of ``nn.RNN`` with relu, or an ``nn.RNNCell``."""
    return torch.relu(functional.linear(input, w_ih, b_ih) + functional.linear(hx, w_hh, b_hh))


def rnn_relu(input: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    """Compute what ``nn.RNN`` calls, with a tensor, or a packed sequence, whose batch sizes are the second argument."""
    is_packed = isinstance(args[1], Tensor)
    if is_packed:
        sizes, hx, weights, _, layers, dropout, train, bidirectional = args
        steps = list(input.split(sizes.tolist()))
    else:
        hx, weights, _, layers, dropout, train, bidirectional, batch_first = args
        steps = list((input.transpose(0, 1) if batch_first else input).unbind(0))
    num_directions = 2 if bidirectional else 1  # torch's word: forward, and backward in time
    # Two matrices, and two biases if there are any: so the flag for these, ``_``, is not needed.
    weights_per_cell, final_states = len(weights) // (layers * num_directions), list[Tensor]()
    for layer in range(layers):
        outputs_of_directions = []
        for is_backward in range(num_directions):
            # The states and the weights are listed layer by layer, and in a layer the forward direction first.
            number = len(final_states)
            state = hx[number]
            weights_of_cell = weights[number * weights_per_cell : (number + 1) * weights_per_cell]
            outputs = []
            for step in reversed(steps) if is_backward else steps:
                new = rnn_relu_cell(step, state[: len(step)], *weights_of_cell)
                state = torch.cat([new, state[len(step) :]])  # shorter sequences of a packed one have ended
                outputs.append(new)
            outputs_of_directions.append(outputs[::-1] if is_backward else outputs)
            final_states.append(state)
        steps = [torch.cat(step, -1) for step in zip(*outputs_of_directions, strict=True)]
        if dropout and train and layer < layers - 1:
            lengths = [len(step) for step in steps]
            steps = list(functional.dropout(torch.cat(steps), dropout).split(lengths))
    result = torch.cat(steps) if is_packed else torch.stack(steps, 1 if batch_first else 0)
    return result, torch.stack(final_states)
