"""How the pages are built: ``make docs``."""

from importlib import metadata

project = "advdrop"
author = "the advdrop authors"
release = metadata.version("advdrop")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"advdrop {release}"
html_static_path: list[str] = []
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_google_docstring = True
napoleon_use_rtype = False
nitpicky = False
suppress_warnings = ["myst.header"]  # pages that are also read on GitHub begin below the first heading
autodoc_default_options = {  # what scikit-learn adds to every estimator
    "exclude-members": "set_fit_request, set_partial_fit_request, set_score_request"
}
