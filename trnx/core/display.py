"""How programs of every form show themselves in notebooks: text with the user's lines between.

Every style is inline and only decorates: a viewer that drops styles still shows everything.
"""

from __future__ import annotations

import html
import linecache
from collections.abc import Iterable

from trnx.core.source import Source

MAX_LINES = 400
"""Lines of a listing that a notebook shows."""

_USER_LINE = "color:#1f6fc4;background:rgba(31,111,196,0.08)"
_PRE = (
    '<pre style="font-family:var(--jp-code-font-family,monospace);font-size:13px;'
    'line-height:1.35;white-space:pre;overflow-x:auto">'
)


def source_line(source: Source | None) -> str:
    """The text of the user's line without its indent; empty when it cannot be read."""
    if source is None or not source.file:
        return ""
    return linecache.getline(source.file, source.line).strip()


def source_note(source: Source) -> str:
    """``cell:3 (loss) block1   y = tnp.exp(x)``: where, the name stack, and the line itself."""
    where = f"{source} {source.name_stack}".rstrip()
    return f"{where}   {source_line(source)}".rstrip()


def listing_html(lines: Iterable[tuple[str, Source | None]], limit: int = MAX_LINES) -> str:
    """A text as HTML, with the user's line put above the lines that come from it.

    Args:
        lines: each line with its source; None when it has none.
        limit: lines shown; the rest is counted in a last one.
    """
    shown: list[str] = []
    last: Source | None = None
    every = list(lines)
    for text, source in every[:limit]:
        if source is not None and source.file and source != last:
            last = source
            indent = " " * (len(text) - len(text.lstrip()))
            note = html.escape(f"# {source_note(source)}")
            shown.append(f'{indent}<b style="font-weight:500;{_USER_LINE}">{note}</b>')
        shown.append(html.escape(text))
    if len(every) > limit:
        shown.append(f"… {len(every) - limit:,} more lines; print() shows them all")
    return f"{_PRE}{chr(10).join(shown)}</pre>"


def table_html(head: Iterable[str], rows: Iterable[Iterable[str]], numbers: int = 0) -> str:
    """A table of cells that are HTML already; the last ``numbers`` columns align right."""
    titles = list(head)

    def cell(tag: str, column: int, text: str) -> str:
        side = "right" if column >= len(titles) - numbers else "left"
        return f'<{tag} style="text-align:{side}">{text}</{tag}>'

    def row(tag: str, cells: Iterable[str]) -> str:
        return f"<tr>{''.join(cell(tag, i, text) for i, text in enumerate(cells))}</tr>"

    body = "".join(row("td", cells) for cells in rows)
    return f"<table><thead>{row('th', titles)}</thead><tbody>{body}</tbody></table>"
