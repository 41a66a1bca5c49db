#!/usr/bin/env python3
"""Draw a thread of the fake Discord as SVG: draw.py thread.json > thread.svg

Text is set in a monospaced font, so that lines can be wrapped by their number of characters. The file needs no script,
font or network, and is readable on light and dark pages.
"""
import datetime
import json
import re
import sys
import textwrap
from xml.sax.saxutils import escape

WIDTH, LEFT, CHAR, LINE = 760, 76, 7.8, 20
COLUMNS = int((WIDTH - LEFT - 20) / CHAR)
STYLE = """text{font:13px ui-monospace,Menlo,'DejaVu Sans Mono',Consolas,monospace;fill:#2e3338}
.bold{font-weight:600}.muted{fill:#68717b}.add{fill:#1a7f37}.cut{fill:#c5303f}.white{fill:#fff}.mid{text-anchor:middle}
.page{fill:#fff;stroke:#dfe2e6}.code{fill:#f4f5f7}.chip{fill:#e8eaed}
@media (prefers-color-scheme:dark){text{fill:#dbdee1}.muted{fill:#a3a9b1}.add{fill:#57c776}.cut{fill:#ff7b80}
.white{fill:#fff}.page{fill:#313338;stroke:#43464d}.code{fill:#282a2e}.chip{fill:#404249}}"""
BUTTONS = {1: "#5865f2", 2: "#6d6f78", 3: "#248046", 4: "#da373c"}
AVATARS = ["#4f5bd5", "#b8478f", "#3f7d58", "#a15c1b"]


class Page:
    def __init__(self):
        self.out, self.y = [], 0

    def text(self, x, text, style=""):
        # Characters that XML does not allow are left out.
        text = "".join(c for c in text if c >= " ")
        self.out.append(f'<text class="{style}" x="{x:g}" y="{self.y:g}" xml:space="preserve">{escape(text)}</text>')

    def rect(self, x, y, width, height, attributes):
        self.out.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5" {attributes}/>')

    def chips(self, chips):
        """Draws a row of labels, each with the attributes of its background and the class of its text."""
        x, self.y = LEFT, self.y + 4
        for label, attributes, style in chips:
            width = (len(label) + 2) * CHAR
            self.rect(x, self.y - 15, width, 22, attributes)
            self.text(x + CHAR, label, style)
            x += width + 8
        self.y += 28

    def lines(self, text, style="", columns=COLUMNS):
        for line in textwrap.wrap(text, columns, replace_whitespace=False, drop_whitespace=True) or [""]:
            self.text(LEFT, line, style)
            self.y += LINE

    def code(self, language, text):
        lines = text.rstrip("\n").split("\n")
        self.rect(LEFT, self.y - 15, WIDTH - LEFT - 20, len(lines) * LINE + 6, 'class="code"')
        for line in lines:
            style = {"+": "add", "-": "cut"}.get(line[:1], "") if language == "diff" else ""
            self.text(LEFT + CHAR, line[: COLUMNS - 2], style)
            self.y += LINE
        self.y += 10

    def content(self, text):
        for number, piece in enumerate(re.split(r"```(\w*\n.*?)```\n?", text, flags=re.S)):
            if number % 2:
                self.code(*piece.split("\n", 1))
                continue
            for line in piece.rstrip("\n").split("\n") if piece.strip() else []:
                small = line.startswith("-# ")
                self.lines(line.removeprefix("-# ").replace("**", ""), "muted" if small else "")


def draw(thread):
    users = {user["id"]: user for user in thread["users"]}
    page = Page()
    page.y = 32
    page.text(20, f"#{thread['channel']} › {thread['thread']}", "bold")
    page.y = 78
    for message in thread["messages"]:
        user = users[message["author_id"]]
        color = AVATARS[sorted(users).index(user["id"]) % len(AVATARS)]
        page.out.append(f'<circle cx="40" cy="{page.y + 4}" r="20" fill="{color}"/>')
        page.y += 9
        page.text(40, user["name"][:1].upper(), "white bold mid")
        page.y -= 9
        page.text(LEFT, user["name"], "bold")
        at = datetime.datetime.fromtimestamp(message["created_ms"] / 1000, datetime.timezone.utc)
        label = (" APP" if user["bot"] else "") + at.strftime(" %H:%M")
        page.text(LEFT + len(user["name"]) * CHAR, label, "muted")
        page.y += 24
        mentions = lambda m: "@" + users.get(int(m[1]), {"name": "somebody"})["name"]
        page.content(re.sub(r"<@(\d+)>", mentions, message["content"]))
        for file in message["attachments"]:
            page.chips([(f"{file['filename']} · {file['size']} bytes", 'class="chip"', "")])
        for row in message["components"]:
            page.chips([(b["label"], f'fill="{BUTTONS[b["style"]]}"', "white") for b in row["components"]])
        if message["reactions"]:
            page.chips([(f"{name} {len(who)}", 'class="chip"', "") for name, who in message["reactions"].items()])
        page.y += 14
    title = escape(f"The thread {thread['thread']} in #{thread['channel']}")
    print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{page.y}" role="img"><title>{title}</title>')
    print(f'<style>\n{STYLE}\n</style>\n<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{page.y - 1}" rx="8"/>')
    print("\n".join(page.out))
    print("</svg>")


with open(sys.argv[1], encoding="utf-8") as file:
    draw(json.load(file))
