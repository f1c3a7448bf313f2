#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the pictures of the documents: text files of boxes and arrows become SVG. Python's standard library only.

usage: draw.py FILE.txt ..      writes FILE.svg beside each

    +-----+       lines of - and | with + at corners and crossings; > < ^ v at the end of a line are arrow heads;
    | box |--->   everything else is text. A - between letters is text.
    +-----+

Directives stand at the begin of a line:
    % title TEXT          for readers that do not see the picture
    % fill WORD COLOUR    boxes whose text holds WORD are filled with that colour
"""
import pathlib
import sys
from xml.sax.saxutils import escape, quoteattr

WIDTH, HEIGHT, MARGIN, FONT = 8.4, 17.0, 10.0, 14
LINE, TEXT, PAPER = "#475569", "#0f172a", "#ffffff"


class Picture:
    def __init__(self, text):
        self.title, self.fills, rows = "", [], []
        for row in text.splitlines():
            if row.startswith("% title "):
                self.title = row[8:].strip()
            elif row.startswith("% fill "):
                word, colour = row[7:].rsplit(None, 1)
                self.fills.append((word, colour))
            else:
                rows.append(row.rstrip())
        while rows and not rows[0]:
            rows.pop(0)
        while rows and not rows[-1]:
            rows.pop()
        self.columns = max(len(row) for row in rows)
        self.rows = [row.ljust(self.columns) for row in rows]

    def at(self, y, x):
        return self.rows[y][x] if 0 <= y < len(self.rows) and 0 <= x < self.columns else " "

    def horizontal(self, y, x):
        """Is this cell part of a horizontal line?"""
        c = self.at(y, x)
        if c == "-":
            return self.at(y, x - 1) in "-+<" or self.at(y, x + 1) in "-+>"
        if c == "+":
            return self.at(y, x - 1) == "-" or self.at(y, x + 1) == "-"
        if c == ">":
            return self.at(y, x - 1) == "-" and self.at(y, x - 2) in "-+|"
        return c == "<" and self.at(y, x + 1) == "-" and self.at(y, x + 2) in "-+|"

    def vertical(self, y, x):
        c = self.at(y, x)
        if c == "|":
            return self.at(y - 1, x) in "|+^v" or self.at(y + 1, x) in "|+v^"
        if c == "+":
            return self.at(y - 1, x) in "|^" or self.at(y + 1, x) in "|v"
        if c in "v^" and (self.at(y, x - 1).isalnum() or self.at(y, x + 1).isalnum()):
            return False
        if c == "v":
            return self.at(y - 1, x) in "|+" and self.at(y - 1, x) != " "
        return c == "^" and self.at(y + 1, x) in "|+"

    def boxes(self):
        """Smallest closed rectangles, as (top, left, bottom, right)."""
        found = []
        for top in range(len(self.rows)):
            for left in range(self.columns):
                if self.at(top, left) != "+" or self.at(top, left + 1) not in "-+":
                    continue
                box = self.box_at(top, left)
                if box:
                    found.append(box)
        return found

    def box_at(self, top, left):
        right = left + 1
        while self.at(top, right) in "-+":
            if self.at(top, right) == "+" and self.at(top + 1, right) in "|+":
                bottom = top + 1
                while self.at(bottom, left) in "|+" and self.at(bottom, right) in "|+":
                    edge = [self.at(bottom, x) for x in range(left, right + 1)]
                    if edge[0] == "+" and edge[-1] == "+" and all(c in "-+v^" for c in edge):
                        return top, left, bottom, right
                    bottom += 1
            right += 1
        return None

    def inside(self, box):
        top, left, bottom, right = box
        return "\n".join(row[left + 1:right] for row in self.rows[top + 1:bottom])

    def svg(self):
        def px(x):
            return round(MARGIN + (x + 0.5) * WIDTH, 1)

        def py(y):
            return round(MARGIN + (y + 0.5) * HEIGHT, 1)

        width, height = round(2 * MARGIN + self.columns * WIDTH), round(2 * MARGIN + len(self.rows) * HEIGHT)
        out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
               f' role="img" aria-label={quoteattr(self.title)}>',
               f"<title>{escape(self.title)}</title>",
               f'<rect width="{width}" height="{height}" rx="6" fill="{PAPER}"/>']
        for box in self.boxes():
            text = self.inside(box)
            for word, colour in self.fills:
                if word in text:
                    top, left, bottom, right = box
                    out.append(f'<rect x="{px(left)}" y="{py(top)}" width="{round(px(right) - px(left), 1)}" '
                               f'height="{round(py(bottom) - py(top), 1)}" fill="{colour}"/>')
                    break
        lines, heads, texts = [], [], []
        for y in range(len(self.rows)):
            x = 0
            while x < self.columns:
                if not self.horizontal(y, x):
                    x += 1
                    continue
                start = x
                while self.horizontal(y, x + 1) and self.at(y, x) != ">" and self.at(y, x + 1) != "<":
                    x += 1
                if x > start:
                    left = px(start) - (WIDTH / 2 if self.at(y, start) == "-" and self.at(y, start - 1) == "|" else 0)
                    lines.append(f"M{round(left, 1)} {py(y)}H{px(x)}")
                if self.at(y, x) == ">":
                    heads.append((px(x) + WIDTH / 2, py(y), -7, -4, -7, 4))
                if self.at(y, start) == "<":
                    heads.append((px(start) - WIDTH / 2, py(y), 7, -4, 7, 4))
                x += 1
        for x in range(self.columns):
            y = 0
            while y < len(self.rows):
                if not self.vertical(y, x):
                    y += 1
                    continue
                start = y
                while self.vertical(y + 1, x) and self.at(y, x) != "v" and self.at(y + 1, x) != "^":
                    y += 1
                if y > start:
                    lines.append(f"M{px(x)} {py(start)}V{py(y)}")
                if self.at(y, x) == "v":
                    heads.append((px(x), py(y) + HEIGHT / 2 - 2, -4, -7, 4, -7))
                if self.at(start, x) == "^":
                    heads.append((px(x), py(start) - HEIGHT / 2 + 2, -4, 7, 4, 7))
                y += 1
        for y, row in enumerate(self.rows):
            x = 0
            while x < self.columns:
                if row[x] == " " or self.horizontal(y, x) or self.vertical(y, x):
                    x += 1
                    continue
                start = x
                while x < self.columns and not self.horizontal(y, x) and not self.vertical(y, x) and \
                        row[x:x + 2] not in ("  ", " "):
                    x += 1
                word = row[start:x].rstrip()
                texts.append(f'<text x="{round(MARGIN + start * WIDTH, 1)}" y="{round(py(y) + 4.5, 1)}" '
                             f'textLength="{round(len(word) * WIDTH, 1)}">{escape(word)}</text>')
        out.append(f'<path d="{"".join(lines)}" fill="none" stroke="{LINE}" stroke-width="1.3"/>')
        out.append(f'<g fill="{LINE}">')
        for x, y, ax, ay, bx, by in heads:
            out.append(f'<path d="M{round(x, 1)} {round(y, 1)}l{ax} {ay}l{bx - ax} {by - ay}z"/>')
        out.append(f'</g>\n<g font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,DejaVu Sans Mono,monospace" '
                   f'font-size="{FONT}" fill="{TEXT}" xml:space="preserve">')
        out += texts
        out.append("</g>\n</svg>")
        return "\n".join(out) + "\n"


def draw(text):
    return Picture(text).svg()


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        sys.exit(0 if len(sys.argv) > 1 else 2)
    for name in sys.argv[1:]:
        path = pathlib.Path(name)
        path.with_suffix(".svg").write_text(draw(path.read_text()))
