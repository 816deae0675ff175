#!/usr/bin/env python3
"""Records docs/demo.svg: runs real commands with a given cofferdam binary and writes what they print.

    python3 docs/demo.py target/release/cofferdam docs/demo.svg

Each line appears after the time that the command needed to print it. A viewer without animation shows all lines.
"""

import html
import os
import pathlib
import subprocess
import sys
import tempfile
import time

COMMANDS = [
    "cofferdam run --workspace . --diff --save-changes fix.tar -- sed -i s/Helo/Hello/ greet.py",
    "cat greet.py",
    "cofferdam changes apply fix.tar",
    "cofferdam run --memory 64M --lang python --code 'b\"x\" * (200 << 20)'",
    "cofferdam run --timeout 1s -- sleep 60",
    "cofferdam doctor --backend process | grep -E 'seccomp|landlock|capab|network'",
]

COLUMNS = 112
CHARACTER_WIDTH = 8.4
LINE_HEIGHT = 20
MARGIN = 16
BAR_HEIGHT = 32
TYPING_SECONDS = 0.9
PAUSE_SECONDS = 0.8
MAX_SVG_BYTES = 60_000

STYLE = """
text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; white-space: pre; fill: #d6deeb; }
.command { fill: #ffffff; font-weight: 600; }
.prompt { fill: #7fdbca; }
@media (prefers-reduced-motion: no-preference) { .line { animation: appear 1ms both; } }
@keyframes appear { from { opacity: 0; } to { opacity: 1; } }
"""


def record(command, directory, environment):
    """Runs a command and returns its lines with the seconds at which they came."""
    start = time.monotonic()
    process = subprocess.Popen(
        ["sh", "-c", command],
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines = [(time.monotonic() - start, line.rstrip("\n")) for line in process.stdout]
    process.wait()
    return lines, time.monotonic() - start


def wrapped(line):
    """Splits a line at the terminal's width."""
    return [line[at : at + COLUMNS] for at in range(0, max(len(line), 1), COLUMNS)]


def session(binary):
    """Runs all commands and returns (seconds, is_command, text) for each line of the terminal."""
    rows = []
    now = 0.0
    with tempfile.TemporaryDirectory() as home:
        project = pathlib.Path(home, "project")
        project.mkdir()
        (project / "greet.py").write_text('print("Helo, Ada")\n')
        environment = {
            "HOME": home,
            "XDG_STATE_HOME": str(pathlib.Path(home, ".local/state")),
            "LANG": "C.UTF-8",
            "NO_COLOR": "1",
            "PATH": f"{binary.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        }
        for command in COMMANDS:
            lines, took = record(command, project, environment)
            rows.append((now, True, command))
            now += TYPING_SECONDS
            rows += [(now + at, False, part) for at, line in lines for part in wrapped(line.replace(home, "~"))]
            now += took + PAUSE_SECONDS
        private = [home, str(binary.parent), str(pathlib.Path.home())]
    for _, is_command, text in rows:
        if not is_command and any(path in text for path in private):
            sys.exit(f"error: the output names a path of this machine: {text}")
    return rows


def svg(rows):
    """Draws the terminal."""
    width = round(COLUMNS * CHARACTER_WIDTH + 2 * MARGIN)
    height = BAR_HEIGHT + len(rows) * LINE_HEIGHT + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'role="img" aria-label="A terminal session with cofferdam">',
        f"<style>{STYLE}</style>",
        f'<rect width="{width}" height="{height}" rx="8" fill="#0b1622"/>',
    ]
    for place, colour in enumerate(("#ff5f57", "#febc2e", "#28c840")):
        parts.append(f'<circle cx="{MARGIN + 6 + 20 * place}" cy="16" r="6" fill="{colour}"/>')
    for index, (seconds, is_command, text) in enumerate(rows):
        y = BAR_HEIGHT + (index + 1) * LINE_HEIGHT - 5
        shown = html.escape(text, quote=False)
        if is_command:
            shown = f'<tspan class="prompt">$ </tspan><tspan class="command">{shown}</tspan>'
        parts.append(
            f'<text class="line" xml:space="preserve" x="{MARGIN}" y="{y}" '
            f'style="animation-delay:{seconds:.2f}s">{shown}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: python3 docs/demo.py COFFERDAM_BINARY OUTPUT.svg")
    binary = pathlib.Path(sys.argv[1]).resolve()
    if binary.name != "cofferdam" or not os.access(binary, os.X_OK):
        sys.exit(f"error: {sys.argv[1]} is not an executable file named cofferdam")
    picture = svg(session(binary))
    if len(picture.encode()) > MAX_SVG_BYTES:
        sys.exit(f"error: the picture has more than {MAX_SVG_BYTES} bytes")
    pathlib.Path(sys.argv[2]).write_text(picture)


if __name__ == "__main__":
    main()
