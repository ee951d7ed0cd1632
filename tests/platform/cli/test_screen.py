"""The display of ``lehr watch``: a terminal shows the newest frame, and few bytes bring it there."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.live import Live

from lehr.cli.live import LiveState, run_frame
from lehr.cli.screen import Screen, live
from lehr.schemas.runs import Latest, RunView

WIDTH, HEIGHT = 60, 12
_CODE = re.compile(r"\x1b\[(\??[\d;]*)([A-Za-z])")


class Terminal(io.StringIO):
    """As much of a terminal as the display uses: it counts bytes and keeps what is shown."""

    def __init__(self, first: str = "") -> None:
        super().__init__()
        self.cells = [[" "] * WIDTH for _ in range(HEIGHT)]
        self.row = self.column = self.sent = self.writes = 0
        self.write(first)
        self.sent = self.writes = 0

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.sent += len(text.encode())
        self.writes += bool(text)
        at = 0
        while at < len(text):
            code = _CODE.match(text, at)
            if code:
                self._act(code[1], code[2])
                at = code.end()
                continue
            self._put(text[at])
            at += 1
        return len(text)

    def _put(self, letter: str) -> None:
        if letter == "\r":
            self.column = 0
        elif letter == "\n":
            self.column = 0  # The terminal's driver adds a carriage return.
            if self.row == HEIGHT - 1:
                self.cells = [*self.cells[1:], [" "] * WIDTH]
            else:
                self.row += 1
        else:
            assert letter >= " ", repr(letter)
            assert self.column < WIDTH, "a line is longer than the terminal is wide"
            self.cells[self.row][self.column] = letter
            self.column += 1

    def _act(self, number: str, verb: str) -> None:
        n = int(number) if number.isdecimal() else 1
        if verb == "A":
            self.row = max(self.row - n, 0)
        elif verb == "B":
            self.row = min(self.row + n, HEIGHT - 1)
        elif verb == "G":
            self.column = n - 1
        elif verb == "K":
            self.cells[self.row][self.column :] = [" "] * (WIDTH - self.column)
        elif verb == "J":
            self.cells[self.row][self.column :] = [" "] * (WIDTH - self.column)
            self.cells[self.row + 1 :] = [[" "] * WIDTH for _ in self.cells[self.row + 1 :]]
        else:
            assert verb in "mhl", verb

    def shown(self) -> str:
        return "\n".join("".join(row).rstrip() for row in self.cells).rstrip()


def console(terminal: Terminal) -> Console:
    return Console(
        file=terminal, force_terminal=True, color_system="standard", width=WIDTH, height=HEIGHT
    )


WORDS = st.sampled_from(["", "a", "loss 3.2", "[green]loss[/] 3.1", "x  [dim]y[/]", "z" * 40])
FRAMES = st.lists(st.lists(WORDS, max_size=15).map("\n".join), max_size=6)


@settings(max_examples=150, deadline=None)
@given(FRAMES, st.integers(0, HEIGHT - 1))
def test_terminal_shows_the_newest_frame_wherever_it_began(frames: list[str], above: int) -> None:
    head = "".join(f"before {n}\r\n" for n in range(above))
    terminal = Terminal(head)
    screen = Screen(console(terminal))
    for frame in frames:
        screen.paint(frame)
        wanted = re.sub(r"\[[^]]*\]", "", frame).split("\n")[: HEIGHT - 1]
        lines = terminal.shown().split("\n")
        kept = [line for line in lines if not line.startswith("before")]
        assert "\n".join(kept).strip("\n") == "\n".join(line.rstrip() for line in wanted).strip(
            "\n"
        )
    screen.erase()
    assert all(line.startswith("before") or not line for line in terminal.shown().split("\n"))


def view(step: int) -> RunView:
    latest = {
        "train/loss": Latest(value=4 - step / 1000, step=step),
        "tokens_per_s": Latest(value=61_000.0, step=step),
        "step_time_s": Latest(value=0.25, step=step),
    }
    return RunView(
        id="k3f9x2ab", name="long-run", project="default", state="running", step=step,
        total_steps=10_000, tokens_per_step=65_536, latest=latest, started_at=0.0, created_at=0.0,
        eta_s=4_000.0 - step / 4,
    )  # fmt: skip


def frame(second: int):
    """A run half a minute later: steps, loss and times move on."""
    return run_frame(view(100 + 4 * second), LiveState(heard_at=float(second)), now=float(second))


def test_second_of_a_live_run_costs_few_bytes_and_one_write() -> None:
    terminal = Terminal()
    screen = Screen(console(terminal))
    screen.paint(frame(0))
    first, terminal.sent, terminal.writes = terminal.sent, 0, 0
    for second in range(1, 61):
        screen.paint(frame(second))
    a_second = terminal.sent / 60
    # 2,400 bit/s are 240 bytes a second; the whole frame is several times that.
    assert a_second < 120, a_second
    assert first > 2 * a_second
    assert terminal.writes == 60

    usual = Terminal()
    with Live(frame(0), console=console(usual), auto_refresh=False, transient=True) as whole:
        usual.sent = 0
        for second in range(1, 61):
            whole.update(frame(second), refresh=True)
        assert usual.sent / 60 > 3 * a_second


def test_equal_frame_sends_nothing() -> None:
    terminal = Terminal()
    screen = Screen(console(terminal))
    screen.paint(frame(5))
    terminal.writes = 0
    screen.paint(frame(5))
    assert terminal.writes == 0


def test_display_is_erased_and_the_cursor_comes_back_after_an_error() -> None:
    terminal = Terminal()
    with pytest.raises(KeyboardInterrupt), live(console(terminal), lambda: "a frame"):
        raise KeyboardInterrupt
    assert terminal.shown() == ""
    assert (terminal.row, terminal.column) == (0, 0)


def test_resized_terminal_is_drawn_anew() -> None:
    terminal = Terminal()
    made = console(terminal)
    screen = Screen(made)
    screen.paint("one\ntwo")
    made.width = 40
    screen.paint("one\ntwo")
    assert terminal.shown() == "one\ntwo"
