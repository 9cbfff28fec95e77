"""compare.py - the same batch through this program and through transformers: the worst relative error of each tensor.

    ./train_gpt dump --model DIR --ids ids.json -o ours.safetensors        (ids.json: [[1, 5, 2], [7, 3]])
    python dev/reference/compare.py DIR ids.json ours.safetensors

transformers runs in float64; with --dtype fp64 so does dump, and what is left is rounding in the 15th digit. Fails
where an error is above --bound: 1e-5 unless given.
"""
import argparse
import json
import sys
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from truth import exact, in_float64, measure, relative_error

transformers.utils.logging.disable_progress_bar()
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model", help="a Hugging Face folder")
parser.add_argument("ids", help="a JSON list of lists of ids")
parser.add_argument("ours", help="what dump wrote")
parser.add_argument("--bound", type=float, default=1e-5)
given = parser.parse_args()

with open(given.ids) as file:
    lists = [torch.tensor(ids) for ids in json.load(file)]
ours = load_file(given.ours)
model = in_float64(AutoModelForCausalLM.from_pretrained(given.model, attn_implementation="eager"))
with exact():
    truth = measure(model, lists)
if truth.keys() != ours.keys():
    sys.exit(f"only one side has {sorted(truth.keys() ^ ours.keys())}")

worst = 0
for name, value in truth.items():
    error = relative_error(value, ours[name].reshape(value.shape))
    worst = max(worst, error)
    print(f"{error:7.1e}  {name}")
print(f"loss {float(truth['loss']):.8f} and {float(ours['loss']):.8f}; worst relative error {worst:.1e}")
sys.exit(worst > given.bound)
