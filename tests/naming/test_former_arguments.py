"""Keyword arguments that were renamed still work, with a warning."""

import pytest

from ortfuse.naming import RenamedWarning
from ortfuse.naming.former_arguments import former_arguments


@former_arguments(old="new")
def double(new: int = 1) -> int:
    """Double a number."""
    return 2 * new


def test_a_former_argument_is_passed_on_with_a_warning() -> None:
    with pytest.warns(RenamedWarning, match="`old` is now called `new`"):
        assert double(old=3) == 6  # type: ignore[call-arg]


def test_both_names_at_once_are_an_error() -> None:
    with pytest.raises(TypeError, match="both 'new' and its former name 'old'"):
        double(new=3, old=4)  # type: ignore[call-arg]
