"""Figure 1 as a diagram: the passes of the Π model, of VAT and of VAdD."""

from __future__ import annotations

from html import escape

from advdrop.lab.report.svg import standalone

WIDTH, ROW = 720, 196
SAID = (
    "Three diagrams. The Π model runs an image twice through the whole network, each time with other noise and another "
    "dropout mask, and compares the two outputs. VAT runs the image and the image plus an adversarial perturbation, "
    "which it finds by the gradient of the divergence with respect to the image. VAdD runs the image with a sampled "
    "mask and with an adversarial mask of the hidden units, which differs from the sampled one in a few units that the "
    "gradient of the divergence with respect to the mask picks."
)


def passes() -> str:
    """The diagram as a file of its own."""
    parts = [_marker(), _pi(0), _vat(ROW), _vadd(2 * ROW)]
    said = escape(SAID, quote=True)
    drawn = f'<svg viewBox="0 0 {WIDTH} {3 * ROW}" role="img" aria-label="{said}">{"".join(parts)}</svg>'
    legend = [("forward pass", 0), ("what the adversary sees and changes", 2)]
    return standalone(drawn, "What is compared with what", legend)


def _pi(top: float) -> str:
    up, down = top + 72, top + 148
    parts = [_title(top, "Π model: two samples of noise")]
    parts += [_box(20, (up + down) / 2, 52, "x")]
    for y, mark in ((up, "₁"), (down, "₂")):
        parts += [
            _arrow(72, (up + down) / 2, 150, y),
            _box(150, y, 110, f"under, noise ρ{mark}"),
            _arrow(260, y, 316, y),
        ]
        parts += [_box(316, y, 70, f"h ⊙ ε{mark}"), _arrow(386, y, 442, y), _box(442, y, 70, "upper")]
        parts += [_arrow(512, y, 620, (up + down) / 2 + (-10 if y == up else 10))]
    return "".join([*parts, _divergence((up + down) / 2)])


def _vat(top: float) -> str:
    up, down = top + 72, top + 148
    middle = (up + down) / 2
    parts = [_title(top, "VAT: the worst small change of the input")]
    parts += [_box(20, up, 52, "x"), _arrow(72, up, 250, up), _box(250, up, 200, "the whole network f")]
    parts += [_arrow(450, up, 620, middle - 10)]
    parts += [_box(20, down, 92, "x + r", changed=True), _arrow(46, up + 16, 46, down - 16)]
    parts += [
        _arrow(112, down, 250, down),
        _box(250, down, 200, "the whole network f"),
        _arrow(450, down, 620, middle + 10),
    ]
    parts += [
        _back(f"M646 {middle + 18} V{down + 34} H66 V{down + 18}"),
        _small(356, down + 30, "r: along ∂D/∂x, ‖r‖₂ ≤ ε"),
    ]
    return "".join([*parts, _divergence(middle)])


def _vadd(top: float) -> str:
    up, down = top + 72, top + 148
    middle = (up + down) / 2
    parts = [_title(top, "VAdD: the worst few units of the mask (drawn with shared noise)")]
    parts += [
        _box(20, middle, 52, "x"),
        _arrow(72, middle, 130, middle),
        _box(130, middle, 80, "under"),
        _small(224, middle - 16, "h"),
    ]
    parts += [_arrow(210, middle, 300, up), _arrow(210, middle, 300, down)]
    parts += [_box(300, up, 86, "h ⊙ εs"), _arrow(386, up, 442, up), _box(442, up, 70, "upper")]
    parts += [_box(300, down, 86, "h ⊙ εadv", changed=True), _arrow(386, down, 442, down), _box(442, down, 70, "upper")]
    parts += [_arrow(512, up, 620, middle - 10), _arrow(512, down, 620, middle + 10)]
    parts += [
        _back(f"M646 {middle + 18} V{down + 34} H343 V{down + 18}"),
        _small(494, down + 30, "J = ∂D/∂ε: flip at most int(δH) units"),
    ]
    return "".join([*parts, _divergence(middle)])


def _title(top: float, text: str) -> str:
    return f'<text class="title" x="20" y="{top + 30:g}" style="font-size:16px">{escape(text)}</text>'


def _box(x: float, y: float, width: float, text: str, changed: bool = False) -> str:
    name = "box changed" if changed else "box"
    shape = f'<rect class="{name}" x="{x:g}" y="{y - 16:g}" width="{width:g}" height="32" rx="6"/>'
    return shape + f'<text x="{x + width / 2:g}" y="{y + 5:g}" text-anchor="middle">{escape(text)}</text>'


def _divergence(y: float) -> str:
    return f'<circle class="box" cx="646" cy="{y:g}" r="20"/><text x="646" y="{y + 5:g}" text-anchor="middle">D</text>'


def _small(x: float, y: float, text: str) -> str:
    return f'<text class="small" x="{x:g}" y="{y:g}" text-anchor="middle">{escape(text)}</text>'


def _arrow(x: float, y: float, to_x: float, to_y: float) -> str:
    short = 3 if to_x > x else 0
    return f'<path class="flow" marker-end="url(#tip)" d="M{x:g} {y:g}L{to_x - short:g} {to_y:g}"/>'


def _back(path: str) -> str:
    return f'<path class="back" marker-end="url(#back)" d="{path}"/>'


def _marker() -> str:
    shape = 'viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7" markerHeight="7" orient="auto"'
    return (
        "<defs>"
        + "".join(
            f'<marker id="{name}" {shape}><path class="tip {name}" d="M0 0L8 4L0 8z"/></marker>'
            for name in ("tip", "back")
        )
        + "</defs>"
    )
