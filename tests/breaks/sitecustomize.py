"""Python imports this when it starts, where `contexts.py` has put its directory on the path."""

import contexts

contexts.begin()
