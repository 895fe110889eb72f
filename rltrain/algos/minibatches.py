"""Ways to split a batch `[T+1, B, ...]` into minibatches."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


def column_minibatches(
    batch: dict[str, Tensor], num_minibatches: int, generator: torch.Generator
) -> Iterator[dict[str, Tensor]]:
    """Yield whole env columns in random order, each column once.

    Args:
        batch: name -> [T+1, B, ...].
        num_minibatches: parts of nearly equal size; no more than there are columns.
        generator: for the order.

    Yields:
        name -> [T+1, b, ...], contiguous.
    """
    num_columns = next(iter(batch.values())).shape[1]
    num_minibatches = min(num_minibatches, num_columns)
    if num_minibatches == 1:
        yield batch
        return
    order = torch.randperm(num_columns, generator=generator, device=generator.device)
    for columns in order.tensor_split(num_minibatches):
        yield {name: x.index_select(1, columns) for name, x in batch.items()}


def row_minibatches(
    rows: Tensor, num_minibatches: int, generator: torch.Generator
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Shuffle row numbers and split them.

    Args:
        rows: int64 [R], at least one.
        num_minibatches: parts of nearly equal size; no more than there are rows.
        generator: for the order.

    Returns:
        (all row numbers in their new order, the same in parts).
    """
    order = rows[torch.randperm(len(rows), generator=generator, device=rows.device)]
    return order, order.tensor_split(min(num_minibatches, len(rows)))
