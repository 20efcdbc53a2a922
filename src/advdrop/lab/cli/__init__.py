"""The command line: ``advdrop train``, ``compare``, ``evaluate``, ``data`` and ``show``."""
