"""Tables of text for a terminal, or for a file. Nothing is ever cut: a table that does not fit is folded, its headers
between their words, and if that does not suffice each of its rows becomes a block of lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

Cells = Sequence[str]
_GAPS = (2, 1)  # spaces between columns; the second only if it does not fit otherwise
_FOLDS_ABOVE = 10  # a column is not made narrower than its longest word, or than this if that is longer


def table(headers: Cells, rows: Sequence[Cells], right: Sequence[bool], width: int | None) -> Iterator[str]:
    """The lines of a table. ``right`` says which columns are numbers; without a ``width`` nothing is folded."""
    from rich.control import strip_control_codes

    lines = [headers, *([strip_control_codes(cell) for cell in row] for row in rows)]
    columns = list(zip(*lines, strict=True))
    natural = [max(map(_cells, column)) for column in columns]
    if width is None:
        yield from _aligned(lines, natural, right, _GAPS[0])
        return
    for gap in _GAPS:
        widths = _fitting(columns, natural, width - gap * (len(columns) - 1))
        if widths is not None:
            yield from _aligned(lines, widths, right, gap)
            return
    for row in lines[1:]:
        yield from pairs(list(zip(headers, row, strict=True)), width)
        yield ""


def pairs(facts: Sequence[tuple[str, str]], width: int | None) -> Iterator[str]:
    """A line for each, or as many as its value needs."""
    longest = max((_cells(name) for name, _ in facts), default=0)
    for name, value in facts:
        room = None if width is None else max(_FOLDS_ABOVE, width - longest - _GAPS[0])
        for number, part in enumerate(fold(value, room)):
            yield _padded("" if number else name, longest + _GAPS[0]) + part


def fold(text: str, width: int | None) -> list[str]:
    """Lines of at most this width, broken between words where that is possible."""
    if "\n" not in text and (width is None or _cells(text) <= width):
        return [text]
    if width is None:
        return text.split("\n")
    from rich.cells import chop_cells

    lines: list[str] = []
    for paragraph in text.split("\n"):
        lines.append("")
        for word in paragraph.split(" "):
            line = f"{lines[-1]} {word}" if lines[-1] else word
            if _cells(line) <= width:
                lines[-1] = line
                continue
            parts = chop_cells(word, width)
            if lines[-1]:
                lines += parts
            else:
                lines[-1:] = parts
    return lines


def _fitting(columns: Sequence[Cells], natural: Sequence[int], room: int) -> list[int] | None:
    """The widths of columns that fit together: the widest ones are made narrower. None if that cannot be."""
    floors = [max(_longest_word(cells[:1]), min(_FOLDS_ABOVE, _longest_word(cells[1:]))) for cells in columns]
    if sum(floors) > room:
        return None
    widths = list(natural)
    while sum(widths) > room:
        _, widest = max((width, at) for at, width in enumerate(widths) if width > floors[at])
        widths[widest] -= 1
    return widths


def _longest_word(cells: Cells) -> int:
    return max((_cells(word) for cell in cells for word in cell.split()), default=0)


def _aligned(lines: Sequence[Cells], widths: Sequence[int], right: Sequence[bool], gap: int) -> Iterator[str]:
    for line in lines:
        folded = [fold(cell, width) for cell, width in zip(line, widths, strict=True)]
        for number in range(max(map(len, folded))):
            parts = (parts[number] if number < len(parts) else "" for parts in folded)
            cells = (_padded(part, width, left) for part, width, left in zip(parts, widths, right, strict=True))
            yield (" " * gap).join(cells).rstrip()


def _padded(text: str, width: int, left: bool = False) -> str:
    spaces = " " * (width - _cells(text))
    return spaces + text if left else text + spaces


def _cells(text: str) -> int:
    """How wide it is on a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
