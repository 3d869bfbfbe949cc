"""One check a file: a function of `Here` that gives results; `checkup.py` lists them."""
