"""Marks: the elements of a tensor that belong to one token of a padded batch, as formulas of the element's position.

A value that is computed for packed tokens alone holds the numbers of the model only where the token is packed. A mark says for
each element of a tensor which token that is: the sequence (row of the mask) and the position in it (column of the mask).

    [batch, sequence, hidden]           the token (@0, @1)
    [batch, heads, sequence, size]      the token (@0, @2)
    [batch*heads, sequence, size]       the token (@0 // heads, @1)
    [batch*sequence, hidden]            the token (@0 // sequence, @0 - sequence*(@0 // sequence))

Scores of attention have two marks: an element belongs to the token of its row and to that of its column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ortfuse.analysis.index_maps.box import Box, axis
from ortfuse.analysis.index_maps.simplify_formulas import simplified
from ortfuse.ir.dims import DimLike, floor_div, substituting, symbols


@dataclass(frozen=True)
class Mark:
    """The token that an element belongs to.

    Attributes:
        sequence: The sequence, as a formula of the element's position.
        position: The position in the sequence.
    """

    sequence: DimLike
    position: DimLike

    def at(self, index: Sequence[DimLike], box: Box) -> Mark:
        """The mark with other formulas in place of the axes, in simplest form for the positions of a box."""
        return Mark(*formulas_at((self.sequence, self.position), index, box))

    def mentions(self, number: int) -> bool:
        """Whether the token depends on the position along an axis."""
        return f"@{number}" in self.names

    @property
    def names(self) -> frozenset[str]:
        """The variables of both formulas."""
        return frozenset(
            name
            for formula in (self.sequence, self.position)
            if not isinstance(formula, int)
            for name in symbols(formula)
        )

    def mentions_others_than(self, numbers: Sequence[int]) -> bool:
        """Whether the token depends on the position along an axis that is not one of these."""
        return any(name.startswith("@") and int(name[1:]) not in numbers for name in self.names)

    def __str__(self) -> str:
        return f"token ({self.sequence}, {self.position})"


def formulas_at(formulas: Sequence[DimLike], index: Sequence[DimLike], box: Box) -> tuple[DimLike, ...]:
    """Return formulas of a position with others in place of the axes, in simplest form for the positions of a box."""
    put = substituting({f"@{number}": formula for number, formula in enumerate(index)})
    return tuple(simplified(put(formula), box) for formula in formulas)


def token_of(shape: Sequence[DimLike], lead: int, length: DimLike) -> Mark:
    """The mark of a tensor whose first axes are those of tokens.

    Args:
        shape: The shape of the tensor.
        lead: 2 for [batch, sequence, ...], 1 for [batch*sequence, ...].
        length: The length of the sequences.
    """
    if lead == 2:
        return Mark(axis(0), axis(1)).at((axis(0), axis(1)), Box.of_shape(shape))
    row = axis(0)
    sequence = floor_div(row, length)
    return Mark(sequence, row - length * sequence).at((row,), Box.of_shape(shape))
