from scalewright.api import catalog as catalog
from scalewright.api.lint import lint as lint
from scalewright.api.many import layouts as layouts
from scalewright.api.many import predict_many as predict_many
from scalewright.api.plan import plan as plan
from scalewright.api.predict import predict as predict
from scalewright.api.study import study as study
from scalewright.api.validate import validate as validate
from scalewright.errors import ConfigError as ConfigError
from scalewright.errors import EnvironmentFailedError as EnvironmentFailedError
from scalewright.errors import ScalewrightError as ScalewrightError

__version__: str
