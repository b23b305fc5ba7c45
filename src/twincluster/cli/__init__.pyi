from twincluster.cli.terminal import Count as Count
from twincluster.cli.terminal import CountOrNone as CountOrNone
from twincluster.cli.terminal import PlainHelp as PlainHelp
from twincluster.cli.terminal import Seed as Seed
from twincluster.cli.terminal import status_of as status_of
from twincluster.cli.terminal import whole as whole

def main(arguments: list[str] | None = None) -> int: ...
