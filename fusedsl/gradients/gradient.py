# SPDX-License-Identifier: Apache-2.0
"""Gradients of values while they are collected: sums of terms, each with masks that select where it counts.

A term of a branch that ``where`` did not choose is dropped, not multiplied by zero: the mask travels with the term
through pointwise derivatives and is applied at the end, so that an infinite derivative of that branch leaves no NaN.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from fusedsl.gradients.expression import Expression, number


@attrs.frozen
class Mask:
    """Where a gradient counts: where the bool tensor ``id`` equals ``keep``."""

    id: int
    keep: bool


@attrs.frozen
class Gradient:
    """``value`` where all masks hold, 0 elsewhere."""

    value: Expression
    masks: tuple[Mask, ...] = ()

    def under(self, masks: tuple[Mask, ...]) -> Gradient:
        """This gradient where ``masks`` hold too."""
        return Gradient(self.value, (*masks, *(m for m in self.masks if m not in masks)))

    def applied(self, known: int = 0) -> Expression:
        """The value with every mask but the first ``known`` applied."""
        value = self.value
        for mask in reversed(self.masks[known:]):
            value = _choose(mask, value, None)
        return value


def masked(value: Expression, condition: Expression, keep: bool = True) -> Gradient:
    """``value`` where ``condition`` is ``keep``, 0 elsewhere."""
    return Gradient(value, (Mask(condition.id, keep),))


def select(condition: Expression, a: Expression | float, b: Expression | float) -> Expression:
    """``where``; one choice at least is a tensor."""
    builder = condition.builder
    a, b = (x if isinstance(x, Expression) else number(builder, float(x)) for x in (a, b))
    like = a if a.is_tensor else b
    return Expression(builder, builder.add("where", (condition.id, a.id, b.id), like.type))


def _choose(mask: Mask, value: Expression, other: Expression | None) -> Expression:
    condition = Expression(value.builder, mask.id)
    rest = 0.0 if other is None else other
    return select(condition, value, rest) if mask.keep else select(condition, rest, value)


def total(terms: Sequence[Gradient]) -> Gradient:
    """The sum of one or more terms, as one term."""
    groups: dict[tuple[Mask, ...], Expression] = {}
    for term in terms:
        known = groups.get(term.masks)
        groups[term.masks] = term.value if known is None else known + term.value
    merged = _joined_branches([Gradient(value, masks) for masks, value in groups.items()])
    if len(merged) == 1:
        return merged[0]
    common = 0
    while all(len(t.masks) > common and t.masks[common] == merged[0].masks[common] for t in merged):
        common += 1
    value = merged[0].applied(common)
    for term in merged[1:]:
        value = value + term.applied(common)
    return Gradient(value, merged[0].masks[:common])


def _joined_branches(terms: list[Gradient]) -> list[Gradient]:
    """Terms of the two branches of one condition become one ``where``."""
    for i, a in enumerate(terms):
        for j in range(i + 1, len(terms)):
            b = terms[j]
            if not a.masks or not b.masks or a.masks[:-1] != b.masks[:-1] or a.masks[-1].id != b.masks[-1].id:
                continue
            joined = Gradient(_choose(a.masks[-1], a.value, b.value), a.masks[:-1])
            rest = [t for k, t in enumerate(terms) if k not in (i, j)]
            same = next((t for t in rest if t.masks == joined.masks), None)
            if same is not None:
                rest.remove(same)
                joined = Gradient(joined.value + same.value, joined.masks)
            return _joined_branches([*rest, joined])
    return terms
