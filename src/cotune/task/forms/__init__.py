"""Ways to ask a model which answer is right, each with the head that it needs: one file a way."""

from cotune.task.forms.contained import Contained
from cotune.task.forms.form import Form, Question
from cotune.task.forms.masked import Masked
from cotune.task.forms.paired import Paired
from cotune.task.forms.ranked import Ranked
from cotune.task.forms.written import Written

__all__ = ["Contained", "Form", "Masked", "Paired", "Question", "Ranked", "Written"]
