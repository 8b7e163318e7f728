"""The words of the system: values and contracts that every room shares, and that know no room.

Import from the modules themselves (`from cotune.core.state import Theta`): this file stays empty so that what reads
files only never pays for torch.
"""
