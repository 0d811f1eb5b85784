"""`examples/chatbot`: run as its reader would, and read as its users would."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parents[2] / "examples" / "chatbot" / "run.py"
FLUX = ("a cat", "a dog", "a bird", "a harbour")


@pytest.fixture(scope="module")
def said() -> list[str]:
    """Every line of the evening, in order."""
    ended = subprocess.run([sys.executable, str(RUN)], capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


def told(said: list[str], prompt: str) -> list[str]:
    """What the user who asked for this picture was told."""
    return [found[1] for line in said if (found := re.match(rf"to \d+: {prompt}: (.*)", line))]


@pytest.mark.slow
def test_each_model_draws_in_the_order_of_arrival(said: list[str]) -> None:
    drawn = [found[1] for line in said if (found := re.match(r"to \d+: (.*): here it is, flux", line))]
    assert tuple(drawn) == FLUX


@pytest.mark.slow
def test_a_model_draws_one_picture_at_a_time_and_both_models_draw_at_once(said: list[str]) -> None:
    assert not [line for line in said if "two prompts at once" in line], "a model says so if it is given two"
    ship = [
        number for number, line in enumerate(said) if re.match(r"to 103: a ship: (sdxl is drawing|here it is)", line)
    ]
    meanwhile = [
        line for line in said[ship[0] : ship[1]] if re.match(r"to \d+: .*: (flux is drawing|here it is)", line)
    ]
    assert meanwhile, "flux has drawn while sdxl did"


@pytest.mark.slow
def test_users_are_told_their_falling_position(said: list[str]) -> None:
    for prompt in FLUX[1:]:
        positions = [int(found[1]) for text in told(said, prompt) if (found := re.match(r"number (\d+) in line", text))]
        assert positions == sorted(set(positions), reverse=True)
    assert len(positions) > 1, "the last one in line has seen it move"


@pytest.mark.slow
def test_a_picture_that_cannot_be_drawn_holds_nobody_up(said: list[str]) -> None:
    assert told(said, "nothing")[-1] == "no picture, there is nothing to draw"
    assert told(said, "a harbour")[-1] == "here it is, flux-a-harbour.png"
    assert any("Models: flux, sdxl" in line for line in said), "an unknown model is answered with the known ones"
