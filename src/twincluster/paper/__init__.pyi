from twincluster.paper.items import ITEMS as ITEMS
from twincluster.paper.trainings import Asked as Asked
from twincluster.paper.trainings import carry_out as carry_out
from twincluster.paper.trainings import commands_left as commands_left
