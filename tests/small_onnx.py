"""ONNX encoders that are known through and through: the mean of each colour, mixed by a matrix."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

MIX = np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)
Size = int | str


def colour_model(
    path: Path,
    shape: tuple[Size, ...] = ("n", 3, "h", "w"),
    *,
    outputs: tuple[str, ...] = ("features",),
    opset: int = 17,
    before: tuple[str, dict[str, Any]] | None = None,  # an operator on the images, such as ("Transpose", {...})
    after: tuple[str, dict[str, Any]] | None = None,  # on the features
    kind: int = TensorProto.FLOAT,
    given: tuple[Size, ...] = ("n", 8),
    inputs: int = 1,
) -> Path:
    """Write a model that turns images into rows of eight numbers; the second output is the first times ten."""
    nodes = [helper.make_node("Cast", ["images"], ["floats"], to=TensorProto.FLOAT)]
    name = "floats"
    if before:
        nodes.append(helper.make_node(before[0], [name], ["turned"], **before[1]))
        name = "turned"
    nodes.append(helper.make_node("GlobalAveragePool", [name], ["pooled"]))
    nodes.append(helper.make_node("Flatten", ["pooled"], ["colours"]))
    nodes.append(helper.make_node("MatMul", ["colours", "mix"], ["rows"]))
    name = "rows"
    if after:
        nodes.append(helper.make_node(after[0], ["rows", *after[1].pop("more", [])], ["made"], **after[1]))
        name = "made"
    for place, output in enumerate(outputs):
        nodes.append(helper.make_node("Mul", [name, f"factor_{place}"], [output]))
    factors = [numpy_helper.from_array(np.float32(10**place), f"factor_{place}") for place in range(len(outputs))]
    axes = [numpy_helper.from_array(np.array([place]), name) for name, place in (("axes", 1), ("last", 2))]
    graph = helper.make_graph(
        nodes, "colours",
        [helper.make_tensor_value_info("images", kind, shape)]
        + [helper.make_tensor_value_info(f"more_{place}", TensorProto.INT64, ["n"]) for place in range(1, inputs)],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, given) for output in outputs],
        [numpy_helper.from_array(MIX[: shape[1] if shape[1] == 1 else 3], "mix"), *axes, *factors],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


def text_model(path: Path) -> Path:
    """Write a model that takes tokens."""
    graph = helper.make_graph(
        [helper.make_node("Cast", ["input_ids"], ["features"], to=TensorProto.FLOAT)], "text",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["n", 77])],
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["n", 77])],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def expected_features(pixels: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """What the model makes of uint8 images (n,s,s,3) of its own size."""
    colours = pixels.astype(np.float64).mean((1, 2)) / 255
    features: np.ndarray = ((colours - mean) / std) @ MIX
    return features
