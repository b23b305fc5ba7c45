from twincluster.update.new_images import update as update
from twincluster.update.undo import undo_update as undo_update
