"""Trained models outside of this program: as files for other programs, and behind a small server."""
