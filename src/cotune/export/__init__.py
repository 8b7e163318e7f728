"""What a run leaves for other libraries: its model as a folder that plain peft or transformers load."""

from cotune.export.folder import Exported, export, finish
from cotune.export.memory import attach_memory
from cotune.export.reopen import reopen

__all__ = ["Exported", "attach_memory", "export", "finish", "reopen"]
