import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from advdrop.lab.report.charts import standalone
from advdrop.lab.report.explanation import figure
from analyses import EXPLANATION
from pixels import pictures


def test_the_figure_has_a_ring_for_each_flip_and_a_bar_for_each_probability():
    drawn = figure(EXPLANATION).svg
    assert drawn.count("fill: none; stroke: var(--s2)") == 1  # dropped by the adversary
    assert drawn.count("fill: none; stroke: var(--s1)") == 1  # revived
    assert drawn.count("<image ") == 4
    edges = re.findall(r'<path d="M ([\d.]+) [\d.]+ L ([\d.]+) [^"]+" clip-path="[^"]+" style="fill: var\(--s\d', drawn)
    widths = [float(right) - float(left) for left, right in edges]
    assert len(widths) == 6  # two classes without dropout, two under the sampled mask, two under the adversarial one
    assert widths[4] / widths[2] == pytest.approx(0.3 / 0.8, rel=1e-2)
    assert "&lt;dog&gt;" in drawn
    assert "<dog>" not in drawn


def test_units_have_the_colors_of_what_happened_to_them():
    """Six units are two rows of three, with a gray frame."""
    panels = pictures(figure(EXPLANATION).svg)
    units = [[panel.getpixel((1 + unit % 3, 1 + unit // 3)) for unit in range(6)] for panel in panels[1:]]
    sampled, slopes, flipped = units
    assert [color == sampled[0] for color in sampled] == [bool(kept) for kept in EXPLANATION.sampled]
    assert flipped[0] == (196, 90, 0)  # kept, and dropped by the adversary
    assert flipped[2] == (0, 90, 170)  # dropped, and revived
    assert len(set(flipped)) == 3
    assert slopes[2] == (196, 90, 0)  # the largest
    assert min(slopes[3]) >= 253  # none at all
    assert slopes[0][2] > slopes[0][0]  # negative


@pytest.mark.parametrize("shape", [(6,), (2, 3, 1), (6, 1, 1)])
def test_any_shape_of_layer_is_drawn(shape):
    drawn = figure(replace(EXPLANATION, shape=shape, title="A & B"))
    ElementTree.fromstring(standalone(drawn))


def test_without_an_image_there_are_three_panels():
    drawn = figure(replace(EXPLANATION, image=[])).svg
    assert "The image" not in drawn
    assert drawn.count("<image ") == 3


def test_a_jacobian_of_zeros_can_be_drawn():
    ElementTree.fromstring(figure(replace(EXPLANATION, jacobian=[0.0] * 6, adversarial=EXPLANATION.sampled)).svg)
