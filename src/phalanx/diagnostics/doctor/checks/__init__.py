"""One check a file: a function of `MachineInfo` that gives results; `checkup.py` lists them."""
