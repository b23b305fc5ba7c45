from twincluster.run_images.findings import Findings as Findings
from twincluster.run_images.findings import findings_of as findings_of
from twincluster.run_images.findings import truth_of as truth_of
from twincluster.run_images.images import IS_ROWS as IS_ROWS
from twincluster.run_images.images import Pictures as Pictures
from twincluster.run_images.images import RunImages as RunImages
from twincluster.run_images.images import is_there as is_there
from twincluster.run_images.images import learn as learn
