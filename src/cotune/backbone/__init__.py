"""The frozen model: how it is named, loaded, lent to a client, and cut in two."""

from cotune.backbone.cut import split
from cotune.backbone.loaded import Backbone, Loaded, Skeleton

__all__ = ["Backbone", "Loaded", "Skeleton", "split"]
