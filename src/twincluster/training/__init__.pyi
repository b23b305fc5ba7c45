from twincluster.training import checkpoint as checkpoint
from twincluster.training.progress import Progress as Progress
from twincluster.training.progress import Watcher as Watcher
from twincluster.training.trainer import Reporter as Reporter
from twincluster.training.trainer import Trainer as Trainer
from twincluster.training.trainer import health_of as health_of
