"""Who should read which partition: even, and with as few moves as possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def balanced(
    partitions: Sequence[int], members: Sequence[str], current: Mapping[int, str | None]
) -> dict[int, str | None]:
    """The wanted owner of every partition; None for all when there are no members.

    Members hold equally many, or one more. What a member has and may keep, it keeps.

    >>> balanced([0, 1, 2], ["a", "b"], {0: "a", 1: "a", 2: "a"})
    {0: 'a', 1: 'a', 2: 'b'}
    """
    if not members:
        return dict.fromkeys(partitions)
    held: dict[str, list[int]] = {member: [] for member in members}
    for part in partitions:
        owner = current.get(part)
        if owner in held:
            held[owner].append(part)
    room = _room(held, len(partitions))
    wanted: dict[int, str | None] = {}
    for member, parts in held.items():
        for part in parts[: room[member]]:
            wanted[part] = member
        room[member] -= min(len(parts), room[member])
    free = (part for part in partitions if part not in wanted)
    takers = (member for member in members for _ in range(room[member]))
    wanted.update(zip(free, takers, strict=True))
    return {part: wanted[part] for part in partitions}


def _room(held: Mapping[str, Sequence[int]], partitions: int) -> dict[str, int]:
    """How many partitions each member should have; those with most now get the odd ones."""
    each, odd = divmod(partitions, len(held))
    by_most = sorted(held, key=lambda member: -len(held[member]))
    return {member: each + (number < odd) for number, member in enumerate(by_most)}
