"""Adds up what the processes of a group have counted, each for its own part of a tensor or a batch."""

from __future__ import annotations

import functools
import operator
from collections import Counter
from typing import Any, TypeVar

import torch.distributed

from jaxclamp._shared.tie_report import TieReport

C = TypeVar("C", TieReport, Counter[str])


def sum_over_ranks(counts: C, group: torch.distributed.ProcessGroup | None = None) -> C:
    """Return the sum of what each process of a group has counted; a collective call, which each of them has to make.

    Args:
      counts: a report of `ties`, or ``passed`` of a block of `min_norm`.
      group: the group; None is all processes.

    Returns:
      A report or a counter, the same in each process. What lies in several processes as a copy counts in each.

    Raises:
      TypeError: ``counts`` is neither.
      RuntimeError: there is no group of processes.
      ValueError: this process is not in the group.

    >>> from interop import ties
    >>> with ties() as counted:
    ...     y = torch.relu(torch.tensor([0.0, 1.0]))
    >>> sum_over_ranks(counted.report)
    Traceback (most recent call last):
    RuntimeError: sum_over_ranks: there is no group of processes; call torch.distributed.init_process_group first.
    """
    if not isinstance(counts, TieReport | Counter):
        raise TypeError(
            f"sum_over_ranks: counts is {counts!r}; pass the report of interop.ties, or `passed` of interop.min_norm."
        )
    if not torch.distributed.is_initialized():
        raise RuntimeError(
            "sum_over_ranks: there is no group of processes; call torch.distributed.init_process_group first."
        )
    if torch.distributed.get_rank(group) < 0:
        raise ValueError("sum_over_ranks: this process is not in the group; call it in those of the group alone.")
    # As objects, not as tensors to be summed: each process may have counted at other lines.
    of_ranks: list[Any] = [None] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(of_ranks, counts, group)
    return functools.reduce(operator.add, of_ranks)
