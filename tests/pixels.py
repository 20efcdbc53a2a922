"""The pictures within a drawing, read by pillow."""

import base64
import io
import re

from PIL import Image


def pictures(svg):
    """All pictures of an SVG."""
    found = re.findall(r'base64,([^"]+)"', svg)
    return [Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB") for data in found]
