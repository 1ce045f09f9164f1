# What type checkers and editors know of `__init__.py`, which imports these when they are used.
from vision_attn.api import CaptionResult as CaptionResult
from vision_attn.api import Model as Model
from vision_attn.api import load as load
from vision_attn.api import load_explainer as load_explainer
from vision_attn.api import load_model as load_model
from vision_attn.system.errors import UserError as UserError

__version__: str
