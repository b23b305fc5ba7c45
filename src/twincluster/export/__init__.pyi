from twincluster.export import folders as folders
from twincluster.export import huggingface as huggingface
from twincluster.export import moves as moves
from twincluster.export import onnx as onnx
from twincluster.export import tables as tables
