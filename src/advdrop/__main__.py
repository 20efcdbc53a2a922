"""``python -m advdrop`` is ``advdrop``."""

import sys

from advdrop.cli.main import main

sys.exit(main())
