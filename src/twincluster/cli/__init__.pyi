from twincluster.cli.exits import status_of as status_of
from twincluster.cli.help import Count as Count
from twincluster.cli.help import CountOrNone as CountOrNone
from twincluster.cli.help import PlainHelp as PlainHelp
from twincluster.cli.help import Seed as Seed
from twincluster.cli.help import whole as whole

def main(arguments: list[str] | None = None) -> int: ...
