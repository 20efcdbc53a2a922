"""The command line: ``advdrop train``, ``compare``, ``reproduce``, ``report`` and others."""
