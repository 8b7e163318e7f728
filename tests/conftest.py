"""Property tests draw the same examples in every run."""

from hypothesis import settings

settings.register_profile("cotune", derandomize=True, deadline=None)
settings.load_profile("cotune")
