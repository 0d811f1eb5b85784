"""`examples/chatbot`: run as a reader would, and checked as its users see it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parents[2] / "examples" / "chatbot" / "run.py"
FLUX = ("a cat", "a dog", "a bird", "a harbour")


@pytest.fixture(scope="module")
def output() -> list[str]:
    """All lines of the run, in order."""
    ended = subprocess.run([sys.executable, str(RUN)], capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


def messages_about(output: list[str], prompt: str) -> list[str]:
    """The messages to the user who asked for this picture."""
    return [found[1] for line in output if (found := re.match(rf"to \d+: {prompt}: (.*)", line))]


@pytest.mark.slow
def test_each_model_draws_in_the_order_of_arrival(output: list[str]) -> None:
    drawn = [found[1] for line in output if (found := re.match(r"to \d+: (.*): here it is, flux", line))]
    assert tuple(drawn) == FLUX


@pytest.mark.slow
def test_a_model_draws_one_picture_at_a_time_and_both_models_draw_at_once(output: list[str]) -> None:
    assert not [line for line in output if "two prompts at once" in line], "a model reports if it is given two"
    ship = [
        number for number, line in enumerate(output) if re.match(r"to 103: a ship: (sdxl is drawing|here it is)", line)
    ]
    meanwhile = [
        line for line in output[ship[0] : ship[1]] if re.match(r"to \d+: .*: (flux is drawing|here it is)", line)
    ]
    assert meanwhile, "flux has drawn while sdxl did"


@pytest.mark.slow
def test_users_receive_their_falling_position(output: list[str]) -> None:
    for prompt in FLUX[1:]:
        positions = [
            int(found[1])
            for text in messages_about(output, prompt)
            if (found := re.match(r"number (\d+) in line", text))
        ]
        assert positions == sorted(set(positions), reverse=True)
    assert len(positions) > 1, "the last user in the queue has seen it move"


@pytest.mark.slow
def test_a_failed_picture_does_not_block_the_others(output: list[str]) -> None:
    assert messages_about(output, "nothing")[-1] == "no picture, there is nothing to draw"
    assert messages_about(output, "a harbour")[-1] == "here it is, flux-a-harbour.png"
    assert any("Models: flux, sdxl" in line for line in output), "an unknown model is answered with the known ones"
