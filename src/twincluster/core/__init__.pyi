from collections.abc import Callable, Iterable

from twincluster.core import user_code as user_code
from twincluster.core.files import CHECKSUM as CHECKSUM
from twincluster.core.files import MANIFEST as MANIFEST
from twincluster.core.files import MISMATCH as MISMATCH
from twincluster.core.files import SEAL as SEAL
from twincluster.core.files import JsonLines as JsonLines
from twincluster.core.files import check_content as check_content
from twincluster.core.files import check_seal as check_seal
from twincluster.core.files import check_writable as check_writable
from twincluster.core.files import disk_is_full as disk_is_full
from twincluster.core.files import finite as finite
from twincluster.core.files import first_line as first_line
from twincluster.core.files import is_taken as is_taken
from twincluster.core.files import json_line as json_line
from twincluster.core.files import naming as naming
from twincluster.core.files import open_partial as open_partial
from twincluster.core.files import read_json as read_json
from twincluster.core.files import read_record as read_record
from twincluster.core.files import read_table as read_table
from twincluster.core.files import record_of as record_of
from twincluster.core.files import refuse_taken as refuse_taken
from twincluster.core.files import seal as seal
from twincluster.core.files import strict_json as strict_json
from twincluster.core.files import sweep_partials as sweep_partials
from twincluster.core.files import unfinished as unfinished
from twincluster.core.files import with_checksum as with_checksum
from twincluster.core.files import without_checksum as without_checksum
from twincluster.core.files import write_atomically as write_atomically
from twincluster.core.files import write_json as write_json
from twincluster.core.files import write_table as write_table
from twincluster.core.locks import LOCK_FILE as LOCK_FILE
from twincluster.core.locks import HeldError as HeldError
from twincluster.core.locks import Hold as Hold
from twincluster.core.locks import hold as hold
from twincluster.core.locks import hold_new as hold_new
from twincluster.core.locks import lock as lock
from twincluster.core.locks import refuse_held as refuse_held
from twincluster.core.locks import refuse_zero as refuse_zero
from twincluster.core.locks import settle as settle
from twincluster.core.process import FEW as FEW
from twincluster.core.process import OnProgress as OnProgress
from twincluster.core.process import Terminated as Terminated
from twincluster.core.process import called as called
from twincluster.core.process import default_interrupts as default_interrupts
from twincluster.core.process import end_on_interrupt as end_on_interrupt
from twincluster.core.process import explained as explained
from twincluster.core.process import ignore_interrupts as ignore_interrupts
from twincluster.core.process import is_last_reporter as is_last_reporter
from twincluster.core.process import keep_freed as keep_freed
from twincluster.core.process import leave_quietly as leave_quietly
from twincluster.core.process import noted as noted
from twincluster.core.process import one_thread as one_thread
from twincluster.core.process import return_freed as return_freed
from twincluster.core.process import run_child as run_child
from twincluster.core.process import terminable as terminable
from twincluster.core.process import torch_for_good as torch_for_good
from twincluster.core.process import typed as typed
from twincluster.core.process import typed_command as typed_command
from twincluster.core.process import uncollected as uncollected

class InputError(ValueError):
    def __init__(self, message: str = "", *more: object) -> None: ...

class ProcessEnded(RuntimeError): ...  # noqa: N818

def shortened(text: str) -> str: ...
def closest(name: str, known: Iterable[str], prefix: str = "") -> str: ...
def attach_stub(package: str, file: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]: ...
def duration(seconds: float) -> str: ...
def counted(count: int, noun: str) -> str: ...
def available_cores() -> int: ...
